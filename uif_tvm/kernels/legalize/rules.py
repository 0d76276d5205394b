"""What legalisation functions are made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.pointwise import pointwise

if TYPE_CHECKING:
    from tvm import te
    from tvm.ir import Call
    from tvm.relax import BlockBuilder, Expr

Legalizer = Callable[["BlockBuilder", "Call"], "Expr"]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
#: Fusion kinds of kernels (Relax's ``op_pattern``).
ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION, OUT_FUSABLE, OPAQUE = 0, 1, 2, 3, 4, 8


def default(bb: BlockBuilder, call: Call) -> Expr:
    """TVM's own legalisation of the operator."""
    return call.op.get_attr("FLegalize")(bb, call)


def dtype_of(expr: Any) -> str:
    """Element type of a tensor expression."""
    return str(expr.ty.dtype.dtype if hasattr(expr.ty.dtype, "dtype") else expr.ty.dtype)


def shape_of(expr: Any) -> list[Any] | None:
    """Extents of a tensor expression, or ``None`` when even its rank is unknown."""
    values = getattr(getattr(expr.ty, "shape", None), "values", None)
    return None if values is None else list(values)


def elementwise(
    name: str, formula: Callable[[Any], Any], dtypes: tuple[str, ...] = FLOATS
) -> Legalizer:
    """Legalisation of a unary operator of Relax to ``formula``, for elements of ``dtypes``."""

    def kernel(x: te.Tensor) -> te.Tensor:
        from tvm import te

        return te.compute(x.shape, lambda *i: formula(x(*i)), name=name)

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        if dtype_of(call.args[0]) not in dtypes:
            return default(bb, call)
        return bb.call_te(kernel, call.args[0], primfunc_name_hint=f"tir_{name}")

    return legalize


def standard(kernel: Callable[..., Any], name: str = "", pattern: int | None = None) -> Legalizer:
    """Legalisation of a standard operator that Relax lacks.

    Args:
        kernel: ``kernel(*tensors, **attrs) -> te.Tensor or list of them``; operands left out are
            ``None``, attributes plain Python with defaults filled in.
        name: the kernel's name; the operator's by default.
        pattern: fusion kind, where TVM's analysis of the loops would not find it.
    """

    def legalize(bb: BlockBuilder, call: Call) -> Expr:
        from uif_tvm.standard_ops import read

        found = read(call)
        if found is None:
            return call
        spec, operands, attrs = found
        given = [operand is not None for operand in operands]

        def build(*tensors: te.Tensor) -> Any:
            rest = iter(tensors)
            return kernel(*[next(rest) if present else None for present in given], **attrs)

        return bb.call_te(
            build,
            *[operand for operand in operands if operand is not None],
            primfunc_name_hint=name or spec.name.replace(".", "_"),
            primfunc_attrs=None if pattern is None else {"op_pattern": pattern},
        )

    return legalize


def formulas(table: Mapping[str, Callable[..., Any]]) -> dict[str, Legalizer]:
    """Legalisations of standard operators applied to each element: ``{name: f(*x, **attrs)}``.

    Operands broadcast as NumPy has it.
    """
    return {f"uif.{name}": standard(pointwise(fn, name)) for name, fn in table.items()}
