"""Winograd kernels: right for every remainder, as accurate as estimated, and planned to pay."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from uif_tvm.schedules.x86 import conv2d_tir as tir
from uif_tvm.schedules.x86.conv2d_fused import read_fused
from uif_tvm.schedules.x86.conv2d_tile import Tiles
from uif_tvm.schedules.x86.winograd import Winograd, emit
from uif_tvm.schedules.x86.winograd_nest import plan_nest

from tests.kernels import conv_reference as reference
from tests.schedules import harness
from uif_tvm.kernels import blocked_conv, winograd
from uif_tvm.kernels.layout import Window
from uif_tvm.target.spec import Machine, Refusal

RULE = Winograd()
IDS = ["wide", "middle", "narrow"]


@dataclass(frozen=True)
class Case:
    """A convolution ``[N, C, H, W] -> O``, with its kernel for one machine.

    ``vectors`` is the width of a weight block.
    """

    shape: tuple[int, int, int, int]
    out: int
    tile: int
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    vectors: int = 1
    machine: Machine = harness.WIDE

    @property
    def lanes(self) -> int:
        return self.machine.lanes("float32")

    @property
    def window(self) -> Window:
        return Window((3, 3), (1, 1), self.padding)

    @property
    def out_shape(self) -> tuple[int, ...]:
        plane = self.window.out(*self.shape[2:])
        return (self.shape[0], -(-self.out // self.lanes), *plane, self.lanes)

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(7)
        x = rng.standard_normal(self.shape)
        w = rng.standard_normal((self.out, self.shape[1], 3, 3))
        return x.astype(np.float32), w.astype(np.float32)

    def packed(self, w: np.ndarray) -> np.ndarray:
        return winograd.pack_weight(w, self.tile, self.lanes, self.vectors * self.lanes)

    def func(self) -> tirx.PrimFunc:
        x, w = self.inputs()
        return winograd.conv2d(
            reference.blocked(x, self.lanes).shape,
            self.packed(w).shape,
            (self.shape[1], self.out),
            self.padding,
            self.lanes,
            self.tile,
        )

    def run(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        func = harness.scheduled(RULE, self.func(), self.machine)
        data = reference.blocked(x, self.lanes)
        found = harness.run(func, [data, self.packed(w)], self.out_shape, "float32")
        return reference.plain(found, self.out)

    def check(self) -> None:
        x, w = self.inputs()
        expected = reference.conv2d(x, w, self.window, 1)
        np.testing.assert_allclose(self.run(x, w), expected, atol=tolerance(self), rtol=0)


def tolerance(case: Case) -> float:
    """Six expected deviations of results of ``Case.inputs``.

    Errors are relative to the size of a tile's inputs times the filter's. Over few channels the
    largest of these products lies above its root mean square, sqrt(9 C), as a large result shows.
    """
    x, w = case.inputs()
    largest = np.abs(reference.conv2d(x, w, case.window, 1)).max()
    size = max((9 * case.shape[1]) ** 0.5, float(largest))
    return 6 * winograd.expected_error(case.tile, case.shape[1]) * size


CASES = {
    "whole tiles": Case((1, 32, 8, 8), 32, 4),
    "unpadded": Case((1, 16, 10, 14), 16, 4, (0, 0, 0, 0)),
    "rests of rows and columns": Case((1, 16, 7, 9), 16, 4),
    "one-sided pads": Case((1, 16, 9, 6), 16, 4, (0, 1, 2, 0)),
    "wide pads": Case((1, 16, 3, 2), 16, 4, (2, 2, 2, 2)),
    "rests of channels": Case((1, 21, 8, 8), 19, 4),
    "few channels": Case((1, 3, 8, 8), 5, 4),
    "images share tasks": Case((3, 16, 5, 5), 16, 4),
    "partial weight block": Case((1, 20, 6, 6), 48, 4, vectors=2),
    "one partial weight block": Case((1, 20, 6, 6), 16, 4, vectors=2),
    "one pixel": Case((1, 16, 1, 1), 16, 4),
    "many tiles": Case((1, 16, 40, 44), 32, 4, vectors=2),
    "small tiles": Case((2, 18, 9, 7), 20, 2),
    "small tiles, one-sided pads": Case((1, 16, 6, 7), 48, 2, (1, 0, 0, 2), vectors=3),
}


@pytest.mark.parametrize("machine", harness.MACHINES, ids=IDS)
@pytest.mark.parametrize("name", CASES)
def test_matches_reference(name: str, machine: Machine) -> None:
    case = CASES[name]
    Case(case.shape, case.out, case.tile, case.padding, case.vectors, machine).check()


@settings(max_examples=6, deadline=None)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(3, 12), st.integers(3, 22)),
    st.integers(1, 50),
    st.sampled_from(winograd.TILES),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.integers(1, 4),
    st.sampled_from(harness.MACHINES),
)
def test_any_geometry_matches_reference(
    shape: Any, out: int, tile: int, padding: Any, vectors: int, machine: Machine
) -> None:
    Case(shape, out, tile, padding, vectors, machine).check()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(("units", "blocks"), [(1, 1), (2, 3), (3, 2), (9, 5)])
def test_tasks_cut_over_tiles_and_weight_blocks_cover_both(
    units: int, blocks: int, parallel: bool
) -> None:
    """112 tiles are nine register tiles of two sizes; with five weight blocks, rests of both."""
    case = Case((2, 20, 30, 26), 80, 4)
    x, w = case.inputs()
    func = case.func()
    kernel = read_fused(func, (winograd.WINOGRAD,), winograd.STAGE)
    nest = plan_nest(kernel, case.machine)
    cut = replace(nest.cut, tiles=Tiles.split(112, 13), units=units, blocks=blocks)
    assert (cut.tiles.count, cut.tiles.wide, nest.weight_blocks) == (9, 4, 5)
    nest = replace(nest, cut=replace(cut, parallel=parallel))
    assert nest.workspace_bytes == 36 * min(units * 13, 112) * (2 + 1) * 64
    func = tir.finish(func, emit(nest))
    data = reference.blocked(x, case.lanes)
    found = harness.run(func, [data, case.packed(w)], case.out_shape, "float32")
    expected = reference.conv2d(x, w, case.window, 1)
    np.testing.assert_allclose(
        reference.plain(found, case.out), expected, atol=tolerance(case), rtol=0
    )


def fused_with_epilogue(case: Case) -> tirx.PrimFunc:
    """``clip(conv + bias + residual, 0, 6) * gate`` as one kernel."""
    x, w = case.inputs()
    builder = relax.BlockBuilder()
    block, count = case.lanes, case.out_shape[1]
    shapes = {
        "x": reference.blocked(x, block).shape,
        "w": case.packed(w).shape,
        "bias": (1, count, 1, 1, block),
        "residual": case.out_shape,
        "gate": (case.out_shape[0], count, 1, 1, block),
    }
    args = [relax.Var(name, relax.TensorType(s, "float32")) for name, s in shapes.items()]
    with builder.function("main", args):
        with builder.dataflow():
            kernel = builder.add_func(case.func(), "winograd")
            out = relax.TensorType(case.out_shape, "float32")
            y = builder.emit(relax.call_tir(kernel, args[:2], out))
            y = builder.emit(relax.op.add(y, args[2]))
            y = builder.emit(relax.op.add(y, args[3]))
            y = builder.emit(relax.op.clip(y, 0, 6))
            y = builder.emit_output(relax.op.multiply(y, args[4]))
        builder.emit_func_output(y)
    steps = [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    mod = tvm.transform.Sequential(steps)(builder.get())
    kernels = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 1
    return kernels[0]


@pytest.mark.parametrize("name", ["rests of channels", "small tiles", "many tiles"])
def test_epilogue_is_fused(name: str) -> None:
    case = CASES[name]
    x, w = case.inputs()
    rng = np.random.default_rng(3)
    expected = reference.conv2d(x, w, case.window, 1)
    bias, gate = rng.standard_normal((2, 1, case.out, 1, 1)).astype(np.float32)
    gate = np.repeat(gate, expected.shape[0], axis=0)
    residual = rng.standard_normal(expected.shape).astype(np.float32)
    func = harness.scheduled(RULE, fused_with_epilogue(case))
    operands = [reference.blocked(a, case.lanes) for a in (bias, residual, gate)]
    inputs = [reference.blocked(x, case.lanes), case.packed(w), *operands]
    found = reference.plain(harness.run(func, inputs, case.out_shape, "float32"), case.out)
    np.testing.assert_allclose(
        found,
        np.clip(expected + bias + residual, 0, 6) * gate,
        atol=tolerance(case) * np.abs(gate).max(),
    )


@pytest.mark.parametrize(
    ("machine", "mcpu", "register"),
    [(harness.WIDE, "x86-64-v4", "zmm"), (harness.MIDDLE, "x86-64-v3", "ymm")],
    ids=IDS[:2],
)
def test_products_accumulate_in_registers(machine: Machine, mcpu: str, register: str) -> None:
    lanes = machine.lanes("float32")
    case = Case((1, 2 * lanes, 40, 40), 2 * lanes, 4, vectors=2, machine=machine)
    text = harness.assembly(harness.scheduled(RULE, case.func(), machine), mcpu)
    loops = re.findall(r"\.LBB\d+_\d+:((?:(?!\.LBB).)*?\tj\w+\t\.LBB)", text, re.DOTALL)
    # The loop over channels: multiplications, and neither spills nor reloads of accumulators.
    inner = max(loops, key=lambda body: len(re.findall(rf"vfn?m\w+ps[^\n]*%{register}", body)))
    assert len(re.findall(rf"vfmadd\w+ps[^\n]*%{register}", inner)) >= 4 * 2 * 6
    assert not re.search(rf"vmovu?a?ps\t[^\n]*\(%r[sb]p\), %{register}", inner)
    assert not re.search(rf"vmovu?a?ps\t%{register}\d+, [^\n]*\(%r[sb]p\)", inner)


def errors(case: Case, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(absolute error, results in float64)."""
    found, expected = case.run(x, w), reference.conv2d(x, w, case.window, 1)
    return np.abs(found - expected), expected


