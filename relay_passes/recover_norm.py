"""Layer and RMS normalisation from their formulas, over the last axes of a tensor.

    (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * g + b    ->  layer_norm(x, g, b, e)
    x * k + (b - mean(x) * k),  k = g / sqrt(variance(x) + e)  ->  layer_norm(x, g, b, e)
    x / sqrt(mean(x^2) + e) * g                                ->  rms_norm(x, g, e)
    x / sqrt(sum(x^2) + e) * g                                 ->  rms_norm(x, g / sqrt(n), e / n)

``g`` and ``b`` vary along the normalised axes only; other factors and summands follow the operator
unchanged, so group and instance norms become layer norms of regrouped rows. Several axes are
normalised as one. ``x`` cast to a wider type for the norm whose result is cast back is normalised
in its own type: the operator's statistics are wide anyway, and it rounds once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from uif_tvm.relay_passes.recover_algebra import Product, product, total
from uif_tvm.relay_passes.recover_graph import Emit, Found, Graph, Near, RecoverPass, widened
from uif_tvm.relay_passes.recover_norm_core import Centred, Core, centred, mean_of, norm_core

from uif_tvm.ops import infer
from uif_tvm.ops.build import numpy_dtype
from uif_tvm.relax_util import make_constant, op_name
from uif_tvm.standard_ops import type_of

if TYPE_CHECKING:
    from tvm.ir import Call

_PRODUCTS = ("relax.multiply", "relax.divide")
_SUMS = ("relax.add", "relax.subtract")


@dataclass(frozen=True)
class Affine:
    """A norm with what follows it, while it grows along its users.

    Args:
        x: what is normalised.
        last: variable of the value so far.
        gamma, beta: scale and shift: a Relax expression over the axes, or ``None``.
        rest: factors that follow the operator, with their exponents.
        inner: variables of the nodes.
    """

    x: Any
    last: Any
    gamma: Any = None
    beta: Any = None
    rest: tuple[tuple[Any, float], ...] = ()
    inner: frozenset[Any] = field(default_factory=frozenset)


class RecoverNorm(RecoverPass):
    """Form layer_norm and rms_norm."""

    name = "recover-norm"
    roots = frozenset((*_PRODUCTS, *_SUMS))

    def match(self, graph: Graph, var: Any, call: Call) -> Found | Near | None:
        """See the module text."""
        if "float" not in str(getattr(var.ty, "dtype", "")):
            return None
        if op_name(call) in _SUMS:
            return _shifted_form(graph, var)
        found = product(graph, var)
        core = norm_core(graph, found)
        if not isinstance(core, Core):
            return core
        start = _with_factors(graph, core, found, var)
        if start is None:
            return None
        return _norm(graph, core, _grown(graph, core, start))


def _with_factors(graph: Graph, core: Core, found: Product, var: Any) -> Affine | None:
    """The norm with the other factors of its product."""
    factors = {key: power for key, power in found.factors.items() if key not in core.used}
    gamma = _number_row(core)
    rest: list[tuple[Any, float]] = []
    for constant, power in found.constants:
        row = _row(graph, constant, core)
        if row is None or not isinstance(row, np.ndarray):
            rest.append((constant, power))
            continue
        with np.errstate(divide="ignore"):
            row = row**power
        gamma = row if gamma is None else gamma * row
    for factor, power in factors.items():
        row = _row(graph, factor, core) if gamma is None and power == 1.0 else None
        if row is None:
            rest.append((factor, power))
        else:
            gamma = row
    user = graph.user(var)
    if rest and user is not None and op_name(user[1]) in _PRODUCTS:
        return None  # more factors follow: the whole product is looked at then
    if any(power not in (1.0, -1.0) for _, power in rest):
        return None
    return Affine(core.x, var, gamma, None, tuple(rest), core.inner)


def _number_row(core: Core) -> Any:
    """The norm's number factor as a row, ``None`` if it is 1."""
    dtype = str(core.x.ty.dtype)
    if abs(core.factor - 1) <= {"float16": 5e-4, "bfloat16": 4e-3}.get(dtype, 1e-7):
        return None
    extents = [type_of(core.x).shape[axis] for axis in core.axes]
    if not all(isinstance(extent, int) for extent in extents):
        return None if core.factor == 1 else np.full((), core.factor)
    return np.full(extents, core.factor)


