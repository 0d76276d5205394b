"""What the tests of recovery passes share: graphs before and after, and their values in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from uif_tvm.relay_passes import common_subexpr, dead_code

from tests.models import context, module
from uif_tvm.compiler.graph_pass import GraphPass
from uif_tvm.compiler.report import Decision
from uif_tvm.compiler.verify import departure
from uif_tvm.ops.spec import LOOSE
from uif_tvm.relax_util import bindings, calls, constant_array, op_name
from uif_tvm.standard_ops import read

Array = np.ndarray[Any, Any]


#: Meaning of operators that no OpSpec describes.
_LACKING: dict[str, Callable[[Array, Any], Array]] = {
    "relax.square": lambda x, attrs: x * x,
    "relax.variance": lambda x, attrs: x.var(tuple(map(int, attrs.axis)), keepdims=attrs.keepdims),
}


class Emitting:
    """``relax.op`` whose calls are bound to variables at once, as frontends bind them."""

    def __init__(self, namespace: Any = relax.op) -> None:
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if not callable(found):
            return Emitting(found)

        def apply(*operands: Any, **attrs: Any) -> Any:
            builder = relax.BlockBuilder.current()
            return builder.emit(builder.normalize(found(*operands, **attrs)))

        return apply


def prepared(inputs: Sequence[Any], body: Callable[..., Any]) -> tvm.IRModule:
    """A model of one or more results, as the passes before recovery leave it."""

    def results(*operands: Any) -> Sequence[Any]:
        found = body(*operands)
        return found if isinstance(found, (list, tuple)) else [found]

    made = context()
    return common_subexpr.PASS.apply(dead_code.PASS.apply(module(inputs, results), made), made)


def recovered(
    graph_pass: GraphPass, mod: tvm.IRModule, **options: Any
) -> tuple[tvm.IRModule, list[Decision]]:
    """The module after the pass, and what the pass decided."""
    made = context(**options)
    after = graph_pass.apply(mod, made)
    relax.analysis.well_formed(after)
    return after, made.report.decisions


def operators(mod: tvm.IRModule) -> list[str]:
    """Names of the operators in the order of the graph, prefixes left out."""
    names = [op_name(call) or "" for _, call in calls(mod)]
    return [name.partition(".")[2].removeprefix("nn.") for name in names]


def fired(decisions: Sequence[Decision]) -> list[str]:
    """Names of the operators recovered."""
    return [d.reason.split(" ")[0] for d in decisions if d.fired]


def declines(decisions: Sequence[Decision]) -> list[str]:
    """Reasons of what was declined."""
    return [d.reason for d in decisions if not d.fired]


def evaluate(mod: tvm.IRModule, *arrays: Array) -> list[Array]:
    """Results of ``main`` by the operators' references."""
    main = mod["main"]
    values: dict[Any, Any] = dict(zip(main.params, arrays, strict=True))

    def value(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return values[expr]
        if isinstance(expr, relax.TupleGetItem):
            return value(expr.tuple_value)[expr.index]
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if isinstance(expr, relax.Call):
            found = read(expr)
            if found is None:
                return _LACKING[op_name(expr) or ""](value(expr.args[0]), expr.attrs)
            spec, operands, attrs = found
            return spec.evaluate([None if x is None else value(x) for x in operands], attrs)
        return constant_array(expr)

    for binding in bindings(main):
        values[binding.var] = value(binding.value)
    found = value(main.body.body)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def assert_same_values(before: tvm.IRModule, after: tvm.IRModule, *arrays: Array) -> None:
    """Both modules have equal results, special values included.

    float32 within an operator's loose tolerance; 16-bit types within what they verify to, since
    every operator of the spelled out formula rounds to 16 bits.
    """
    with np.errstate(all="ignore"):
        pairs = zip(evaluate(before, *arrays), evaluate(after, *arrays), strict=True)
    for want, have in pairs:
        assert have.dtype == want.dtype
        if want.dtype.itemsize == 2:
            assert departure(have, want) is None
            continue
        allowed = LOOSE[want.dtype.name]
        np.testing.assert_allclose(have, want, allowed.rtol, allowed.atol)
