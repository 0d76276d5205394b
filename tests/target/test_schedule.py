"""Conv2dProblem's derived extents, against the definition of a convolution."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from uif_tvm.target.schedule import Conv2dProblem

small = st.integers(1, 4)
PLAIN = Conv2dProblem(1, 8, 9, 9, 8, (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, "float32")


@given(size=st.integers(8, 20), kernel=small, stride=small, dilation=st.integers(1, 2), pad=small)
def test_extent_counts_the_windows_that_fit(size, kernel, stride, dilation, pad):
    problem = replace(
        PLAIN,
        in_height=size,
        in_width=size,
        kernel=(kernel, kernel),
        strides=(stride, stride),
        padding=(pad, 0, pad, 1),
        dilation=(dilation, dilation),
    )

    def windows(length: int) -> int:
        reach = dilation * (kernel - 1)
        return sum(1 for start in range(0, length, stride) if start + reach < length)

    assert problem.out_height == windows(size + 2 * pad)
    assert problem.out_width == windows(size + 1)


def test_depthwise():
    assert replace(PLAIN, groups=8).depthwise
    assert not replace(PLAIN, groups=8, out_channels=16).depthwise
    assert not PLAIN.depthwise
    one = replace(PLAIN, in_channels=1, out_channels=1)
    assert not one.depthwise
