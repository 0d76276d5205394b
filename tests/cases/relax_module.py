"""A Relax module made by hand, through our own compiler, artifact and engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.cases.guards import uses_no


def run_module(mod: Any, inputs: Sequence[Any], level: int) -> list[Any]:
    """Outputs of ``mod["main"]``, compiled as an imported model is.

    Raises:
        UifError: from any stage.
    """
    from uif_tvm.api import _compile
    from uif_tvm.artifact import open_artifact, write_artifact
    from uif_tvm.compiler.context import CompileContext
    from uif_tvm.compiler.report import ReportBuilder
    from uif_tvm.runtime.engine import Engine
    from uif_tvm.target.registry import get_target

    imported = as_imported(mod)
    context = CompileContext(get_target("cpu"), level, ReportBuilder())
    payload = _compile(imported, context, lambda phase, done, total: None)
    with tempfile.TemporaryDirectory(prefix="uif-case-") as folder:
        path = f"{folder}/m.uif"
        write_artifact(path, model="case", signature=imported.signature, targets=[payload])
        return list(Engine(open_artifact(path), payload.target, None).run(*inputs))


def as_imported(mod: Any) -> Any:
    """The module as a frontend would have made it: ``main`` returns a flat tuple."""
    from tvm import relax

    from uif_tvm.frontends.imported import ImportedModel
    from uif_tvm.signature import Signature, TensorSpec

    mod = _with_known_shapes(mod)
    main = mod["main"]
    builder = relax.BlockBuilder()
    body = main.body
    blocks, result = (list(body.blocks), body.body) if isinstance(body, relax.SeqExpr) else (
        [], body)  # fmt: skip
    leaves = list(_leaves(result, result.ty))
    builder.begin_scope(list(main.params))
    builder._begin_binding_block()
    names = [builder.emit(leaf) for leaf in leaves]
    out = builder.emit(relax.Tuple(names))
    tail = builder._end_block()
    builder.end_scope()
    ty = relax.TupleType([name.ty for name in names])
    function = relax.Function(
        main.params, relax.SeqExpr([*blocks, tail], out), ty, attrs=main.attrs
    )
    changed = mod.clone() if hasattr(mod, "clone") else mod
    changed.update_func(mod.get_global_var("main"), function)
    return ImportedModel(
        mod=changed,
        signature=Signature(
            tuple(
                TensorSpec(f"in{number}", _dims(param.ty), str(param.ty.dtype))
                for number, param in enumerate(main.params)
            ),
            tuple(
                TensorSpec(f"out{number}", _dims(name.ty), str(name.ty.dtype))
                for number, name in enumerate(names)
            ),
        ),
        source="relax",
    )


def _with_known_shapes(mod: Any) -> Any:
    """Constant sizes as sizes: frontends read them at import, so results have known shapes."""
    from tvm import relax, tirx
    from tvm.relax.expr_functor import PyExprMutator, mutator

    from uif_tvm.relax_util import constant_array

    @mutator
    class Sizes(PyExprMutator):
        def visit_call_(self, call: Any) -> Any:
            call = super().visit_call_(call)
            if getattr(call.op, "name", "") != "relax.tensor_to_shape":
                return call
            sizes = constant_array(call.args[0])
            if sizes is None:
                return call
            return relax.ShapeExpr([tirx.IntImm("int64", int(n)) for n in sizes.reshape(-1)])

    sizes = Sizes(mod)
    for var, function in list(mod.functions_items()):
        if isinstance(function, relax.Function):
            sizes.builder_.update_func(var, sizes.visit_expr(function))
    return relax.transform.CanonicalizeBindings()(sizes.builder_.get())


@contextmanager
def without_passes() -> Iterator[set[str]]:
    """TVM's Relax passes that our pipeline does without, replaced by nothing.

    Yields:
        the names of those that were asked for meanwhile.
    """
    import tvm
    from tvm.relax import transform

    asked: set[str] = set()

    def nothing(name: str) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            asked.add(name)
            return tvm.transform.module_pass(lambda mod, ctx: mod, opt_level=0)

        return make

    kept = {
        name: value
        for name, value in vars(transform).items()
        if name[0].isupper() and callable(value) and uses_no(name)
    }
    try:
        for name in kept:
            setattr(transform, name, nothing(name))
        yield asked
    finally:
        for name, value in kept.items():
            setattr(transform, name, value)


def _leaves(value: Any, ty: Any) -> Iterator[Any]:
    from tvm import relax

    if isinstance(ty, relax.TupleType):
        for index, field in enumerate(ty.fields):
            yield from _leaves(relax.TupleGetItem(value, index), field)
    else:
        yield value


def _dims(ty: Any) -> tuple[Any, ...]:
    from tvm import tirx

    return tuple(int(d) if isinstance(d, tirx.IntImm) else str(d) for d in ty.shape)
