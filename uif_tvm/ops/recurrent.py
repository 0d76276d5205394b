"""Recurrent layers, whole and by their inner loop.

``lstm``, ``gru`` and ``rnn`` are ONNX's layers (time first, one or two directions). Each is
composed of one matrix product over the whole sequence and one scan per direction
(``lstm_scan`` ...), which is what a target has a kernel for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from uif_tvm.ops.elementwise import sigmoid
from uif_tvm.ops.linear import WIDE, array, exactly, normal
from uif_tvm.ops.spec import (
    LOOSE,
    Array,
    Attribute,
    Attrs,
    Case,
    Operand,
    OpSpec,
    ShapeError,
    TensorType,
    Types,
    elements,
)

if TYPE_CHECKING:
    from uif_tvm.ops.build import Builder


GATES = {"lstm": 4, "gru": 3, "rnn": 1}
#: Activations of one direction where none are named.
DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
#: Activation -> default alpha and beta, ``None`` where it takes none.
PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "sigmoid": (None, None),
    "tanh": (None, None),
    "relu": (None, None),
    "softsign": (None, None),
    "softplus": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}


def activation(name: str, alpha: float, beta: float) -> Callable[[Array], Array]:
    """An activation of ONNX's recurrent operators; names in lower case."""
    table: dict[str, Callable[[Array], Array]] = {
        "sigmoid": sigmoid,
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.logaddexp(0, x),
        "affine": lambda x: alpha * x + beta,
        "leakyrelu": lambda x: np.where(x < 0, alpha * x, x),
        "thresholdedrelu": lambda x: np.where(x >= alpha, x, 0),
        "scaledtanh": lambda x: alpha * np.tanh(beta * x),
        "hardsigmoid": lambda x: np.clip(alpha * x + beta, 0, 1),
        "elu": lambda x: np.where(x < 0, alpha * (np.exp(np.minimum(x, 0)) - 1), x),
    }
    return table[name]


def functions(attrs: Attrs) -> list[Callable[[Array], Array]]:
    """The activations of a scan, in order."""
    return [
        activation(*row)
        for row in zip(attrs["activations"], attrs["alphas"], attrs["betas"], strict=True)
    ]


def _clip(limit: float) -> Callable[[Array], Array]:
    return (lambda v: np.clip(v, -limit, limit)) if limit else (lambda v: v)


def scan(
    projected: Array,
    states: Sequence[Array],
    lengths: Array | None,
    reverse: bool,
    step: Callable[..., Sequence[Array]],
) -> tuple[Array, ...]:
    """Outputs of all steps and the final states.

    Args:
        projected: ``[steps, batch, gates * hidden]``, the input's side of the gates.
        states: ``[batch, hidden]`` each; the first is the output.
        lengths: steps of each sequence, all by default; outputs past them are zero.
        reverse: from a sequence's last step to its first.
        step: one row of ``projected`` and of each state -> the new states.
    """
    count, batch, _ = projected.shape
    states = [state.copy() for state in states]
    y = np.zeros((count, batch, states[0].shape[-1]), projected.dtype)
    for b in range(batch):
        length = count if lengths is None else min(max(int(lengths[b]), 0), count)
        for s in range(length):
            t = length - 1 - s if reverse else s
            new = step(projected[t, b], *[state[b] for state in states])
            for state, value in zip(states, new, strict=True):
                state[b] = value
            y[t, b] = new[0]
    return (y, *states)


def _start(state: Array | None, projected: Array, weight: Array) -> Array:
    """An initial state, zeros by default."""
    shape = (projected.shape[1], weight.shape[0])
    return np.zeros(shape, projected.dtype) if state is None else state


