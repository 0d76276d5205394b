"""Complex numbers as pairs of real ones: what rotary embeddings and spectrograms need natively.

The rest of complex arithmetic runs on the host; see :mod:`uif_tvm.frontends.torch.pairs`.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from uif_tvm.frontends.torch.emitter import Dim, Emitter, is_tensor
from uif_tvm.frontends.torch.pairs import COMPLEX, PARTS, Pair, is_complex
from uif_tvm.frontends.torch.registry import RefusedError, converts


def _made(cx: Emitter, expr: relax.Expr) -> Pair:
    return Pair(expr, COMPLEX[cx.out.dtype][0])


def _shape(x: Pair) -> list[Dim]:
    return Emitter.shape(x.expr)[:-1]


def _parts(cx: Emitter, x: Any) -> tuple[relax.Expr, str]:
    """``x`` as pairs in the result's precision; real tensors and numbers get a zero part."""
    dtype = COMPLEX[cx.out.dtype][1]
    if isinstance(x, Pair):
        return cx.cast(x.expr, dtype), dtype
    if isinstance(x, (bool, int, float, complex)):
        number = complex(x)
        return cx.const(_array([number.real, number.imag]), dtype), dtype
    if not is_tensor(x):
        raise RefusedError(f"argument {x!r} is neither a tensor nor a plain number")
    return _joined(cx, cx.cast(x, dtype), None, cx.shape(x), dtype), dtype


def _array(values: list[float]) -> Any:
    import numpy as np

    return np.array(values)


def _joined(
    cx: Emitter, real: relax.Expr, imaginary: relax.Expr | None, shape: list[Dim], dtype: str
) -> relax.Expr:
    real = cx.reshape(cx.broadcast(real, shape), [*shape, 1])
    if imaginary is None:
        other = cx.full([*shape, 1], 0, dtype)
    else:
        other = cx.reshape(cx.broadcast(imaginary, shape), [*shape, 1])
    return cx.emit(relax.op.concat([real, other], axis=len(shape)))


@converts("aten.view_as_complex.default", complex_numbers=True)
def view_as_complex(cx: Emitter, x: Any) -> Any:
    """Pairs are how complex numbers are held."""
    return _made(cx, x)


@converts("aten.view_as_real.default", complex_numbers=True)
def view_as_real(cx: Emitter, x: Pair) -> Any:
    """Pairs are how complex numbers are held."""
    return x.expr


@converts("aten.complex.default", complex_numbers=True)
def from_parts(cx: Emitter, real: Any, imaginary: Any) -> Any:
    """Complex numbers of their parts."""
    dtype = COMPLEX[cx.out.dtype][1]
    return _made(cx, _joined(cx, real, imaginary, cx.dims(cx.out.shape), dtype))


@converts("aten.polar.default", complex_numbers=True)
def polar(cx: Emitter, length: Any, angle: Any) -> Any:
    """Complex numbers of their absolute values and angles."""
    dtype, shape = COMPLEX[cx.out.dtype][1], cx.dims(cx.out.shape)
    parts = [
        cx.emit(relax.op.multiply(length, cx.emit(function(angle))))
        for function in (relax.op.cos, relax.op.sin)
    ]
    return _made(cx, _joined(cx, parts[0], parts[1], shape, dtype))


@converts("aten.real.default", complex_numbers=True)
def real_part(cx: Emitter, x: Pair) -> Any:
    """Real parts."""
    return _part(cx, x, 0)


@converts("aten.imag.default", complex_numbers=True)
def imaginary_part(cx: Emitter, x: Pair) -> Any:
    """Imaginary parts."""
    return _part(cx, x, 1)


def _part(cx: Emitter, x: Pair, which: int) -> relax.Expr:
    shape = _shape(x)
    picked = relax.op.strided_slice(x.expr, [len(shape)], [which], [which + 1])
    return cx.reshape(cx.emit(picked), shape)


@converts("aten._to_copy.default", complex_numbers=True)
def to_copy(cx: Emitter, x: Any, *_: Any) -> Any:
    """Other precision, or a real tensor as a complex one; the other way loses a part."""
    if not is_complex(cx.out):
        raise RefusedError("dropping the imaginary part is left to the host")
    return _made(cx, _parts(cx, x)[0])


