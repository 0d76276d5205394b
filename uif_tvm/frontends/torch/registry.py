"""The table of converters: one function per PyTorch operator overload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: ``"aten.add.Tensor"`` -> function of the emitter and of the operator's schema arguments, in the
#: schema's order, all given (defaults filled in).
Converter = Callable[..., Any]

CONVERTERS: dict[str, Converter] = {}
#: The same for nodes that take or give complex tensors (as :class:`pairs.Pair`).
COMPLEX_CONVERTERS: dict[str, Converter] = {}

#: Operators that mean nothing at inference: the result is the first argument.
NO_OPS = frozenset(
    {
        "aten.alias.default",
        "aten.clone.default",
        "aten.contiguous.default",
        "aten.detach.default",
        "aten.detach_.default",
        "aten.dropout.default",
        "aten.feature_dropout.default",
        "aten.alpha_dropout.default",
        "aten.lift_fresh_copy.default",
        "aten.lift_fresh.default",
        "aten.lift.default",
        "aten.positive.default",
        "aten.resolve_conj.default",
        "aten.resolve_neg.default",
        "prims.device_put.default",
        "prims.view_of.default",
    }
)

#: Checks that the exporter adds; they have no result.
ASSERTIONS = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_async.default",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)


#: Operators that are there for what they do, print or complain, and that nothing is computed from.
EFFECTS = frozenset({"aten._linalg_check_errors.default", "aten._print.default"})


class RefusedError(Exception):
    """A converter declines one node; the importer collects these and reports all of them.

    Args:
        reason: what is not supported, with the value in it.
        hint: what the model's author can do.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def converts(*names: str, complex_numbers: bool = False) -> Callable[[Converter], Converter]:
    """Register a converter for operator overloads such as ``"aten.add.Tensor"``.

    Args:
        complex_numbers: the converter is for nodes that take or give complex tensors.
    """
    table = COMPLEX_CONVERTERS if complex_numbers else CONVERTERS

    def register(function: Converter) -> Converter:
        for name in names:
            if name in table:
                raise ValueError(f"two converters for {name}")
            table[name] = function
        return function

    return register


def find(name: str, complex_numbers: bool = False) -> Converter | None:
    """The converter of an operator; plug-ins are loaded, once, for libraries nobody knows."""
    table = COMPLEX_CONVERTERS if complex_numbers else CONVERTERS
    if name not in table and not name.startswith(("aten.", "prims.")):
        from uif_tvm.frontends.extension import plugins

        plugins()
    return table.get(name)


def op_name(target: Any) -> str:
    """``"aten.add.Tensor"`` for an overload, the qualified name for anything else callable."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        overload = schema.overload_name or "default"
        return f"{schema.name.replace('::', '.')}.{overload}"
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__name__', str(target))}".lstrip(".")
