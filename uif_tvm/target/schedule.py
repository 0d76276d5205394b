"""Contracts between the compiler and a target's schedules.

A *planner* is asked by graph passes, before kernels exist, which blocked layout or packing the
target's kernels want. A *schedule rule* is asked afterwards, per fused kernel, to rewrite its
TensorIR. Both decline with a :class:`~uif_tvm.target.spec.Refusal`, never silently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tvm

    from uif_tvm.target.spec import Machine, Refusal, TargetSpec

#: Block annotation that kernels in ``uif_tvm.kernels`` set on their anchor block; the value is
#: the kernel family's name and rules match on it.
FAMILY_ATTR = "uif.family"

#: Block annotation of packed matmuls whose panels are wider than the columns of the result that
#: come from them: the number of these.
COLUMNS_ATTR = "uif.columns"

#: Refusal code of a rule that is made for another kind of kernel; reports leave such out.
OTHER_FAMILY = "family"


@dataclass(frozen=True)
class Conv2dProblem:
    """One 2-D convolution: NCHW data, OIHW weights; lengths in elements, pads as (t, l, b, r)."""

    batch: int
    in_channels: int
    in_height: int
    in_width: int
    out_channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str

    @property
    def out_height(self) -> int:
        """Rows of the result."""
        return self._extent(0, self.in_height, self.padding[0] + self.padding[2])

    @property
    def out_width(self) -> int:
        """Columns of the result."""
        return self._extent(1, self.in_width, self.padding[1] + self.padding[3])

    @property
    def depthwise(self) -> bool:
        """One filter per input channel (channel multiplier 1)."""
        return self.groups == self.in_channels == self.out_channels and self.groups > 1

    def _extent(self, axis: int, size: int, pad: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (size + pad - reach) // self.strides[axis] + 1


@dataclass(frozen=True)
class MatmulProblem:
    """``[batch..., M, K] x [K, N]`` with constant right-hand side (``m`` counts all rows).

    ``paired``: a panel holds columns of two matrices, half and half, each in whole vectors.
    """

    m: int
    n: int
    k: int
    dtype: str
    paired: bool = False


@dataclass(frozen=True)
class Conv2dPlan:
    """Blocked layouts: activations ``N C/cb H W cb``, weights ``O/ob I/ib KH KW ib ob``."""

    channel_block: int
    in_block: int
    out_block: int


@dataclass(frozen=True)
class MatmulPlan:
    """Packed weight layout ``N/nb K nb`` (N padded with zeros up to a multiple of ``nb``).

    Args:
        n_block: columns of one packed panel.
        m_block: rows of the register tile; the kernel computes whole tiles.
    """

    n_block: int
    m_block: int


@dataclass(frozen=True)
class WinogradPlan:
    """A convolution through F(tile x tile, 3 x 3), and what the planner's cost models say.

    Args:
        tile: rows and columns of a tile of results.
        out_block: output channels per weight block.
        cycles, direct_cycles: estimated cycles of this kernel and of the direct one.
    """

    tile: int
    out_block: int
    cycles: float
    direct_cycles: float


@dataclass(frozen=True)
class AttentionProblem:
    """One attention; extents that are known at run time only are 0.

    Args:
        batch: independent problems.
        heads: heads of queries; ``groups`` of keys and values.
        queries, keys: positions of either.
        depth: features of queries and keys; ``width`` of values.
        dtype: element type in memory; sums are float32 at least.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    depth: int
    width: int
    dtype: str


@dataclass(frozen=True)
class AttentionPlan:
    """Blocks of a fused attention kernel.

    Args:
        tile_rows: rows of queries of one register tile.
        panel: keys of one register tile of scores.
        columns: features of one register tile of results.
        key_block: keys between two updates of the running softmax; a multiple of ``panel``.
        row_block: rows of queries of one task; a multiple of ``tile_rows``.
    """

    tile_rows: int
    panel: int
    columns: int
    key_block: int
    row_block: int


class KernelPlanner(Protocol):
    """Chooses layouts for graph passes; must be a pure function of the problem and machine."""

    version: int

    def conv2d(self, problem: Conv2dProblem, machine: Machine) -> Conv2dPlan | Refusal:
        """Blocked layout for a convolution, or why the kernel library has none."""
        ...

    def winograd(
        self, problem: Conv2dProblem, machine: Machine, tiles: tuple[int, ...]
    ) -> WinogradPlan | Refusal:
        """Winograd's algorithm where it is faster than the direct kernel, or why it is not.

        ``tiles`` are the sizes of tiles of results that are accurate enough, at least one.
        """
        ...

    def matmul(self, problem: MatmulProblem, machine: Machine) -> MatmulPlan | Refusal:
        """Packed layout for a constant right-hand side, or why there is none."""
        ...

    def attention(self, problem: AttentionProblem, machine: Machine) -> AttentionPlan | Refusal:
        """Blocks of a fused attention kernel, or why the kernel library has none."""
        ...


@dataclass(frozen=True)
class Scheduled:
    """A scheduled kernel and a short description of the choice (tile sizes and the like)."""

    func: tvm.tirx.PrimFunc
    detail: str = ""


class ScheduleRule(Protocol):
    """Rewrites one fused kernel. Raise version whenever the output for any kernel changes.

    Fusion asks the rules before it merges kernels. One whose ``apply`` takes long may have a
    method ``plan(func, target)`` beside it, which returns a refusal exactly where ``apply`` does,
    and else anything; it is asked then.
    """

    name: str
    version: int
    #: ``"hand-written"`` or ``"generic"``: how reports class the kernel.
    kind: str

    def apply(self, func: tvm.tirx.PrimFunc, target: TargetSpec) -> Scheduled | Refusal:
        """Schedule ``func`` or say why this rule does not fit it."""
        ...