def _row(graph: Graph, expr: Any, core: Core) -> Any:
    """``expr`` when it varies along the normalised axes only: float64 values, or a variable.

    ``None`` for others, and for variables that would have to be spread over an axis.
    """
    if not isinstance(getattr(expr, "ty", None), relax.TensorType) or expr.ty.ndim < 0:
        return None
    own, full = type_of(expr).shape, type_of(core.x).shape
    if len(own) > len(full) or type_of(expr).dtype != type_of(core.x).dtype:
        return None
    wanted = full[len(full) - len(core.axes) :]
    aligned = (1,) * (len(full) - len(own)) + own
    lead, tail = aligned[: -len(wanted)], aligned[-len(wanted) :]
    if not all(map(infer.is_one, lead)):
        return None
    whole = all(map(infer.equal, tail, wanted))
    array = graph.constant(expr)
    if array is None:
        return graph.resolve(expr) if whole else None
    fits = whole or all(
        infer.is_one(a) or infer.equal(a, b) for a, b in zip(tail, wanted, strict=True)
    )
    if not fits or not all(isinstance(extent, int) for extent in wanted):
        return None
    wide = array.astype(np.float64).reshape(tail)
    return np.broadcast_to(wide, wanted)


def _grown(graph: Graph, core: Core, norm: Affine) -> Affine:
    """Scale, shift and the cast back, as far as they follow one after the other."""
    while not norm.rest and (user := graph.user(norm.last)) is not None:
        var, call = user
        name = op_name(call)
        inner = norm.inner | {var}
        if name == "relax.astype":
            narrow = _narrowed(graph, norm, var)
            if narrow is None:
                return norm
            norm, core = (
                replace(narrow, last=var, inner=narrow.inner | {var}),
                replace(core, x=narrow.x),
            )
            continue
        if name not in ("relax.multiply", *_SUMS) or len(call.args) != 2:
            return norm
        first = graph.resolve(call.args[0]) == norm.last
        row = _row(graph, call.args[1] if first else call.args[0], core)
        if row is None or norm.beta is not None:
            return norm
        if name == "relax.multiply":
            both = isinstance(row, np.ndarray) and isinstance(norm.gamma, np.ndarray)
            if norm.gamma is not None and not both:
                return norm
            gamma = row if norm.gamma is None else row * norm.gamma
            norm = replace(norm, gamma=gamma, last=var, inner=inner)
        else:
            if name == "relax.subtract" and not (first and isinstance(row, np.ndarray)):
                return norm
            beta = -row if name == "relax.subtract" else row
            norm = replace(norm, beta=beta, last=var, inner=inner)
    return norm


def _narrowed(graph: Graph, norm: Affine, cast: Any) -> Affine | None:
    """The norm in the type that ``x`` was cast from and ``cast`` goes back to."""
    source = widened(graph, norm.x)
    if source is None or str(source.ty.dtype) != str(cast.ty.dtype):
        return None
    dtype = numpy_dtype(str(source.ty.dtype))
    rows: list[Any] = []
    for row in (norm.gamma, norm.beta):
        if isinstance(row, np.ndarray):
            if not np.array_equal(row.astype(dtype).astype(np.float64), row):
                return None
        elif row is not None:
            row = widened(graph, row)
            if row is None or str(row.ty.dtype) != str(cast.ty.dtype):
                return None
        rows.append(row)
    inner = norm.inner | {graph.resolve(norm.x)}
    return replace(norm, x=source, gamma=rows[0], beta=rows[1], inner=inner)


