"""What a converter sees of its node, and the verbs it builds Relax with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from tvm import ir, relax, tirx

from uif_tvm.errors import ImportModelError, UsageError
from uif_tvm.frontends.onnx.guesses import Guesses
from uif_tvm.frontends.onnx.ratio import Ratio
from uif_tvm.frontends.onnx.symbolic import call_with_dims
from uif_tvm.frontends.onnx.validate import node_label
from uif_tvm.frontends.onnx.values import (
    SIZE_PREFIX,
    Array,
    Dim,
    Dynamic,
    HostSequence,
    Known,
    SequenceValue,
    Symbolic,
    Tensor,
    Value,
    decide,
    same_dim,
    shape_of,
    simplify,
)
from uif_tvm.runtime.elements import stored_dtype
from uif_tvm.runtime.strings import TEXT, Strings

if TYPE_CHECKING:
    from tvm.relax import BlockBuilder

    from uif_tvm.frontends.onnx.notes import Notes


#: Elements of a tensor whose extents are read at run time.
MAX_SIZED = 1 << 31


class Unsupported(Exception):
    """A converter declines: this use of the operator is not supported, for the reason given."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class Importer(Protocol):
    """The part of the graph importer that converters use."""

    bb: BlockBuilder
    host_fallback: bool
    strings: Strings
    notes: Notes
    guesses: Guesses

    def constant(self, array: Array) -> relax.Expr:
        """A Relax constant, shared between uses of one array."""

    def materialise(self, value: Symbolic, name: str) -> relax.Expr:
        """Symbolic elements written into a tensor."""

    def open_blocks(self) -> tuple[int, ...]:
        """The branch bodies under construction; variables of others are out of scope."""

    def checked_dims(self) -> set[tuple[str, str]]:
        """Pairs of dimensions that the current block compares at run time."""

    def open_block(self) -> None:
        """Begin a binding block of its own; what is defined there is out of scope outside."""

    def close_block(self) -> relax.BindingBlock:
        """End the block begun last."""

    def run_branch(self, graph: Any) -> tuple[list[Value], relax.BindingBlock]:
        """Convert a subgraph into a binding block of its own."""

    def run_subgraph(self, graph: Any, bindings: dict[str, Value]) -> list[Value]:
        """Convert a subgraph in the scope of the current node; returns its outputs."""

    def specialise(self, expr: relax.Expr) -> Array | None:
        """The example value of a model input that has to be known at import."""

    def count_removed(self, op_type: str) -> None:
        """Note an operator that means nothing at inference."""