def lstm_scan(
    projected: Array,
    weight: Array,
    hidden: Array | None,
    cell: Array | None,
    lengths: Array | None,
    peepholes: Array | None,
    reverse: bool,
    clip: float,
    input_forget: bool,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Gates i, o, f, c; ``weight`` is ``[hidden, 4 hidden]``, ``peepholes`` i, o, f."""
    f, g, h = functions(attrs)
    cut = _clip(clip)
    p = np.zeros((3, weight.shape[0])) if peepholes is None else peepholes

    def step(row: Array, y: Array, c: Array) -> tuple[Array, Array]:
        i, o, forget, new = np.split(row + y @ weight, 4)
        i = f(cut(i + p[0] * c))
        forget = 1 - i if input_forget else f(cut(forget + p[2] * c))
        c = forget * c + i * g(cut(new))
        return f(cut(o + p[1] * c)) * h(c), c

    states = _start(hidden, projected, weight), _start(cell, projected, weight)
    return scan(projected, states, lengths, reverse, step)


def gru_scan(
    projected: Array,
    weight: Array,
    hidden: Array | None,
    lengths: Array | None,
    held: Array | None,
    reverse: bool,
    clip: float,
    linear_before_reset: bool,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Gates z, r, h; ``held`` is the recurrent bias of h, which the reset gate may scale."""
    f, g = functions(attrs)
    cut = _clip(clip)
    size = weight.shape[0]
    bias = np.zeros(size) if held is None else held

    def step(row: Array, y: Array) -> tuple[Array]:
        z, r = np.split(f(cut(row[: 2 * size] + y @ weight[:, : 2 * size])), 2)
        last = weight[:, 2 * size :]
        inner = r * (y @ last + bias) if linear_before_reset else (r * y) @ last + bias
        return (z * y + (1 - z) * g(cut(row[2 * size :] + inner)),)

    return scan(projected, [_start(hidden, projected, weight)], lengths, reverse, step)


def rnn_scan(
    projected: Array,
    weight: Array,
    hidden: Array | None,
    lengths: Array | None,
    reverse: bool,
    clip: float,
    **attrs: Any,
) -> tuple[Array, ...]:
    """One gate."""
    (f,) = functions(attrs)
    cut = _clip(clip)

    def step(row: Array, y: Array) -> tuple[Array]:
        return (f(cut(row + y @ weight)),)

    return scan(projected, [_start(hidden, projected, weight)], lengths, reverse, step)


_SCANS: Mapping[str, Callable[..., tuple[Array, ...]]] = {
    "lstm": lstm_scan,
    "gru": gru_scan,
    "rnn": rnn_scan,
}


def per_direction(kind: str, attrs: Attrs) -> list[dict[str, Any]]:
    """Attributes of each direction's scan.

    Raises:
        ShapeError: the number of activations does not fit, or one does not exist.
    """
    direction = attrs["direction"]
    reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    each = len(DEFAULTS[kind])
    names = [str(name).lower() for name in attrs["activations"] or DEFAULTS[kind] * len(reverses)]
    if len(names) != each * len(reverses):
        raise ShapeError(f"{len(names)} activations for {len(reverses)} directions of {kind}")
    unknown = [name for name in names if name not in PARAMETERS]
    if unknown:
        raise ShapeError(f"activation {unknown[0]!r} is none of {', '.join(PARAMETERS)}")
    given = list(attrs["alphas"]), list(attrs["betas"])
    values: list[list[float]] = [[], []]
    for name in names:  # parameters are listed for the activations that take one
        for place, default in enumerate(PARAMETERS[name]):
            rest = given[place] if default is not None else []
            values[place].append(float(rest.pop(0) if rest else default or 0.0))
    more = {name: attrs[name] for name in ("input_forget", "linear_before_reset") if name in attrs}
    rows = []
    for at, reverse in enumerate(reverses):
        part = slice(at * each, (at + 1) * each)
        rows.append(
            {
                "reverse": reverse,
                "activations": tuple(names[part]),
                "alphas": tuple(values[0][part]),
                "betas": tuple(values[1][part]),
                "clip": attrs["clip"],
                **more,
            }
        )
    return rows


def layer(kind: str) -> Callable[..., tuple[Array, ...]]:
    """The whole layer: projections and scans, directions stacked as ONNX has it."""
    run = _SCANS[kind]

    def apply(
        x: Array,
        w: Array,
        r: Array,
        bias: Array | None,
        lengths: Array | None,
        *rest: Array | None,
        **attrs: Any,
    ) -> tuple[Array, ...]:
        states, peepholes = (rest[:2], rest[2]) if kind == "lstm" else (rest[:1], None)
        results = []
        for d, options in enumerate(per_direction(kind, attrs)):
            projected = x @ w[d].T
            begin = [None if state is None else state[d] for state in states]
            held: Array | None = None
            extra: tuple[Array | None, ...] = ()
            if bias is not None:
                first, second = np.split(bias[d], 2)
                if kind == "gru":
                    second, held = second.copy(), second[2 * r.shape[2] :].copy()
                    second[2 * r.shape[2] :] = 0
                projected = projected + first + second
            if kind == "lstm":
                extra = (None if peepholes is None else peepholes[d].reshape(3, -1),)
            elif kind == "gru":
                extra = (held,)
            results.append(run(projected, r[d].T, *begin, lengths, *extra, **options))
        outputs, *finals = zip(*results, strict=True)
        return np.stack(outputs, 1), *[np.stack(final) for final in finals]

    return apply


def decompose(kind: str) -> Callable[[Builder, Sequence[Any], Attrs], Any]:
    """Matrix products and additions over the whole sequence, then one scan per direction."""

    def apply(b: Builder, operands: Sequence[Any], attrs: Attrs) -> Any:
        x, w, r, bias, lengths, *rest = (*operands, *[None] * 8)[:8]
        states, peepholes = (rest[:2], rest[2]) if kind == "lstm" else (rest[:1], None)
        hidden = b.shape(r)[2]
        rows = []
        for d, options in enumerate(per_direction(kind, attrs)):
            swap = (1, 0)
            projected = _project(b, x, b.op("permute_dims", _part(b, w, d), axes=swap))
            held = None
            if bias is not None:
                whole, held = _biases(b, _part(b, bias, d), kind, hidden)
                projected = b.op("add", projected, whole)
            extra = []
            if kind == "lstm":
                own = None if peepholes is None else _part(b, peepholes, d)
                extra = [None if own is None else b.op("reshape", own, shape=(3, hidden))]
            elif kind == "gru":
                extra = [held]
            begin = [None if state is None else _part(b, state, d) for state in states]
            weight = b.op("permute_dims", _part(b, r, d), axes=swap)
            rows.append(b.op(f"{kind}_scan", projected, weight, *begin, lengths, *extra, **options))
        return tuple(
            _stacked(b, parts, 0 if index else 1)
            for index, parts in enumerate(zip(*rows, strict=True))
        )

    return apply


def _project(b: Builder, x: Any, weight: Any) -> Any:
    """x times the weight, all steps of all sequences as rows of one product."""
    steps, batch, features = b.shape(x)
    y = b.op("matmul", b.op("reshape", x, shape=(steps * batch, features)), weight)
    return b.op("reshape", y, shape=(steps, batch, b.shape(y)[1]))


def _part(b: Builder, value: Any, direction: int) -> Any:
    """One direction of a stacked operand; reshapes cost nothing, as they are views."""
    shape = b.shape(value)
    if shape[0] != 1:
        value = b.op("strided_slice", value, axes=(0,), begin=(direction,), end=(direction + 1,))
    return b.op("reshape", value, shape=shape[1:])


def _biases(b: Builder, bias: Any, kind: str, hidden: int) -> tuple[Any, Any]:
    """What is added to the projection, and the bias of the GRU's hidden gate, which waits."""

    def cut(begin: int, end: int) -> Any:
        return b.op("strided_slice", bias, axes=(0,), begin=(begin,), end=(end,))

    gates = GATES[kind] * hidden
    if kind != "gru":
        return b.op("add", cut(0, gates), cut(gates, 2 * gates)), None
    early = b.op("add", cut(0, 2 * hidden), cut(gates, gates + 2 * hidden))
    return b.op("concat", early, cut(2 * hidden, gates), axis=0), cut(gates + 2 * hidden, 2 * gates)


def _stacked(b: Builder, parts: Sequence[Any], axis: int) -> Any:
    """Results of the directions along a new axis."""
    shape = b.shape(parts[0])
    longer = (*shape[:axis], 1, *shape[axis:])
    wide = [b.op("reshape", part, shape=longer) for part in parts]
    return wide[0] if len(wide) == 1 else b.op("concat", *wide, axis=axis)


def _scan_type(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def rule(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        projected, weight = types[:2]
        hidden = weight.shape[0]
        wanted = GATES[kind] * hidden
        if projected.rank != 3 or weight.shape[1] != wanted or projected.shape[2] != wanted:
            raise ShapeError(f"projection and weights must have {wanted} columns")
        if len(attrs["activations"]) != len(DEFAULTS[kind]):
            raise ShapeError(f"{kind} has {len(DEFAULTS[kind])} activations")
        row = TensorType((*projected.shape[:2], hidden), projected.dtype)
        last = TensorType((projected.shape[1], hidden), projected.dtype)
        return (row, last, last) if kind == "lstm" else (row, last)

    return rule


def _fits(have: Sequence[Any], want: Sequence[Any]) -> bool:
    """Whether two shapes may be equal."""
    return len(have) == len(want) and all(
        n == m for n, m in zip(have, want, strict=True) if isinstance(n, int) and isinstance(m, int)
    )


def _layer_type(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def rule(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        x, w, r = types[:3]
        directions, hidden = len(per_direction(kind, attrs)), r.shape[2]
        gates = GATES[kind] * hidden
        if x.rank != 3:
            raise ShapeError(f"the input has rank {x.rank}, not 3")
        for item, shape in ((w, (directions, gates, x.shape[2])), (r, (directions, gates, hidden))):
            if not _fits(item.shape, shape):
                raise ShapeError(f"weights must have shape {list(shape)}, got {list(item.shape)}")
        state, kinds = (directions, x.shape[1], hidden), len(_states(kind))
        wanted = [
            (directions, 2 * gates),
            (x.shape[1],),
            *[state] * kinds,
            (directions, 3 * hidden),
        ]
        names = ["bias", "lengths", *["initial state"] * kinds, "peepholes"]
        for name, item, shape in zip(names, types[3:], wanted, strict=False):
            if item is not None and not _fits(item.shape, shape):
                raise ShapeError(f"{name} must have shape {list(shape)}, got {list(item.shape)}")
        row = TensorType((x.shape[0], directions, x.shape[1], hidden), x.dtype)
        last = TensorType((directions, x.shape[1], hidden), x.dtype)
        return (row, last, last) if kind == "lstm" else (row, last)

    return rule


def _scan_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    hidden = types[1].shape[0] if isinstance(types[1].shape[0], int) else 1
    return elements(types[0]) * (2.0 * hidden + 12)


def _layer_flops(types: Types, results: Sequence[TensorType], attrs: Attrs) -> float:
    rows = elements(TensorType(types[0].shape[:2], types[0].dtype))
    return rows * 2.0 * (elements(types[1]) + elements(types[2]))


def _scan_cases(kind: str) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        gates, states = GATES[kind] * 6, 2 if kind == "lstm" else 1
        x, w = normal(4, 3, gates), normal(6, gates, seed=1) * 0.5
        begin = [normal(3, 6, seed=seed) for seed in range(2, 2 + states)]
        extra = {"lstm": [normal(3, 6, seed=5)], "gru": [normal(6, seed=5)], "rnn": []}[kind]
        yield Case("plain", (x, w, *[None] * states, None, *[None for _ in extra]))
        lengths = array("int32", [4, 0, 2])
        yield Case("lengths-reverse", (x, w, *begin, lengths, *extra), {"reverse": True})
        names = {"lstm": ("hardsigmoid", "softsign", "relu"), "gru": ("sigmoid", "scaledtanh")}
        other = {
            "activations": names.get(kind, ("elu",)),
            "alphas": (0.3, 0.7, 0.0)[: len(names.get(kind, ("elu",)))],
            "betas": (0.4, 1.2, 0.0)[: len(names.get(kind, ("elu",)))],
            "clip": 0.8,
        }
        flag = {"lstm": "input_forget", "gru": "linear_before_reset"}.get(kind)
        more = {flag: True} if flag else {}
        yield Case("activations-clip", (x, w, *begin, None, *extra), {**other, **more})

    return cases


def _layer_cases(kind: str) -> Callable[[], Iterable[Case]]:
    def cases() -> Iterable[Case]:
        gates, states = GATES[kind] * 4, 2 if kind == "lstm" else 1
        x = normal(3, 2, 5)
        one = normal(1, gates, 5, seed=1), normal(1, gates, 4, seed=2) * 0.5
        two = normal(2, gates, 5, seed=1), normal(2, gates, 4, seed=2) * 0.5
        yield Case("forward", (x, *one, None))
        biased = normal(1, 2 * gates, seed=3)
        yield Case("reverse-bias", (x, *one, biased), {"direction": "reverse"})
        begin = [normal(2, 2, 4, seed=seed) for seed in range(4, 4 + states)]
        peepholes = [normal(2, 12, seed=7)] if kind == "lstm" else []
        every = (x, *two, normal(2, 2 * gates, seed=3), array("int32", [3, 1]), *begin, *peepholes)
        yield Case("bidirectional-everything", every, {"direction": "bidirectional"})
        flag = {"lstm": "input_forget", "gru": "linear_before_reset"}.get(kind)
        if flag:
            yield Case(flag.replace("_", "-"), (x, *one, biased), {flag: True, "clip": 1.5})

    return cases


_OPTIONS = (Attribute("alphas", ()), Attribute("betas", ()), Attribute("clip", 0.0))


def _flag(kind: str) -> tuple[Attribute, ...]:
    names = {"lstm": "input_forget", "gru": "linear_before_reset"}
    return (Attribute(names[kind], False),) if kind in names else ()


def _states(kind: str) -> tuple[Operand, ...]:
    names = ("hidden", "cell") if kind == "lstm" else ("hidden",)
    return tuple(Operand(name, optional=True) for name in names)


def _scan(kind: str) -> OpSpec:
    run = _SCANS[kind]
    tail = {"lstm": ("peepholes",), "gru": ("held",), "rnn": ()}[kind]
    count = len(DEFAULTS[kind])
    return OpSpec(
        f"{kind}_scan",
        "recurrent",
        exactly(run),
        _scan_type(kind),
        operands=(
            Operand("projected"),
            Operand("weight"),
            *_states(kind),
            Operand("lengths", optional=True),
            *[Operand(name, optional=True) for name in tail],
        ),
        attributes=(
            Attribute("reverse", False),
            Attribute("activations", DEFAULTS[kind]),
            Attribute("alphas", (0.0,) * count),
            Attribute("betas", (0.0,) * count),
            Attribute("clip", 0.0),
            *_flag(kind),
        ),
        results=3 if kind == "lstm" else 2,
        dtypes=("float16", "float32", "float64"),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_scan_cases(kind),
        flops=_scan_flops,
    )


def _layer(kind: str) -> OpSpec:
    return OpSpec(
        kind,
        "recurrent",
        exactly(layer(kind)),
        _layer_type(kind),
        operands=(
            Operand("x"),
            Operand("w"),
            Operand("r"),
            Operand("bias", optional=True),
            Operand("lengths", optional=True),
            *_states(kind),
            *([Operand("peepholes", optional=True)] if kind == "lstm" else []),
        ),
        attributes=(
            Attribute("direction", "forward", ("forward", "reverse", "bidirectional")),
            Attribute("activations", ()),
            *_OPTIONS,
            *_flag(kind),
        ),
        results=3 if kind == "lstm" else 2,
        dtypes=("float16", "float32", "float64"),
        accumulation=WIDE,
        tolerance=LOOSE,
        cases=_layer_cases(kind),
        decompose=decompose(kind),
        flops=_layer_flops,
        source=f"ONNX {kind.upper()}-22",
    )


SPECS = (
    *(_scan(kind) for kind in GATES),
    *(_layer(kind) for kind in GATES),
)
