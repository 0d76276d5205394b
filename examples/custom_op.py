"""An operator of your own: its meaning, a kernel, and where it comes from, in one call.

    python examples/custom_op.py

Two operators that uif does not know: ``acme::Swoosh`` in an ONNX model and ``acme::swoosh`` in a
PyTorch module are one activation, and get a kernel. ``acme::ScaledResidual`` needs none: it is
told in terms of standard operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

import uif
from uif_tvm.ops import infer
from uif_tvm.ops.spec import Array, Attribute, Case, OpSpec


def reference(x: Array, beta: float) -> Array:
    """What the operator means: x * sigmoid(beta * x) + x."""
    return (x / (1 + np.exp(-beta * x)) + x).astype(x.dtype)


def kernel(x: Any, beta: float) -> Any:
    """The same as a tensor expression: one element of the result from one of ``x``."""
    from tvm import te, tirx

    def at(*i: Any) -> Any:
        v = x(*i)
        return v * tirx.sigmoid(v * tirx.const(beta, str(x.dtype))) + v

    # A target's schedule rules may look for the family; others treat it as any loop.
    return te.compute(x.shape, at, name="swoosh", attrs={"uif.family": "acme_swoosh"})


SWOOSH = OpSpec(
    "acme_swoosh",
    "activation",
    reference,
    infer=infer.same,
    attributes=(Attribute("beta", 1.0),),
    cases=lambda: [Case("plain", (np.linspace(-4, 4, 9, dtype=np.float32),))],
    source="Acme's operator manual",
)


def scaled_residual(builder: Any, operands: Any, attrs: Any) -> Any:
    """x + factor * y, in standard operators."""
    x, y = operands
    factor = builder.const(attrs["factor"], builder.dtype(y))
    return builder.op("add", x, builder.op("multiply", y, factor))


uif.register_op(SWOOSH, kernel=kernel, fusion="elementwise", onnx="acme::Swoosh",
                torch="acme::swoosh")  # fmt: skip
uif.register_op(onnx="acme::ScaledResidual", convert=scaled_residual)


@torch.library.custom_op("acme::swoosh", mutates_args=())
def swoosh(x: torch.Tensor, beta: float) -> torch.Tensor:
    """PyTorch's side of it."""
    return x * torch.sigmoid(beta * x) + x


@swoosh.register_fake
def _(x: torch.Tensor, beta: float) -> torch.Tensor:
    return torch.empty_like(x)


class Block(torch.nn.Module):
    """A layer that uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Linear, then the activation."""
        return swoosh(self.linear(x), 1.5)


def onnx_model() -> onnx.ModelProto:
    """y = x + 0.5 * Swoosh(x), with operators of the domain ``acme``."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Swoosh", ["x"], ["s"], domain="acme", beta=2.0),
            helper.make_node("ScaledResidual", ["x", "s"], ["y"], domain="acme", factor=0.5),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [2, 8])],
        [value("y", TensorProto.FLOAT, [2, 8])],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    )


def main() -> None:
    """Compile and check both."""
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)

    uif.export(onnx_model(), x, output_path="custom_onnx.uif")
    engine = uif.load("custom_onnx.uif")
    (y,) = engine.run(x)
    print("ONNX: largest difference", np.abs(y - (x + 0.5 * reference(x, 2.0))).max())
    for row in engine.placement():
        print(f"  {row['op']}: {row['where']}")

    block = Block().eval()
    uif.export(block, torch.from_numpy(x), output_path="custom_torch.uif")
    (y,) = uif.load("custom_torch.uif").run(x)
    with torch.no_grad():
        expected = block(torch.from_numpy(x)).numpy()
    print("PyTorch: largest difference", np.abs(y - expected).max())


if __name__ == "__main__":
    main()