@converts("aten._conj.default", "aten._conj_physical.default", complex_numbers=True)
def conjugate(cx: Emitter, x: Pair) -> Any:
    """The imaginary part negated."""
    return _made(cx, cx.emit(relax.op.multiply(x.expr, cx.const(_array([1, -1]), PARTS[x.dtype]))))


@converts("aten.add.Tensor", complex_numbers=True)
def add(cx: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    """Sum, part by part."""
    return _sum(cx, a, b, alpha, relax.op.add)


@converts("aten.sub.Tensor", complex_numbers=True)
def subtract(cx: Emitter, a: Any, b: Any, alpha: Any = 1) -> Any:
    """Difference, part by part."""
    return _sum(cx, a, b, alpha, relax.op.subtract)


def _sum(cx: Emitter, a: Any, b: Any, alpha: Any, combine: Any) -> Any:
    if alpha != 1:
        raise RefusedError(f"sums of complex numbers with alpha {alpha} are not supported")
    (left, _), (right, _) = _parts(cx, a), _parts(cx, b)
    return _made(cx, cx.emit(combine(left, right)))


@converts("aten.mul.Tensor", complex_numbers=True)
def multiply(cx: Emitter, a: Any, b: Any) -> Any:
    """``(a + bi)(c + di) = (ac - bd) + (ad + bc)i``."""
    (left, _), (right, _) = _parts(cx, a), _parts(cx, b)
    shape = cx.dims(cx.out.shape)

    def read(tensor: te.Tensor, index: Any, part: int) -> Any:
        offset = len(index) - (len(tensor.shape) - 1)
        at = [
            0 if isinstance(size, tirx.IntImm) and int(size) == 1 else index[offset + axis]
            for axis, size in enumerate(tensor.shape[:-1])
        ]
        return tensor(*at, part)

    def kernel(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        def element(*ix: Any) -> Any:
            *index, part = ix
            a, b, c, d = (read(t, index, p) for t in (x, y) for p in (0, 1))
            return tirx.Select(part == 0, a * c - b * d, a * d + b * c)

        sizes = [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in (*shape, 2)]
        return te.compute(sizes, element, name="complex_multiply")

    return _made(cx, cx.te(kernel, left, right, name="complex_multiply"))


@converts(
    "aten.view.default",
    "aten._unsafe_view.default",
    "aten.reshape.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dims",
    "aten.squeeze.dim",
    complex_numbers=True,
)
def reshape(cx: Emitter, x: Pair, *_: Any) -> Any:
    """Another shape for the same elements."""
    return _made(cx, cx.reshape(x.expr, [*cx.dims(cx.out.shape), 2]))


@converts("aten.permute.default", complex_numbers=True)
def permute(cx: Emitter, x: Pair, dims: list[int]) -> Any:
    """Axes in another order."""
    rank = len(dims)
    return _made(cx, cx.permute(x.expr, [*(dim % rank for dim in dims), rank]))


@converts("aten.transpose.int", complex_numbers=True)
def transpose(cx: Emitter, x: Pair, first: int, second: int) -> Any:
    """Two axes exchanged."""
    rank = len(_shape(x))
    axes = list(range(rank + 1))
    if rank:
        a, b = first % rank, second % rank
        axes[a], axes[b] = b, a
    return _made(cx, cx.permute(x.expr, axes))


@converts("aten.expand.default", complex_numbers=True)
def expand(cx: Emitter, x: Pair, *_: Any) -> Any:
    """Axes of one element repeated."""
    return _made(cx, cx.broadcast(x.expr, [*cx.dims(cx.out.shape), 2]))


@converts("aten.cat.default", complex_numbers=True)
def concatenate(cx: Emitter, tensors: list[Any], dim: int = 0) -> Any:
    """Tensors one after the other."""
    pairs = [_parts(cx, x)[0] for x in tensors]
    rank = len(cx.out.shape)
    if any(len(cx.shape(pair)) != rank + 1 for pair in pairs):
        raise RefusedError("concatenating empty tensors of other ranks is not supported")
    return _made(cx, cx.emit(relax.op.concat(pairs, axis=dim % rank)))