class NodeContext:
    """One node being converted.

    Args:
        importer: the graph importer.
        node: the ``NodeProto``.
        version: operator set version of the node's domain.
        attrs: attributes as Python values, defaults of the schema filled in.
        inputs: values of the inputs, ``None`` for those left out.
    """

    def __init__(
        self,
        importer: Importer,
        node: Any,
        version: int,
        attrs: dict[str, Any],
        inputs: Sequence[Value | None],
    ) -> None:
        self.importer = importer
        self.bb = importer.bb
        self.node = node
        self.version = version
        self.attrs = attrs
        self.inputs = list(inputs)
        self.op_type = str(node.op_type)
        self.outputs = [str(name) for name in node.output]
        self._name = self.outputs[0] if self.outputs and self.outputs[0] else node_label(node)

    # --- reading -----------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Whether an optional output is used."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def value(self, index: int) -> Value:
        """An input; missing ones are the model's fault."""
        if not self.has(index):
            raise self.invalid(f"input {index} is missing")
        value = self.inputs[index]
        if value is None:
            raise self.invalid(f"input {index} is missing")
        return value

    def tensor(self, index: int) -> Tensor:
        """An input that must be a tensor."""
        value = self.value(index)
        if not isinstance(value, (Known, Symbolic, Dynamic)):
            raise self.invalid(f"input {index} must be a tensor")
        return value

    def sequence(self, index: int) -> tuple[Value, ...]:
        """Items of an input that must be a sequence."""
        value = self.value(index)
        if isinstance(value, HostSequence):
            raise Unsupported("a sequence made at run time")
        if not isinstance(value, SequenceValue):
            raise self.invalid(f"input {index} must be a sequence")
        return value.items

    def expr(self, index: int) -> relax.Expr:
        """An input as a Relax expression."""
        return self.as_expr(self.tensor(index))

    def array(self, index: int) -> Array | None:
        """An input's elements if they are known at import."""
        value = self.tensor(index)
        return value.array if isinstance(value, Known) else None

    def known(self, index: int, what: str, rather_host: bool = False) -> Array:
        """An input's elements, which must be known at import.

        Those of a model input may be compiled in, from its example.

        Args:
            rather_host: leave the node to the host instead, where that is allowed: for operators
                that cost little there.

        Raises:
            Unsupported: they arrive at run time.
        """
        array = self.array(index)
        value = self.tensor(index)
        if isinstance(value, Dynamic) and not (rather_host and self.importer.host_fallback):
            array = self.importer.specialise(value.expr)
        if array is None:
            raise Unsupported(
                f"{what} (input {index}) arrives at run time",
                "make it a constant or an initializer of the model",
            )
        return array

    def shape(self, index: int) -> tuple[Dim, ...]:
        """Dimensions of an input."""
        return self.tensor(index).shape

    def static_shape(self, index: int) -> tuple[int, ...]:
        """Dimensions of an input, which must be static."""
        return self.static(self.shape(index))

    def static(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """The dimensions as integers; declines when one is settled at run time only."""
        if not all(isinstance(dim, int) for dim in shape):
            named = ", ".join(str(dim) for dim in shape if not isinstance(dim, int))
            raise Unsupported(
                f"it needs a fixed extent, and {named} is known at run time only",
                "leave the axis it comes from out of dynamic_shapes, so that the example fixes it",
            )
        return tuple(int(dim) for dim in shape)

    def dtype(self, index: int) -> str:
        """Dtype name of an input."""
        return self.tensor(index).dtype

    def rank(self, index: int) -> int:
        """Number of dimensions of an input."""
        return len(self.shape(index))

    def axis(self, axis: int, rank: int) -> int:
        """A non-negative axis, checked against the rank."""
        if not -rank <= axis < max(rank, 1):
            raise self.invalid(f"axis {axis} does not exist in a tensor of rank {rank}")
        return axis % rank if rank else 0

    def invalid(self, text: str) -> ImportModelError:
        """The error for a node that breaks its operator's specification."""
        label = node_label(self.node)
        return ImportModelError(
            f"node {label!r} ({self.op_type}): {text}",
            code="UIF-IMPORT-NODE",
            op=label,
            hint="check the node's attributes and operands against the operator's specification",
        )

    # --- building ----------------------------------------------------------------------------

    def as_expr(self, value: relax.Expr | Value) -> relax.Expr:
        """A value as a Relax expression; symbolic elements are written into a tensor."""
        if isinstance(value, relax.Expr):
            return value
        if isinstance(value, Dynamic):
            return value.expr
        if isinstance(value, Known):
            return self.importer.constant(value.array)
        if isinstance(value, Symbolic):
            return self.importer.materialise(value, self._name)
        raise self.invalid("a tensor is needed here")

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind an expression to a variable that carries the node's name."""
        return self.bb.emit(expr, self._name)

    def op(self, name: str, *operands: relax.Expr | None, **attrs: Any) -> Any:
        """Bind a standard operator (see ``uif_tvm.ops``); a tuple where it has several results.

        Raises:
            ImportModelError: the operands do not fit it.
        """
        from uif_tvm.standard_ops import RelaxBuilder

        try:
            return RelaxBuilder(self.bb, self._name).op(name, *operands, **attrs)
        except UsageError as error:
            raise self.invalid(str(error).splitlines()[0]) from error

    def te(self, function: Callable[..., Any], *args: Any, name: str) -> relax.Expr:
        """Bind the result of a TE function of the given expressions."""
        return self.bb.emit(self.bb.call_te(function, *args, primfunc_name_hint=name), self._name)

    def te_dims(
        self,
        function: Callable[..., Any],
        tensors: Sequence[relax.Expr],
        dims: Sequence[Dim],
        name: str,
    ) -> relax.Expr:
        """Bind the result of ``function(dims, *tensors)``, where dims may be symbolic."""
        return self.bb.emit(call_with_dims(self.bb, function, tensors, dims, name), self._name)

    def const(self, value: Any, dtype: str) -> relax.Expr:
        """A small constant; of a text only 0 makes sense, which stands for the empty one."""
        from uif_tvm.frontends.onnx.tensors import numpy_dtype_named

        chosen = stored_dtype(dtype) if dtype == TEXT else dtype
        return self.importer.constant(np.asarray(value, numpy_dtype_named(chosen)))

    def cast(self, expr: relax.Expr, dtype: str) -> relax.Expr:
        """``expr`` in another dtype; unchanged when it has it."""
        return expr if str(expr.ty.dtype) == dtype else self.emit(relax.op.astype(expr, dtype))

    def reshape(self, expr: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """``expr`` in another shape of as many elements; unchanged when it has it."""
        if tuple(shape_of(expr)) == tuple(shape) and all(isinstance(d, int) for d in shape):
            return expr
        return self._reshaped(expr, shape)

    def _reshaped(self, expr: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """Relax takes an extent of 0 for one to copy; without elements there is nothing to move."""
        wanted = relax.ShapeExpr(list(shape))
        if any(isinstance(extent, int) and extent == 0 for extent in shape):
            return self.emit(relax.op.zeros(wanted, str(expr.ty.dtype)))
        return self.emit(relax.op.reshape(expr, wanted))

    def require_equal(self, left: Dim, right: Dim) -> None:
        """Have the runtime check two dimensions that import cannot compare.

        The pattern is the constant 0: a variable there would be taken for a definition, and two
        such definitions can make a circle, on which TVM's passes recurse without end.
        """
        key = (str(left), str(right))
        if not same_dim(left, right) and key not in self.importer.checked_dims():
            self.importer.checked_dims().add(key)
            difference = self.bb.emit(relax.ShapeExpr([simplify(left - right)]))
            self.bb.match_cast(difference, relax.ShapeType([tirx.IntImm("int64", 0)]))

    def guess(self, condition: Any) -> bool:
        """Which way a condition on dimensions goes; by the example, and checked at run time,
        where that is not known at import.
        """
        truth = decide(condition)
        if truth is None:
            truth = self.importer.guesses.choose(condition)
            holds = tirx.Select(condition, tirx.const(1, "int64"), tirx.const(0, "int64"))
            self.require_equal(holds, int(truth))
        return truth

    def with_shape(self, expr: relax.Expr, shape: Sequence[Dim]) -> relax.Expr:
        """``expr`` under dimensions that equal its own at run time, which is checked."""
        now = shape_of(expr)
        if all(map(same_dim, now, shape)):
            return expr
        for mine, wanted in zip(now, shape, strict=True):
            self.require_equal(mine, wanted)
        return self._reshaped(expr, shape)

    # --- dimensions that depend on the data -----------------------------------------------------

    def dims(self, index: int, sizes: bool = False) -> list[Dim]:
        """Elements of an integer tensor input as dimension expressions.

        Elements computed at run time are read back there and become fresh symbolic dimensions.
        ``sizes`` says that they are extents and so never negative.
        """
        return [
            item if isinstance(item, (int, ir.Expr)) else int(item)
            for item in self.settled(self.tensor(index), sizes).reshape(-1)
        ]

    def settled(self, value: Tensor, sizes: bool = False) -> Array:
        """An integer tensor's elements as an object array of dimension expressions.

        Args:
            sizes: the elements are extents and so never negative.
        """
        if isinstance(value, Known):
            return value.array.astype(object)
        if isinstance(value, Symbolic):
            if any(isinstance(item, Ratio) for item in value.elements.flat):
                raise self.invalid("dimensions are integers, and these are floats")
            return value.elements
        visible = self.importer.open_blocks()
        for depth in range(len(visible), 0, -1):
            if visible[:depth] in value.settled:
                return value.settled[visible[:depth]].elements
        if visible not in value.settled:
            shape = self.static(value.shape)
            count = int(np.prod(shape))
            if count > 16:
                raise Unsupported(f"{count} dimensions would have to be read at run time")
            flat = self.cast(self.reshape(value.expr, (count,)), "int64")
            stem = f"{SIZE_PREFIX if sizes else 'd_'}{_identifier(self._name)}"
            variables = [tirx.Var(f"{stem}_{i}", "int64") for i in range(count)]
            read = self.bb.emit(relax.op.tensor_to_shape(flat))
            self.bb.match_cast(read, relax.ShapeType(variables))
            if sizes:
                self._require_room(variables)
            elements = np.empty(count, dtype=object)
            elements[:] = variables
            value.settled[visible] = Symbolic(elements.reshape(shape))
        return value.settled[visible].elements

    def _require_room(self, sizes: Sequence[Any]) -> None:
        """Have the runtime refuse extents that are negative or multiply beyond ``MAX_SIZED``.

        A product that leaves 64 bits would give a small buffer for a large loop.
        """
        one, most = (tirx.const(number, "int64") for number in (1, MAX_SIZED))
        zero, total, broken = tirx.const(0, "int64"), one, tirx.const(0, "int64")
        for size in sizes:
            total = tirx.min(total * tirx.max(tirx.min(size, most), zero), most)
            broken = tirx.max(broken, tirx.Select(size < zero, one, zero))
        broken = tirx.max(broken, tirx.Select(total >= most, one, zero))
        flag = self.bb.emit(relax.ShapeExpr([broken]))
        self.bb.match_cast(flag, relax.ShapeType([tirx.IntImm("int64", 0)]))


def _identifier(name: str) -> str:
    cleaned = "".join(c if c.isalnum() else "_" for c in name)[-24:].strip("_")
    return cleaned or "dim"