@pytest.mark.parametrize("tile", winograd.TILES)
@pytest.mark.parametrize("channels", [16, 128, 512])
def test_error_is_as_expected(tile: int, channels: int) -> None:
    case = Case((1, channels, 16, 16), 16, tile)
    error, expected = errors(case, *case.inputs())
    relative = np.sqrt(np.mean(error**2) / np.mean(expected**2))
    estimate = winograd.expected_error(tile, channels)
    assert 0.3 * estimate < relative < 1.2 * estimate


def _ramp(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape)).reshape(shape) % 97 - 48.0


ADVERSARIAL = {
    "constant input": lambda rng, s: np.full(s, 3.7),
    "positive input, as after an activation": lambda rng, s: np.abs(rng.standard_normal(s)) + 5,
    "cancelling neighbours": lambda rng, s: 1e3 * (-1.0) ** np.indices(s).sum(0) + rng.random(s),
    "large range": lambda rng, s: rng.standard_normal(s) * 10.0 ** rng.integers(-6, 7, s),
    "one large pixel": lambda rng, s: rng.standard_normal(s) + 1e6 * (np.indices(s)[3] == 5),
    "tiny numbers": lambda rng, s: rng.standard_normal(s) * 1e-30,
    "ramp": lambda rng, s: _ramp(s),
}


