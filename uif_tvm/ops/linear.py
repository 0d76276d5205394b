"""Matrix products and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.ops.spec import (
    FLOATS,
    INTS,
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Dim,
    Operand,
    OpSpec,
    Reference,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder

#: Sums of 16-bit floats are kept in float32.
WIDE = {"float16": "float32", "bfloat16": "float32"}


def exactly(function: Reference) -> Reference:
    """``function`` with floats computed in float64 and rounded once, to the first operand's type.

    For references with long sums: what they leave out is the order of adding. Results of other
    types (indices, masks) stay as they are.
    """

    def apply(x: Array, *rest: Array | None, **attrs: object) -> Any:
        floats = is_float(x.dtype)
        wide = [
            item.astype(np.float64) if item is not None and is_float(item.dtype) else item
            for item in (x, *rest)
        ]
        value = function(*wide, **attrs)

        def back(item: Array) -> Array:
            item = np.asarray(item)
            return item.astype(x.dtype) if floats and item.dtype == np.float64 else item

        return tuple(map(back, value)) if isinstance(value, tuple) else back(value)

    return apply


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy type is a floating-point one, ``bfloat16`` included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Seeded normal values for cases."""
    return np.random.default_rng(seed).standard_normal(shape).astype(numpy_dtype(dtype))