def _norm(graph: Graph, core: Core, norm: Affine) -> Found | Near:
    """The operator: axes taken as one, scale and shift as rows."""
    x, kind = norm.x, type_of(norm.x)
    extents = kind.shape[kind.rank - len(core.axes) :]
    known = all(isinstance(extent, int) for extent in extents)
    if not known and (len(core.axes) > 1 or norm.gamma is None or norm.beta is None):
        return Near(f"extent {extents} of the normalised axes is settled at run time")
    count = prod(extents)
    dtype = numpy_dtype(kind.dtype)

    def row(value: Any, default: float) -> Any:
        if value is None:
            return make_constant(np.full(count, default, dtype))
        if isinstance(value, np.ndarray):
            return make_constant(value.reshape(-1).astype(dtype))
        return value if value.ty.ndim == 1 else relax.op.reshape(value, (count,))

    lead = kind.shape[: kind.rank - len(core.axes)]
    one = len(core.axes) == 1
    data = x if one else relax.op.reshape(x, relax.ShapeExpr([*lead, count]))
    shift = norm.beta if core.centred else None

    def finish(emit: Emit, value: Any) -> Any:
        if not one:
            value = emit(relax.op.reshape(value, relax.ShapeExpr(list(kind.shape))))
        if not core.centred and norm.beta is not None:
            beta = norm.beta
            if isinstance(beta, np.ndarray):
                beta = make_constant(beta.astype(dtype))
            value = emit(relax.op.add(value, beta))
        for factor, power in norm.rest:
            value = emit((relax.op.multiply if power > 0 else relax.op.divide)(value, factor))
        return value

    operands = [data, row(norm.gamma, 1.0)]
    attrs: dict[str, Any] = {"axes": (-1,), "epsilon": core.epsilon}
    if core.centred:
        operands.append(row(shift, 0.0))
        attrs |= {"center": shift is not None, "scale": norm.gamma is not None}
    op = "layer_norm" if core.centred else "rms_norm"
    plain = one and not norm.rest and (core.centred or norm.beta is None)
    inner = norm.inner | {norm.last}
    return Found(norm.last, inner, op, tuple(operands), attrs, None if plain else finish)


def _shifted_form(graph: Graph, var: Any) -> Found | Near | None:
    """``x k + (b - mean(x) k)``, where ``k`` holds the deviation and the scale."""
    added = total(graph, var)
    terms = [(sign, term) for sign, term in added.terms if graph.constant(term) is None]
    if len(terms) != 2 or {sign for sign, _ in terms} != {1.0, -1.0} or added.constant:
        return None
    (_, plus), (_, minus) = sorted(terms, key=lambda item: -item[0])
    scaled, mean = product(graph, plus), product(graph, minus)
    shared = scaled.factors.keys() & mean.factors.keys()
    if len(shared) != 1 or (scaled.coefficient, mean.coefficient) != (1.0, 1.0):
        return None
    k = shared.pop()
    rest = [[f for f in item.factors if f != k] for item in (scaled, mean)]
    if [len(item) for item in rest] != [1, 1] or scaled.constants or mean.constants:
        return None
    x, average = rest[0][0], rest[1][0]
    about = mean_of(graph, average, x)
    if about is None or about[1] != 1.0:
        return None
    # ``product`` opens roots: the shared factor may be the variance itself.
    power = scaled.factors[k]
    inside = product(graph, k) if power == 1.0 else Product(factors={k: power})
    if mean.factors[k] != power or power not in (1.0, -0.5):
        return None
    nodes = about[2] | added.nodes | scaled.nodes | mean.nodes | inside.nodes
    core = norm_core(graph, inside, Centred(x, about[0], frozenset(nodes)))
    if not isinstance(core, Core):
        return core
    start = _with_factors(graph, core, inside, k)
    if start is None or start.rest:
        return None
    constants = [term for _, term in added.terms if graph.constant(term) is not None]
    beta = _row(graph, constants[0], core) if len(constants) == 1 else None
    if len(constants) > 1 or (constants and beta is None):
        return None
    whole = replace(start, last=var, beta=beta, inner=start.inner | {var})
    return _norm(graph, core, _grown(graph, core, whole))


PASS = RecoverNorm()

__all__ = ["PASS", "RecoverNorm", "centred"]
