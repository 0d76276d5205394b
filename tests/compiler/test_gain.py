"""Gains: what is saved, priced by the target's roofline, and the decision that it leads to."""

from __future__ import annotations

import pytest

from tests.models import context
from uif_tvm.compiler.gain import Gain, consider


def test_estimate_is_traffic_arithmetic_and_launches_at_peak_rates():
    ctx = context()
    roofline = ctx.target.roofline
    gain = Gain(bytes=4e6, launches=2, flops=1e6)
    want = 4e6 / (roofline.gbps * 1e3) + 1e6 / (roofline.gflops["float32"] * 1e3)
    assert gain.microseconds(ctx.target) == pytest.approx(want + 2 * roofline.launch_us)
    assert gain.figures()["basis"] == "roofline"


def test_arithmetic_of_a_type_without_a_figure_counts_at_the_slowest_rate():
    ctx = context()
    slowest = min(ctx.target.roofline.gflops.values())
    saved = Gain(flops=1e6, dtype="int8").microseconds(ctx.target)
    assert saved == pytest.approx(1e6 / (slowest * 1e3))


def test_measured_figure_outweighs_the_estimate_and_is_not_added_up():
    ctx = context()
    measured = Gain(bytes=1e9, measured_us=-3.0)
    assert measured.microseconds(ctx.target) == -3.0
    assert measured.figures()["basis"] == "measured"
    assert (measured + Gain(launches=1)) == Gain(bytes=1e9, launches=1)


def test_consider_fires_where_it_pays():
    ctx = context()
    assert consider(ctx, "merge", "q", Gain(bytes=1000, launches=1), "one product for 3")
    decision = ctx.report.decisions[0]
    assert (decision.fired, decision.subject, decision.reason) == (True, "q", "one product for 3")
    assert (decision.bytes_saved, decision.launches_saved) == (1000, 1)
    assert decision.gain_us > 0


def test_consider_declines_with_the_loss():
    ctx = context()
    assert not consider(ctx, "merge", "q", Gain(bytes=-4e6), "merged", "slices copy 4 MB")
    decision = ctx.report.decisions[0]
    assert decision.reason.startswith("does not pay: slices copy 4 MB, ")
    assert decision.reason.endswith(" us lost")
    assert decision.gain_us < 0
