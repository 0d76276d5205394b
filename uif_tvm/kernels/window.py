"""Maximum over a sliding window in plain layout, any number of spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from uif_tvm.kernels.norm import MAXIMUM

if TYPE_CHECKING:
    from tvm import te


def max_pool(
    data: te.Tensor,
    out_spatial: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    before: Sequence[int],
    dilation: Sequence[int],
) -> te.Tensor:
    """``out[n, c, o..] = max over k.. of data[n, c, o s + k d - p ..]``.

    Starts from minus infinity, as padding counts, so that it never wins; NaN does.

    Args:
        data: ``[N, C, spatial..]``, floating point.
        out_spatial: result extents; positions past the input count as padding (ceil mode).
        before: padding in front of each spatial axis.
    """
    from tvm import te, tirx

    dtype = str(data.dtype)
    largest = te.comm_reducer(MAXIMUM.fold, lambda t: MAXIMUM.identity(str(t)), name="max_pool")
    taps = [te.reduce_axis((0, extent), name=f"k{axis}") for axis, extent in enumerate(kernel)]
    sizes = data.shape[2:]

    def element(n: Any, c: Any, *at: Any) -> Any:
        source, inside = [], []
        for axis, (out, tap) in enumerate(zip(at, taps, strict=True)):
            position = out * strides[axis] + tap * dilation[axis] - before[axis]
            source.append(position)
            inside += [position >= 0, position < sizes[axis]]
        value = data(n, c, *source)
        padding = tirx.const(float("-inf"), dtype)
        return largest(tirx.if_then_else(tirx.all(*inside), value, padding), axis=taps)

    return te.compute((*data.shape[:2], *out_spatial), element, name="max_pool")
