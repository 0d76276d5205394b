"""Operators of model authors and vendors: one call, or an entry point, for all an operator needs.

    uif.register_op(
        OpSpec("acme_swoosh", "activation", reference, infer=infer.same, attributes=(...)),
        kernel=swoosh,                 # a tensor expression; without one: composed, or host
        onnx="acme::Swoosh",           # where it comes from
        torch="acme::swoosh",
    )

The spec's name is what placement, capability predicates, reports and coverage call the operator;
its NumPy reference folds constants and is the last resort on the host. A package brings operators
through an entry point in the group ``uif.ops``, which names a function that returns one
:class:`CustomOp` or several. Entry points are loaded when a model has an operator that nothing
else knows. One that fails stays listed, with its error, and disturbs no other model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

from uif_tvm import ops
from uif_tvm.errors import UifError, UsageError
from uif_tvm.ops.spec import OpSpec

ENTRY_POINT_GROUP = "uif.ops"
NEWEST = 2**31
#: Fusion kinds of kernels, by name; see ``uif_tvm.kernels.legalize.rules``.
FUSION = ("elementwise", "broadcast", "injective", "reduction", "out_fusable", "opaque")
#: ``convert(builder, operands, attrs) -> value or tuple of values``; see ``uif_tvm.ops.build``.
Convert = Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True)
class OnnxOp:
    """An operator of ONNX models, over a range of versions of its domain, both ends included."""

    domain: str
    op_type: str
    since: int = 1
    until: int = NEWEST

    @staticmethod
    def of(source: str | OnnxOp) -> OnnxOp:
        """``"domain::Name"`` in all versions, or an ``OnnxOp`` as it is."""
        if isinstance(source, OnnxOp):
            return source
        domain, sep, op_type = str(source).rpartition("::")
        if not sep or not domain or not op_type:
            raise _misuse(f"onnx={source!r} is no 'domain::Operator'", str(source))
        return OnnxOp(domain, op_type)


@dataclass(frozen=True)
class CustomOp:
    """An operator that uif does not have by itself.

    Args:
        spec: what it means; ``None`` for a source operator that ``convert`` takes apart.
        kernel: ``kernel(*tensors, **attrs) -> te.Tensor or list``, ``None`` for operands left
            out. A block annotation ``uif.family`` (``te.compute(..., attrs=)``) lets a target's
            schedule rules recognise it.
        fusion: how the kernel fuses with its neighbours, one of ``FUSION``; found by TVM's
            analysis of the loops where ``None``.
        convert: takes a source operator in; by default its inputs are the spec's operands in
            order, and its attributes the spec's by name.
        onnx: ``"domain::Operator"`` or :class:`OnnxOp`.
        torch: ``"library::operator"``, with ``.overload`` unless that is the default.
        renamed: source attribute -> the spec's.

    Raises:
        UsageError: a part is missing or cannot be meant.
    """

    spec: OpSpec | None = None
    kernel: Callable[..., Any] | None = None
    fusion: str | None = None
    convert: Convert | None = None
    onnx: tuple[OnnxOp, ...] = ()
    torch: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "onnx", tuple(map(OnnxOp.of, _several(self.onnx))))
        object.__setattr__(self, "torch", tuple(map(_torch_name, _several(self.torch))))
        if self.spec is not None and not isinstance(self.spec, OpSpec):
            raise _misuse(f"spec must be an OpSpec, got {type(self.spec).__name__}", self.name)
        if self.spec is None and (self.convert is None or self.kernel is not None):
            raise _misuse("without a spec, convert is needed and kernel is not", self.name)
        if self.convert is not None and not (self.onnx or self.torch):
            raise _misuse("convert needs onnx= or torch=, the operators to take in", self.name)
        if self.fusion is not None and self.fusion not in FUSION:
            raise _misuse(f"fusion={self.fusion!r} is none of {', '.join(FUSION)}", self.name)
        if self.spec is not None and self.spec.relax is not None:
            raise _misuse("spec.relax names an operator of Relax; leave it out", self.name)

    @property
    def name(self) -> str:
        """The spec's name, else the first source operator's."""
        if self.spec is not None:
            return str(getattr(self.spec, "name", self.spec))
        sources = [f"{op.domain}::{op.op_type}" for op in self.onnx] + list(self.torch)
        return sources[0] if sources else "(unnamed)"


@dataclass(frozen=True)
class PluginEntry:
    """One entry point of the group ``uif.ops``: its operators, or why it failed."""

    name: str
    origin: str
    ops: tuple[str, ...] = ()
    error: str | None = None


_lock = threading.RLock()
_installed: dict[str, CustomOp] = {}


def register_op(
    spec: OpSpec | None = None,
    *,
    kernel: Callable[..., Any] | None = None,
    fusion: str | None = None,
    convert: Convert | None = None,
    onnx: str | OnnxOp | Sequence[str | OnnxOp] = (),
    torch: str | Sequence[str] = (),
    renamed: Mapping[str, str] | None = None,
    replace: bool = False,
) -> CustomOp:
    """Make an operator known; see :class:`CustomOp` for the arguments.

    Args:
        replace: take the place of an operator registered under the same name before.

    Raises:
        UsageError: a part is missing, or the name or a source operator is taken.
    """
    op = CustomOp(
        spec, kernel, fusion, convert, _several(onnx), _several(torch), dict(renamed or {})
    )
    with _lock:
        if replace and op.name in _installed:
            unregister_op(op.name)
        install(op)
    return op


def unregister_op(name: str) -> None:
    """Forget an operator that :func:`register_op` made known.

    Raises:
        UsageError: there is none of that name.
    """
    with _lock:
        if name not in _installed:
            raise _misuse("was not registered by register_op", name)
        _remove(_installed.pop(name))


def registered_ops() -> tuple[CustomOp, ...]:
    """What is registered so far, by name; entry points not loaded yet are not among it."""
    return tuple(_installed[name] for name in sorted(_installed))


def install(op: CustomOp) -> None:
    """Add an operator to the registries, all of it or nothing.

    Raises:
        UsageError: the name or a source operator is taken.
    """
    from uif_tvm.frontends import custom
    from uif_tvm.frontends.converters import registry as onnx_registry
    from uif_tvm.frontends.torch import registry as torch_registry

    with _lock:
        taken = op.name in _installed
        for source in op.onnx:
            taken |= onnx_registry.overlaps(
                source.domain, source.op_type, source.since, source.until
            )
        taken |= any(name in torch_registry.CONVERTERS for name in op.torch)
        if taken:
            raise _misuse("is registered already, or a source operator of it is", op.name)
        if op.spec is not None:
            ops.register(op.spec)
            if op.kernel is not None:
                custom.add_kernel(op)
        for source in op.onnx:
            onnx_registry.converter(
                source.op_type, domain=source.domain, since=source.since, until=source.until
            )(custom.onnx_converter(op))
        if op.torch:
            torch_registry.converts(*op.torch)(custom.torch_converter(op))
        _installed[op.name] = op


def _remove(op: CustomOp) -> None:
    from uif_tvm.frontends import custom
    from uif_tvm.frontends.converters import registry as onnx_registry
    from uif_tvm.frontends.torch import registry as torch_registry

    for source in op.onnx:
        onnx_registry.remove(source.domain, source.op_type, source.since)
    for name in op.torch:
        torch_registry.CONVERTERS.pop(name, None)
    if op.spec is not None:
        ops.unregister(op.spec.name)
        custom.remove_kernel(op)


# --- entry points -----------------------------------------------------------------------------


@cache
def plugins() -> tuple[PluginEntry, ...]:
    """Every entry point of the group, loaded; broken ones included, with their errors."""
    points = sorted(metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    return tuple(_load(point) for point in points)


def _load(point: metadata.EntryPoint) -> PluginEntry:
    origin = f"entry point {point.value}"
    if point.dist is not None:
        origin += f" of {point.dist.name} {point.dist.version}"
    done: list[CustomOp] = []
    try:
        made = point.load()
        made = made() if callable(made) else made
        for op in (made,) if isinstance(made, CustomOp) else tuple(made):
            if not isinstance(op, CustomOp):
                raise TypeError(f"it gave a {type(op).__name__}, not a CustomOp")
            install(op)
            done.append(op)
    except Exception as error:
        # A broken plug-in may raise anything; it must not take the others down.
        for op in done:
            unregister_op(op.name)
        text = error.message if isinstance(error, UifError) else str(error)
        return PluginEntry(point.name, origin, error=f"{type(error).__name__}: {text}")
    return PluginEntry(point.name, origin, tuple(op.name for op in done))


def broken_hint() -> str | None:
    """What to tell with an unknown operator: plug-ins that failed to load; ``None`` if none."""
    broken = [entry for entry in plugins() if entry.error]
    if not broken:
        return None
    listed = "; ".join(f"{entry.name} ({entry.origin}): {entry.error}" for entry in broken)
    return f"operator plug-ins that failed to load: {listed}"


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, OnnxOp)):
        return (value,)
    return tuple(value) if isinstance(value, Iterable) else (value,)


def _torch_name(name: Any) -> str:
    """``"lib::op"`` or ``"lib::op.overload"`` as the importer's registry has it."""
    library, sep, rest = str(name).partition("::")
    if not sep or not library or not rest:
        raise _misuse(f"torch={name!r} is no 'library::operator'", str(name))
    operator, _, overload = rest.partition(".")
    return f"{library}.{operator}.{overload or 'default'}"


def _misuse(what: str, name: str) -> UsageError:
    return UsageError(
        f"custom operator {name!r}: {what}",
        code="UIF-USAGE-OP",
        op=name,
        hint="see 'Adding an operator of your own' in CONTRIBUTING.md",
    )