@pytest.mark.parametrize("tile", winograd.TILES)
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_error_is_bounded_by_the_tile_on_adversarial_input(kind: str, tile: int) -> None:
    """Relative to the largest input in reach of a tile: what the tolerance is promised against."""
    case = Case((1, 64, 16, 16), 16, tile)
    x = ADVERSARIAL[kind](np.random.default_rng(2), case.shape).astype(np.float32)
    _, w = case.inputs()
    error, _ = errors(case, x, w)
    size = winograd.transform(tile).size
    padded = np.pad(np.abs(x).max((0, 1)), ((1, 1 + tile), (1, 1 + tile)))
    reach = np.empty((16, 16))
    for y in range(16):
        for column in range(16):
            first, left = y // tile * tile, column // tile * tile
            reach[y, column] = padded[first : first + size, left : left + size].max()
    # Every term may be as large as the largest: errors no longer cancel as in a random walk.
    weight = np.abs(w).sum((1, 2, 3)).max()
    share = (error[0] / (reach * weight)).max()
    assert share < winograd.expected_error(tile, 64)


def test_nan_and_infinity_stay_in_their_tiles() -> None:
    case = Case((1, 16, 12, 12), 16, 4)
    x, w = case.inputs()
    x[0, 3, 5, 5] = np.inf
    found = case.run(x, w)
    assert not np.isfinite(found[:, :, 4:7, 4:7]).any()
    # Rows and columns 4 to 9 feed the second tile, 0 to 5 the first one (padding counted).
    assert np.isfinite(found[:, :, 8:, :]).all()
    assert np.isfinite(found[:, :, :, 8:]).all()


def test_other_kernels_and_layouts_are_refused() -> None:
    case = CASES["whole tiles"]
    spec = harness.host_spec(harness.WIDE)
    direct = blocked_conv.conv2d(
        (1, 1, 8, 8, 16), (1, 1, 3, 3, 16, 16), (16, 16), 1, case.window, 16
    )
    refusal = RULE.apply(direct, spec)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "family"
    refusal = RULE.apply(case.func(), harness.host_spec(harness.MIDDLE))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "layout"
    assert "against 8 lanes" in refusal.detail
