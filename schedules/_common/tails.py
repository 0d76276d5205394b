"""Whole tiles without conditions, the last one with them.

Splitting a loop whose extent the tile does not divide leaves a predicate in the innermost block.
Inside a vectorised loop such a predicate turns every store into scalar code, in whole tiles as
well. :func:`peel_tails` tests once per tile instead:

    for i in vectorized(16): if base + i < n: store
    ->  if base + 15 < n: (for i in vectorized(16): store)
        else: (for i in serial(16): if base + i < n: store)

It relies on predicates being conjunctions of ``index < extent`` with indices that grow with the
inner loops, which is what schedule primitives make; others are left as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


def peel_tails(func: PrimFunc) -> PrimFunc:
    """Apply the rewrite of the module text to every predicated vector loop of ``func``."""
    import tvm_ffi
    from tvm import tirx

    def visit(loop: Any, mutator: Any) -> Any:
        chain, realize = _perfect_nest(loop)
        # Only loops that are unrolled or vectorised throughout make one tile.
        if realize is None or not all(_in_tile(lp) for lp in chain):
            return mutator.default_mutate(loop)
        if not any(lp.kind == tirx.ForKind.VECTORIZED for lp in chain):
            return loop
        peeled = _peel(chain, realize)
        return loop if peeled is None else peeled

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, visit)])
    return func.with_body(body)


def _in_tile(loop: Any) -> bool:
    from tvm import tirx

    return loop.kind in (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


def _perfect_nest(loop: Any) -> tuple[list[Any], Any]:
    """Loops from ``loop`` down to the one block below them, or no block at all."""
    from tvm import s_tir, tirx

    chain = []
    node = loop
    while isinstance(node, tirx.For):
        chain.append(node)
        node = node.body
    return chain, node if isinstance(node, s_tir.SBlockRealize) else None


def _peel(chain: list[Any], realize: Any) -> Any:
    """The two-way test over one tile, or ``None`` when there is nothing to test."""
    from tvm import s_tir, sym, tirx

    terms = _conjuncts(realize.predicate)
    if not terms or not all(isinstance(term, tirx.LT) for term in terms):
        return None
    last = {lp.loop_var: lp.min + lp.extent - 1 for lp in chain}
    analyzer = sym.Analyzer()
    whole = [analyzer.simplify(_substitute(term, last)) for term in terms]
    condition = whole[0]
    for term in whole[1:]:
        condition = tirx.And(condition, term)
    fast: Any = s_tir.SBlockRealize(realize.iter_values, True, realize.block)
    slow: Any = realize
    for lp in reversed(chain):
        fast = tirx.For(lp.loop_var, lp.min, lp.extent, lp.kind, fast)
        slow = tirx.For(lp.loop_var, lp.min, lp.extent, tirx.ForKind.SERIAL, slow)
    return tirx.IfThenElse(condition, fast, slow)


def _conjuncts(predicate: Any) -> list[Any]:
    """Terms of a conjunction; none for a predicate that is always true."""
    from tvm import tirx

    if isinstance(predicate, tirx.And):
        return _conjuncts(predicate.a) + _conjuncts(predicate.b)
    if isinstance(predicate, tirx.IntImm):
        return []
    return [predicate]


def _substitute(expr: Any, values: dict[Any, Any]) -> Any:
    import tvm_ffi
    from tvm import tirx

    def visit(var: Any) -> Any:
        return next((new for old, new in values.items() if old.same_as(var)), var)

    return tvm_ffi.structural_map(expr, [(tirx.Var, visit)])
