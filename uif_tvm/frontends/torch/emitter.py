"""What converters write with: Relax bindings, casts, constants and small tensor expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy
import torch
import tvm
from torch import fx
from tvm import relax, te, tirx
from tvm.ir import GenericConst
from tvm.sym.analyzer import Analyzer

from uif_tvm.errors import UsageError
from uif_tvm.frontends.torch.dtypes import compute_dtype, dtype_name, tensor_to_tvm
from uif_tvm.frontends.torch.registry import RefusedError
from uif_tvm.kernels.math import is_nan

Dim = Any  # int or a tirx expression
#: Constants larger than this many elements are computed at run time instead of being stored.
MAX_FOLDED_ELEMENTS = 1 << 20


class Emitter:
    """Writes the Relax code of one graph; ``node`` is the source node being converted.

    Args:
        builder: the block builder, inside a dataflow block.
        symbols: PyTorch's size symbols -> TIR variables.
    """

    def __init__(self, builder: relax.BlockBuilder, symbols: dict[str, tirx.Var]) -> None:
        self.builder = builder
        self.symbols = symbols
        #: Set by the importer before each converter is called.
        self.node: fx.Node
        self.name = ""

    # -- what PyTorch says the result is ---------------------------------------------------

    @property
    def out(self) -> Any:
        """The fake tensor (or tuple of them) that PyTorch computed for the current node."""
        return self.node.meta["val"]

    @property
    def out_dtype(self) -> str:
        """Dtype of the node's (first) result."""
        out = self.out
        first = out[0] if isinstance(out, (tuple, list)) else out
        return dtype_name(first.dtype)

    @property
    def out_shape(self) -> list[Dim]:
        """Shape of the node's (first) result."""
        out = self.out
        first = out[0] if isinstance(out, (tuple, list)) else out
        return self.dims(first.shape)

    def is_used(self, index: int) -> bool:
        """Whether anything reads element ``index`` of the node's tuple result."""
        return any(
            len(user.args) < 2 or user.args[1] == index or user.op == "output"
            for user in self.node.users
        )

    def source(self, position: int) -> Any:
        """The fake tensor behind the node's positional argument (or the scalar itself)."""
        arg = self.node.args[position]
        return arg.meta["val"] if isinstance(arg, fx.Node) else arg

    # -- sizes -----------------------------------------------------------------------------

    def dim(self, size: Any) -> Dim:
        """One size as an ``int`` or a TIR expression over the model's size symbols."""
        if isinstance(size, (int, tirx.Expr)) and not isinstance(size, bool):
            return size
        if isinstance(size, torch.SymInt):
            expr = size.node.expr
            return self._sympy(sympy.sympify(expr) if isinstance(expr, int) else expr)
        raise RefusedError(f"size {size!r} is not an integer")

    def dims(self, sizes: Sequence[Any]) -> list[Dim]:
        """Several sizes, see :meth:`dim`."""
        return [self.dim(size) for size in sizes]

    def _sympy(self, expr: sympy.Expr) -> Dim:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            if str(expr) not in self.symbols:
                raise RefusedError(
                    f"size {expr} depends on the data", "export with sizes that inputs decide"
                )
            return self.symbols[str(expr)]
        args = [self._sympy(arg) for arg in expr.args]
        if all(isinstance(arg, int) for arg in args) and expr.is_number:
            return int(expr)
        args = [tirx.IntImm("int64", arg) if isinstance(arg, int) else arg for arg in args]
        folds: dict[str, Callable[[Any, Any], Any]] = {
            "Add": lambda a, b: a + b,
            "Mul": lambda a, b: a * b,
            "FloorDiv": tirx.floordiv,
            "CleanDiv": tirx.floordiv,
            "Mod": tirx.floormod,
            "PythonMod": tirx.floormod,
            "Max": tirx.max,
            "Min": tirx.min,
        }
        fold = folds.get(type(expr).__name__)
        if fold is None:
            raise RefusedError(f"size expression {expr} is not supported")
        result = args[0]
        for arg in args[1:]:
            result = fold(result, arg)
        return Analyzer().simplify(result)

    @staticmethod
    def shape(x: relax.Expr) -> list[Dim]:
        """Sizes of a Relax tensor; static ones as ``int``."""
        return [int(d) if isinstance(d, tirx.IntImm) else d for d in x.ty.shape]

    @staticmethod
    def dtype(x: relax.Expr) -> str:
        """Dtype name of a Relax tensor."""
        return str(x.ty.dtype.dtype)

    def static(self, x: relax.Expr, what: str) -> list[int]:
        """Sizes of ``x``, refusing symbolic ones."""
        shape = self.shape(x)
        if not all(isinstance(d, int) for d in shape):
            raise RefusedError(f"{what} of a tensor with dynamic sizes {shape} is not supported")
        return shape

    def static_size(self, x: relax.Expr, axis: int, what: str) -> int:
        """One size of ``x``, refused where it is symbolic."""
        size = self.shape(x)[axis]
        if not isinstance(size, int):
            raise RefusedError(f"{what} along a dynamic size {size} is not supported")
        return size

    # -- writing ---------------------------------------------------------------------------

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression under the node's name."""
        return self.builder.emit(expr, self.name)

    def const(self, value: Any, dtype: str) -> GenericConst:
        """A constant from a Python number, NumPy array or PyTorch tensor."""
        if isinstance(value, torch.Tensor):
            return relax.const(tensor_to_tvm(value))
        if dtype == "bfloat16":
            import ml_dtypes

            return relax.const(tvm.runtime.tensor(np.asarray(value, ml_dtypes.bfloat16)))
        if not isinstance(value, np.ndarray):
            # Python integers wrap as C's do (torch.full with -1 in uint8 gives 255).
            value = np.asarray(value)
        return relax.const(tvm.runtime.tensor(np.array(value.astype(dtype), order="C")))

    def value_of(self, x: Any) -> np.ndarray | None:
        """The values of a constant, or ``None`` for anything computed at run time."""
        return x.value.numpy() if isinstance(x, GenericConst) else None

    def cast(self, x: relax.Expr, dtype: str) -> relax.Expr:
        """Convert as PyTorch does: to bool means ``!= 0``, float to int truncates."""
        have = self.dtype(x)
        if have == dtype:
            return x
        if isinstance(x, GenericConst):
            values = x.value.numpy()
            return self.const(values != 0 if dtype == "bool" else values, dtype)
        if dtype == "bool":
            if "float" in have:  # NaN counts as true; TVM's own != says NaN equals everything
                zero = tirx.const(0, have)
                return self.elementwise(
                    lambda v: tirx.any(is_nan(v), v != zero),
                    x,
                    name="is_nonzero",
                    shape=self.shape(x),
                )
            return self.emit(relax.op.not_equal(x, self.const(0, have)))
        return self.emit(relax.op.astype(x, dtype))

    def tensor(self, x: Any, dtype: str) -> relax.Expr:
        """A tensor of the given dtype from a tensor or a Python number."""
        if is_tensor(x):
            return self.cast(x, dtype)
        if isinstance(x, (bool, int, float)):
            return self.const(x, dtype)
        raise RefusedError(f"argument {x!r} is neither a tensor nor a plain number")

    def full(self, shape: Sequence[Dim], value: Any, dtype: str) -> relax.Expr:
        """A tensor filled with one number."""
        if all(isinstance(d, int) for d in shape) and math.prod(shape) <= MAX_FOLDED_ELEMENTS:
            return self.const(np.full(tuple(shape), self.value_of(self.const(value, dtype))), dtype)
        return self.emit(
            relax.op.full(relax.ShapeExpr(list(shape)), self.const(value, dtype), dtype)
        )

    def op(self, name: str, *operands: relax.Expr | None, **attrs: Any) -> Any:
        """Bind a standard operator (see ``uif_tvm.ops``); a tuple where it has several results.

        Raises:
            RefusedError: the operands do not fit it.
        """
        from uif_tvm.standard_ops import RelaxBuilder

        try:
            return RelaxBuilder(self.builder, self.name).op(name, *operands, **attrs)
        except UsageError as error:
            raise RefusedError(str(error).splitlines()[0]) from error

    def te(self, function: Callable[..., Any], *args: Any, name: str) -> relax.Expr:
        """Bind the call of a kernel made from a tensor expression."""
        return self.emit(self.builder.call_te(function, *args, primfunc_name_hint=name))

    def elementwise(
        self,
        function: Callable[..., tirx.Expr],
        *args: Any,
        name: str,
        shape: Sequence[Dim] | None = None,
    ) -> relax.Expr:
        """A kernel that applies a scalar function to broadcast arguments.

        Args:
            function: scalar TIR expressions -> the result's scalar expression.
            args: Relax tensors (broadcast to ``shape``, aligned on the right).
            name: the kernel's name.
            shape: the result's shape; the node's by default.
        """
        result = list(self.out_shape if shape is None else shape)

        def kernel(*tensors: te.Tensor) -> te.Tensor:
            return te.compute(
                [tirx.IntImm("int64", d) if isinstance(d, int) else d for d in result],
                lambda *ix: function(*(read_broadcast(t, ix) for t in tensors)),
                name=name,
            )

        return self.te(kernel, *args, name=name)

    def broadcast(self, x: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """``x`` broadcast to ``shape`` (nothing when it has it)."""
        if self.same_shape(self.shape(x), shape):
            return x
        return self.emit(relax.op.broadcast_to(x, relax.ShapeExpr(list(shape))))

    def reshape(self, x: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """``x`` with another shape (nothing when it has it)."""
        if self.same_shape(self.shape(x), shape):
            return x
        if isinstance(x, GenericConst):
            return self.const(x.value.numpy().reshape([int(d) for d in shape]), self.dtype(x))
        return self.emit(relax.op.reshape(x, relax.ShapeExpr(list(shape))))

    def permute(self, x: relax.Expr, axes: Sequence[int]) -> relax.Expr:
        """``x`` with axes in another order; constants are transposed here and now."""
        if list(axes) == list(range(len(axes))):
            return x
        if isinstance(x, GenericConst):
            moved = np.ascontiguousarray(x.value.numpy().transpose(axes))
            return relax.const(tvm.runtime.tensor(moved))
        return self.emit(relax.op.permute_dims(x, list(axes)))

    @staticmethod
    def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
        """Whether two shapes are provably equal."""
        if len(a) != len(b):
            return False
        analyzer = Analyzer()
        for x, y in zip(a, b, strict=True):
            if isinstance(x, int) and isinstance(y, int):
                if x != y:
                    return False
            elif not analyzer.can_prove_equal(x, y):
                return False
        return True

    def half_safe(self, function: Callable[..., Any], *args: Any) -> relax.Expr:
        """Apply a Relax op in the dtype PyTorch computes in, and round the result once.

        ``args`` are brought to the node's result dtype first (integers become floats).
        """
        work = compute_dtype(self.out_dtype)
        result = self.emit(function(*(self.tensor(arg, work) for arg in args)))
        return self.cast(result, self.out_dtype)


def is_tensor(x: Any) -> bool:
    """Whether ``x`` is a Relax tensor (a size or a number is not)."""
    return isinstance(x, relax.Expr) and isinstance(x.ty, relax.TensorType)


def read_broadcast(tensor: te.Tensor, indices: Sequence[Any]) -> tirx.Expr:
    """Element of ``tensor`` seen at ``indices`` of a larger shape (NumPy broadcasting)."""
    offset = len(indices) - len(tensor.shape)
    picked = [
        0 if isinstance(size, tirx.IntImm) and int(size) == 1 else indices[offset + axis]
        for axis, size in enumerate(tensor.shape)
    ]
    return tensor(*picked)
