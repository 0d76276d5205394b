"""Softmax along an axis, and activations that gate one half of a tensor with the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops import infer
from uif_tvm.ops.activation import gelu, gelu_tanh, relu
from uif_tvm.ops.elementwise import in_float32, sigmoid
from uif_tvm.ops.spec import LOOSE, Array, Attribute, Attrs, Case, OpSpec, ShapeError, TensorType

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


def softmax(x: Array, axis: int) -> Array:
    """e^x divided by its sum over the axis."""
    e = np.exp(x - np.max(x, axis, keepdims=True, initial=-np.inf))
    return e / np.sum(e, axis, keepdims=True)


def log_softmax(x: Array, axis: int) -> Array:
    """Logarithm of softmax."""
    shifted = x - np.max(x, axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


_GATES: dict[str, Callable[[Array], Array]] = {
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "none": lambda x: x,
}


def glu(x: Array, axis: int, activation: str) -> Array:
    """First half times the activation of the second half (glu, swiglu, geglu, reglu, bilinear)."""
    first, second = np.split(x, 2, axis)
    return first * _GATES[activation](second)


def _halved(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    axis = infer.axis_of(attrs["axis"], types[0].rank)
    shape = list(types[0].shape)
    if isinstance(shape[axis], int) and shape[axis] % 2:
        raise ShapeError(f"axis {axis} of extent {shape[axis]} has no halves")
    shape[axis] = shape[axis] // 2
    return (TensorType(tuple(shape), types[0].dtype),)


def _row_checked(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    infer.axis_of(attrs["axis"], types[0].rank)
    return (types[0],)


def _softmax(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    x, axis = operands[0], attrs["axis"]
    top = b.op("max", x, axis=(axis,), keepdims=True)
    e = b.op("exp", b.op("subtract", x, top))
    return b.op("divide", e, b.op("sum", e, axis=(axis,), keepdims=True))


def _log_softmax(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    x, axis = operands[0], attrs["axis"]
    shifted = b.op("subtract", x, b.op("max", x, axis=(axis,), keepdims=True))
    total = b.op("sum", b.op("exp", shifted), axis=(axis,), keepdims=True)
    return b.op("subtract", shifted, b.op("log", total))


def _glu(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
    x, axis, activation = operands[0], attrs["axis"], attrs["activation"]
    first, second = b.op("split", x, indices_or_sections=2, axis=axis)
    if activation == "none":
        return b.op("multiply", first, second)
    return b.op("multiply", first, b.op(activation, second))


def _row_cases() -> Iterable[Case]:
    x = np.linspace(-5, 5, 2 * 37, dtype=np.float32).reshape(2, 37)
    yield Case("last-axis", (x,))
    yield Case("first-axis", (x,), {"axis": 0})
    yield Case("huge", (x * 1e4,))
    masked = x.copy()
    masked[0, 5:] = -np.inf
    masked[1, 3] = np.nan
    yield Case("masked-and-nan", (masked,))
    yield Case("size-1", (x[:, :1],))
    yield Case("zero-size", (x[:0],))
    yield Case("middle-axis", (x.reshape(2, 37, 1).repeat(3, 2),), {"axis": -2})


SPECS = (
    *(
        OpSpec(
            name,
            "softmax",
            in_float32(reference),
            _row_checked,
            attributes=(Attribute("axis", -1),),
            relax=f"relax.nn.{name}",
            decompose=rule,
            cases=_row_cases,
            tolerance=LOOSE,
            accumulation={"float16": "float32", "bfloat16": "float32"},
            flops=14,
        )
        for name, reference, rule in (
            ("softmax", softmax, _softmax),
            ("log_softmax", log_softmax, _log_softmax),
        )
    ),
    OpSpec(
        "glu",
        "softmax",
        in_float32(glu),
        _halved,
        attributes=(Attribute("axis", -1), Attribute("activation", "sigmoid", tuple(_GATES))),
        decompose=_glu,
        cases=lambda: (
            *(
                Case(
                    gate,
                    (np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 12),),
                    {"activation": gate},
                )
                for gate in _GATES
            ),
            Case(
                "first-axis", (np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6),), {"axis": 0}
            ),
            Case("zero-size", (np.empty((0, 4), np.float32),)),
        ),
        tolerance=LOOSE,
        flops=14,
        source="PyTorch torch.nn.functional.glu; Shazeer, GLU Variants Improve Transformer",
    ),
)