def array(dtype: str, values: Any) -> Array:
    """Values of a type, for cases."""
    return np.array(values, numpy_dtype(dtype))


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x W^T + b over the last axis; ``weight`` is (outputs, inputs)."""
    y = np.matmul(x, weight.T)
    return y if bias is None else y + bias


def gemm(
    a: Array,
    b: Array,
    c: Array | None,
    alpha: float,
    beta: float,
    trans_a: bool,
    trans_b: bool,
) -> Array:
    """alpha A' B' + beta C."""
    y = alpha * np.matmul(a.T if trans_a else a, b.T if trans_b else b)
    return y if c is None else y + beta * c


def einsum(*operands: Array, subscripts: str) -> Array:
    """Einstein summation."""
    return np.einsum(subscripts, *operands)


def det(x: Array) -> Array:
    """Determinants of the matrices in the last two axes."""
    return np.linalg.det(x) if x.shape[-1] else np.ones(x.shape[:-2], x.dtype)


def matmul_shape(left: Sequence[Dim], right: Sequence[Dim]) -> tuple[Dim, ...]:
    """NumPy's rule for matrix products, one-dimensional operands included.

    Raises:
        ShapeError: an operand is a scalar, or the inner extents differ.
    """
    if not left or not right:
        raise ShapeError("a scalar has no matrix product")
    rows = (left[-2],) if len(left) > 1 else ()
    columns = (right[-1],) if len(right) > 1 else ()
    inner = left[-1], right[-2] if len(right) > 1 else right[0]
    if all(isinstance(extent, int) for extent in inner) and inner[0] != inner[1]:
        raise ShapeError(f"inner extents {inner[0]} and {inner[1]} differ")
    batch = infer.broadcast(left[:-2], right[:-2])
    return (*batch, *rows, *columns)


def _matmul_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(matmul_shape(types[0].shape, types[1].shape), types[0].dtype),)


def _linear_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    if types[1].rank != 2:
        raise ShapeError(f"the weight has rank {types[1].rank}, not 2")
    return (TensorType(matmul_shape(types[0].shape, types[1].shape[::-1]), types[0].dtype),)


def _gemm_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = types[0].shape, types[1].shape
    if len(a) != 2 or len(b) != 2:
        raise ShapeError(f"operands of rank {len(a)} and {len(b)}, both must be matrices")
    a, b = a[::-1] if attrs["trans_a"] else a, b[::-1] if attrs["trans_b"] else b
    return (TensorType(matmul_shape(a, b), types[0].dtype),)


def _outer_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].rank != 1 or types[1].rank != 1:
        raise ShapeError("both operands must be vectors")
    return (TensorType((types[0].shape[0], types[1].shape[0]), types[0].dtype),)


def _det_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    shape = types[0].shape
    if len(shape) < 2 or not infer.equal(shape[-1], shape[-2]):
        raise ShapeError("the last two axes must hold square matrices")
    return (TensorType(shape[:-2], types[0].dtype),)


def product_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    """Two for each multiply-add; the last axis of the first operand is summed over."""
    depth = types[0].shape[-1]
    return 2.0 * elements(results[0]) * (depth if isinstance(depth, int) else 1)


def _einsum_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    inputs, arrow, output = attrs["subscripts"].replace(" ", "").partition("->")
    labels = inputs.split(",")
    if len(labels) != len(types):
        raise ShapeError(f"{len(labels)} subscripts for {len(types)} operands")
    extents: dict[str, Dim] = {}
    wide: tuple[Dim, ...] = ()
    for names, item in zip(labels, types, strict=True):
        before, dots, after = names.partition("...")
        free = item.rank - len(before) - len(after)
        if free < 0 or (free and not dots):
            raise ShapeError(f"subscripts {names!r} for a tensor of rank {item.rank}")
        wide = infer.broadcast(wide, item.shape[len(before) : len(before) + free])
        ends = (*item.shape[: len(before)], *item.shape[item.rank - len(after) :])
        for name, extent in zip(before + after, ends, strict=True):
            (extents[name],) = infer.broadcast((extents.get(name, 1),), (extent,))
    if not arrow:
        counts = "".join(labels).replace(".", "")
        output = "..." + "".join(name for name in sorted(extents) if counts.count(name) == 1)
    before, _, after = output.partition("...")
    if unknown := [name for name in before + after if name not in extents]:
        raise ShapeError(f"the result's subscript {unknown[0]!r} is none of the operands'")
    shape = [extents[name] for name in before], [extents[name] for name in after]
    middle = wide if "..." in output else ()
    return (TensorType((*shape[0], *middle, *shape[1]), types[0].dtype),)


def _einsum_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    inputs = attrs["subscripts"].replace(" ", "").split("->")[0].split(",")
    extents: dict[str, float] = {}
    for labels, item in zip(inputs, types, strict=True):
        extents |= {
            label: n if isinstance(n, int) else 1
            for label, n in zip(labels.replace(".", ""), item.shape[::-1], strict=False)
        }
    return max(len(inputs), 1) * math.prod(extents.values())


def decompose_linear(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """matmul(x, W^T) + bias."""
    x, weight, bias = (*operands, None)[:3]
    y = b.op("matmul", x, b.op("permute_dims", weight, axes=(1, 0)))
    return y if bias is None else b.op("add", y, bias)


def decompose_gemm(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    """alpha matmul(A', B') + beta C."""
    left, right, c = (*operands, None)[:3]
    if attrs["trans_a"]:
        left = b.op("permute_dims", left, axes=(1, 0))
    if attrs["trans_b"]:
        right = b.op("permute_dims", right, axes=(1, 0))
    y = b.op("matmul", left, right)
    dtype = b.dtype(y)
    if attrs["alpha"] != 1:
        y = b.op("multiply", y, b.const(attrs["alpha"], dtype))
    if c is None:
        return y
    if attrs["beta"] != 1:
        c = b.op("multiply", c, b.const(attrs["beta"], dtype))
    return b.op("add", y, c)


def _products() -> Iterable[Case]:
    yield Case("matrices", (normal(5, 7), normal(7, 3, seed=1)))
    yield Case("vectors", (normal(9), normal(9, seed=1)))
    yield Case("matrix-vector", (normal(4, 9), normal(9, seed=1)))
    yield Case("vector-matrix", (normal(4), normal(4, 9, seed=1)))
    yield Case("batch-broadcast", (normal(2, 1, 3, 4), normal(5, 4, 2, seed=1)))
    yield Case("size-1", (normal(1, 1), normal(1, 1, seed=1)))
    yield Case("no-rows", (normal(0, 4), normal(4, 2)))
    yield Case("empty-sum", (normal(3, 0), normal(0, 2)))
    special = normal(3, 4)
    special[0, 1], special[1, 2] = np.nan, np.inf
    yield Case("nan-inf", (special, normal(4, 2, seed=1)))
    half = normal(2, 300, dtype="float16"), normal(300, 2, seed=1, dtype="float16")
    yield Case("float16-long-sum", half)
    integers = np.arange(12, dtype=np.int32).reshape(3, 4)
    yield Case("integers", (integers, integers.T.copy()))


def _linears() -> Iterable[Case]:
    yield Case("bias", (normal(2, 5, 7), normal(3, 7, seed=1), normal(3, seed=2)))
    yield Case("no-bias", (normal(5, 7), normal(3, 7, seed=1), None))
    yield Case("vector", (normal(7), normal(3, 7, seed=1), normal(3, seed=2)))


def _gemms() -> Iterable[Case]:
    a, w, c = normal(5, 7), normal(3, 7, seed=1), normal(1, 3, seed=2)
    yield Case("trans-b", (a, w, c), {"trans_b": True, "alpha": 0.5, "beta": -2.0})
    yield Case("trans-a", (a.T.copy(), w.T.copy(), None), {"trans_a": True})
    yield Case("scalar-c", (a, w.T.copy(), np.float32(3)))


def _sums() -> Iterable[Case]:
    yield Case("matmul", (normal(3, 4), normal(4, 5, seed=1)), {"subscripts": "ij,jk->ik"})
    yield Case("implicit", (normal(3, 4), normal(4, 5, seed=1)), {"subscripts": "ij,jk"})
    yield Case("transpose", (normal(3, 4),), {"subscripts": "ij->ji"})
    yield Case("diagonal", (normal(4, 4),), {"subscripts": "ii->i"})
    yield Case("trace", (normal(4, 4),), {"subscripts": "ii"})
    yield Case("ellipsis", (normal(2, 3, 4), normal(4, 5, seed=1)), {"subscripts": "...j,jk->...k"})
    yield Case("sum", (normal(2, 3),), {"subscripts": "ij->"})
    three = normal(2, 3), normal(3, 4, seed=1), normal(4, seed=2)
    yield Case("three", three, {"subscripts": "ij,jk,k->i"})


def _determinants() -> Iterable[Case]:
    yield Case("batch", (normal(2, 3, 4, 4),))
    yield Case("pivot", (array("float32", [[0, 1], [2, 3]]),))
    yield Case("singular", (array("float32", [[1, 2], [2, 4]]),))
    yield Case("size-1", (array("float32", [[[-2.5]]]),))


_ABC = (Operand("a"), Operand("b"), Operand("c", optional=True))

SPECS = (
    OpSpec(
        "matmul",
        "linear",
        exactly(np.matmul),
        _matmul_type,
        operands=(Operand("x"), Operand("y")),
        dtypes=(*FLOATS, *INTS),
        accumulation=WIDE,
        tolerance=LOOSE,
        relax="relax.matmul",
        cases=_products,
        flops=product_flops,
    ),
    OpSpec(
        "linear",
        "linear",
        exactly(linear),
        _linear_type,
        operands=(Operand("x"), Operand("weight"), Operand("bias", optional=True)),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_linears,
        decompose=decompose_linear,
        flops=product_flops,
        source="PyTorch linear",
    ),
    OpSpec(
        "gemm",
        "linear",
        exactly(gemm),
        _gemm_type,
        operands=_ABC,
        attributes=(
            Attribute("alpha", 1.0),
            Attribute("beta", 1.0),
            Attribute("trans_a", False),
            Attribute("trans_b", False),
        ),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_gemms,
        decompose=decompose_gemm,
        flops=product_flops,
        source="ONNX Gemm-13",
    ),
    OpSpec(
        "einsum",
        "linear",
        exactly(einsum),
        _einsum_type,
        operands=(Operand("x"),),
        variadic=True,
        attributes=(Attribute("subscripts"),),
        accumulation=WIDE,
        tolerance=LOOSE,
        relax="relax.einsum",
        cases=_sums,
        flops=_einsum_flops,
        source="ONNX Einsum-12",
    ),
    OpSpec(
        "outer",
        "linear",
        np.multiply.outer,
        _outer_type,
        operands=(Operand("x"), Operand("y")),
        dtypes=(*FLOATS, *INTS),
        relax="relax.outer",
        cases=lambda: (
            Case("vectors", (normal(3), normal(4, seed=1))),
            Case("nan", (array("float32", [np.nan, 1]), array("float32", [0, np.inf]))),
            Case("zero-size", (normal(0), normal(4))),
        ),
    ),
    OpSpec(
        "det",
        "linear",
        exactly(det),
        _det_type,
        dtypes=("float32", "float64"),
        tolerance=LOOSE,
        cases=_determinants,
        flops=lambda types, results, attrs: (
            elements(types[0]) * (n if isinstance(n := types[0].shape[-1], int) else 1) * 2 / 3
        ),
        source="ONNX Det-22",
    ),
)
