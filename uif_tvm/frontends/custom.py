"""What a custom operator turns into: a kernel of the kernel map, converters of both frontends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.errors import CompileError, ImportModelError, UifError, UsageError

if TYPE_CHECKING:
    from uif_tvm.frontends.converters.context import NodeContext
    from uif_tvm.frontends.extension import CustomOp
    from uif_tvm.frontends.torch.emitter import Emitter
    from uif_tvm.ops.spec import OpSpec


def add_kernel(op: CustomOp) -> None:
    """Enter the operator's kernel into the kernel map."""
    from uif_tvm.kernels.legalize import LEGALIZE, rules

    assert op.spec is not None
    assert op.kernel is not None
    name, kernel = op.spec.name, op.kernel

    def told(*tensors: Any, **attrs: Any) -> Any:
        try:
            return kernel(*tensors, **attrs)
        except Exception as error:
            # TVM's C++ walk keeps the text of an error, but not its type.
            raise CompileError(
                f"the kernel of custom operator {name!r} failed: {type(error).__name__}: {error}",
                code="UIF-COMPILE-CUSTOM-OP",
                op=name,
            ) from error

    pattern = None if op.fusion is None else int(getattr(rules, op.fusion.upper()))
    LEGALIZE[op.spec.graph_name] = rules.standard(told, pattern=pattern)


def remove_kernel(op: CustomOp) -> None:
    """Take it out again."""
    from uif_tvm.kernels.legalize import LEGALIZE

    assert op.spec is not None
    LEGALIZE.pop(op.spec.graph_name, None)


def onnx_converter(op: CustomOp) -> Callable[[NodeContext], Any]:
    """The operator's converter for nodes of ONNX models."""

    def convert(ctx: NodeContext) -> Any:
        from uif_tvm.frontends.onnx.values import Known
        from uif_tvm.standard_ops import RelaxBuilder

        given = [ctx.value(i) if ctx.has(i) else None for i in range(len(ctx.inputs))]
        attrs = renamed(op, ctx.attrs)
        with _told(op, ctx.invalid):
            if (
                op.spec is not None
                and op.convert is None
                and all(value is None or isinstance(value, Known) for value in given)
            ):
                _check_kinds(op.spec, attrs)
                arrays = [None if value is None else value.array for value in given]  # type: ignore[union-attr]
                folded = op.spec.evaluate(arrays, attrs)
                return [Known(a) for a in (folded if isinstance(folded, tuple) else (folded,))]
            operands = [None if value is None else ctx.as_expr(value) for value in given]
            builder = RelaxBuilder(ctx.bb, ctx.outputs[0] if ctx.outputs else ctx.op_type)
            made = applied(op, builder, operands, attrs)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    return convert


def torch_converter(op: CustomOp) -> Callable[..., Any]:
    """The operator's converter for nodes of PyTorch programs.

    Tensors among the arguments are operands, everything else is an attribute.
    """

    def convert(cx: Emitter, *arguments: Any) -> Any:
        from uif_tvm.frontends.torch.registry import RefusedError
        from uif_tvm.standard_ops import RelaxBuilder

        schema: Any = cx.node.target._schema  # type: ignore[union-attr]
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        for declared, value in zip(schema.arguments, arguments, strict=True):
            if "Tensor" in str(declared.type):
                operands += value if isinstance(value, (list, tuple)) else [value]
            else:
                attrs[declared.name] = tuple(value) if isinstance(value, list) else value
        with _told(op, lambda text: RefusedError(text)):
            made = applied(op, RelaxBuilder(cx.builder, cx.name), operands, renamed(op, attrs))
        return list(made) if isinstance(made, (tuple, list)) else made

    return convert


def renamed(op: CustomOp, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Source attributes under the spec's names; lists become tuples."""
    return {
        op.renamed.get(name, name): tuple(value) if isinstance(value, list) else value
        for name, value in attrs.items()
    }


def _check_kinds(spec: OpSpec, attrs: Mapping[str, Any]) -> None:
    """Attributes must be of their default's kind: number, text, list.

    Raises:
        UsageError: one is not.
    """
    kinds: tuple[Any, ...] = ((bool, int, float), str, tuple)
    for declared in spec.attributes:
        value = attrs.get(declared.name)
        wanted = next((kind for kind in kinds if isinstance(declared.default, kind)), object)
        if value is not None and not isinstance(value, wanted):
            raise UsageError(
                f"attribute {declared.name!r} is {value!r}; the default is {declared.default!r}",
                code="UIF-OP-MISUSE",
                op=spec.name,
            )


def applied(op: CustomOp, builder: Any, operands: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """The operator on operands of whatever kind ``builder`` works on."""
    if op.convert is not None:
        return op.convert(builder, operands, attrs)
    assert op.spec is not None
    _check_kinds(op.spec, attrs)
    return builder.op(op.spec.name, *operands, **attrs)


class _told:
    """Turns what a plug-in's code raises into the frontend's own kind of error.

    Args:
        op: the operator, which the error names.
        fault: makes the error of a text.
    """

    def __init__(self, op: CustomOp, fault: Callable[[str], Exception]) -> None:
        self._op = op
        self._fault = fault

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, ImportModelError):
            return
        text = error.message if isinstance(error, UifError) else f"{type(error).__name__}: {error}"
        raise self._fault(f"custom operator {self._op.name!r}: {text}") from error
