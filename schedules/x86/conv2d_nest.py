"""The geometry of one blocked convolution kernel, and how it is cut for a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from uif_tvm.schedules.x86.conv2d_fused import FusedKernel, shape_of
from uif_tvm.schedules.x86.conv2d_tile import (
    ConvTask,
    Grid,
    Tiling,
    choose_task,
    plan_tiling,
    plane_cycles,
)

from uif_tvm.kernels.blocked_conv import CHANNELS_ATTR
from uif_tvm.kernels.layout import Window
from uif_tvm.target.spec import Refusal, dtype_bytes

if TYPE_CHECKING:
    from uif_tvm.target.spec import Machine


@dataclass(frozen=True)
class ConvNest:
    """The geometry of one convolution kernel, and how it is cut.

    Args:
        kernel: the fused function being scheduled.
        window: kernel size, strides, padding, dilation.
        per_group: real input channels of one group.
        in_block: channels per input block (1 for a plain input).
        lanes: elements of one vector, and channels per output block.
        vectors: output vectors per weight block.
        out_blocks: output blocks (vectors) of one group.
        groups: convolution groups.
        tiling: register tiles of the output plane.
        task: units of the tiling and weight blocks per parallel task.
        far_weights: the weights do not stay in the second-level cache, so fetch them early.
    """

    kernel: FusedKernel
    window: Window
    per_group: int
    in_block: int
    lanes: int
    vectors: int
    out_blocks: int
    groups: int
    tiling: Tiling
    task: ConvTask
    far_weights: bool

    @property
    def data(self) -> Any:
        """Input buffer."""
        return self.kernel.inputs[0]

    @property
    def weight(self) -> Any:
        """Weight buffer."""
        return self.kernel.inputs[1]

    @property
    def dtype(self) -> str:
        """Element type."""
        return str(self.data.dtype)

    @property
    def plain(self) -> bool:
        """The input is ``[N, C, H, W]``."""
        return len(self.data.shape) == 4

    @property
    def in_blocks(self) -> int:
        """Input blocks of one group, the last one possibly partial."""
        return -(-self.per_group // self.in_block)

    @property
    def weight_blocks(self) -> int:
        """Weight blocks of one group, the last one possibly partial."""
        return -(-self.out_blocks // self.vectors)

    @property
    def out_plane(self) -> tuple[int, int]:
        """Output rows and columns."""
        shape = shape_of(self.kernel.raw)
        return shape[2], shape[3]

    @property
    def padded_width(self) -> int:
        """Columns of the padded workspace; 0 when the input is read in place."""
        height, width = shape_of(self.data)[2:4]
        rows, columns = self.out_plane
        top, left, _, _ = self.window.padding
        last_row = self.window.rows(rows - 1, self.window.kernel[0] - 1)
        last_column = self.window.columns(columns - 1, self.window.kernel[1] - 1)
        if top <= 0 and left <= 0 and last_row < height and last_column < width:
            return 0
        return (columns - 1) * self.window.strides[1] + self.window.reach(1)

    @property
    def detail(self) -> str:
        """Short description for reports."""
        unit, column = self.tiling.units.size, self.tiling.columns.size
        pixels = f"{unit}" if self.tiling.flat else f"{unit}x{column}"
        return (
            f"tile {pixels} pixels x {self.vectors * self.lanes} channels, task "
            f"{self.task.units} units x {self.task.blocks} weight blocks, "
            f"{'parallel' if self.task.parallel else 'serial'}, "
            f"{'padded copy' if self.padded_width else 'in place'}"
        )


def plan_nest(kernel: FusedKernel, machine: Machine) -> ConvNest | Refusal:
    """Read the geometry off the anchor's annotations and cut it for ``machine``."""
    data, weight, out = kernel.inputs[0], kernel.inputs[1], shape_of(kernel.raw)
    dtype = str(data.dtype)
    if dtype != "float32" or any(str(b.dtype) != dtype for b in (weight, kernel.raw)):
        return Refusal("dtype", f"float32 throughout is needed, the input is {dtype}")
    lanes = machine.lanes(dtype)
    weight_shape = shape_of(weight)
    if out[4] != lanes or weight_shape[5] % lanes:
        return Refusal(
            "layout",
            f"output block {out[4]} and weight block {weight_shape[5]} against {lanes} lanes",
        )
    window = Window.from_attrs(kernel.anchor.annotations)
    in_channels, out_channels, groups = (int(v) for v in kernel.anchor.annotations[CHANNELS_ATTR])
    vectors = weight_shape[5] // lanes
    per_group, out_blocks = in_channels // groups, -(-(out_channels // groups) // lanes)
    tiling = plan_tiling((out[2], out[3]), _flattens(kernel, window), vectors, machine)
    steps = per_group * window.kernel[0] * window.kernel[1]
    block_bytes = steps * vectors * machine.vector_bytes
    nest = ConvNest(
        kernel=kernel,
        window=window,
        per_group=per_group,
        in_block=weight_shape[4],
        lanes=lanes,
        vectors=vectors,
        out_blocks=out_blocks,
        groups=groups,
        tiling=tiling,
        task=ConvTask(1, 1, False, 0.0),
        far_weights=block_bytes * weight_shape[0] > machine.l2_bytes // 2,
    )
    cycles = plane_cycles(tiling, vectors, steps, machine.vector_bytes)
    grid = Grid(
        batch=out[0],
        groups=groups,
        units=tiling.units.count,
        blocks=nest.weight_blocks,
        piece_cycles=cycles / tiling.units.count,
        block_bytes=block_bytes,
        unit_rows=tiling.units.size * window.strides[0],
        reach=window.reach(0) + (tiling.units.size - 1) * window.strides[0],
        row_bytes=nest.padded_width * nest.in_blocks * nest.in_block * dtype_bytes(dtype),
    )
    return replace(nest, task=choose_task(grid, machine))


def _flattens(kernel: FusedKernel, window: Window) -> bool:
    """Pixels of the plane follow each other, for the input and for all that the epilogue reads."""
    if window.kernel != (1, 1) or window.strides != (1, 1) or any(window.padding):
        return False
    plane = shape_of(kernel.raw)[2:4]
    others = [p for p in kernel.func.params if not any(p.same_as(b) for b in kernel.inputs)]
    return all(
        (len(p.shape) == 5 and shape_of(p)[2:4] in (plane, (1, 1))) or shape_of(p) == ()
        for p in others
    )
