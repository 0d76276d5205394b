"""The ai.onnx.ml domain: operators that prepare features, and look-ups of labels.

Texts are ids here (equal ids for equal texts), so look-ups by text are look-ups of whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax, te

from uif_tvm.frontends.converters.context import NodeContext, Unsupported
from uif_tvm.frontends.converters.indexing import normalised
from uif_tvm.frontends.converters.kernels import call_kernel, dim
from uif_tvm.frontends.converters.registry import ML, converter
from uif_tvm.frontends.converters.search_kernel import search_kernel
from uif_tvm.frontends.onnx.values import Array, Dynamic, shape_of
from uif_tvm.runtime.elements import is_stored
from uif_tvm.runtime.strings import TEXT

MOST_KEYS = 1 << 16
"""Keys of a look-up, which are sorted and searched by halves."""


@converter("Binarizer", domain=ML)
def binarizer(ctx: NodeContext) -> relax.Expr:
    """1 where the element is above the threshold, else 0."""
    x, dtype = ctx.expr(0), ctx.dtype(0)
    threshold = float(ctx.attrs.get("threshold", 0.0))
    wide = x if "float" in dtype else ctx.cast(x, "float64")
    bound = ctx.const(threshold, str(wide.ty.dtype))
    return ctx.cast(ctx.emit(relax.op.greater(wide, bound)), dtype)


@converter("Normalizer", domain=ML)
def normalizer(ctx: NodeContext) -> relax.Expr:
    """Rows over their maximum, sum of magnitudes or length; rows whose divisor is 0 stay."""
    if ctx.rank(0) not in (1, 2):
        raise ctx.invalid(f"an input of rank {ctx.rank(0)}")
    x = ctx.cast(ctx.expr(0), "float32")
    mode = ctx.attrs.get("norm", "MAX")
    if mode == "MAX":
        divisor = ctx.emit(relax.op.max(x, -1, True))
    elif mode == "L1":
        divisor = ctx.emit(relax.op.sum(ctx.emit(relax.op.abs(x)), -1, True))
    elif mode == "L2":
        squares = ctx.emit(relax.op.multiply(x, x))
        divisor = ctx.emit(relax.op.sqrt(ctx.emit(relax.op.sum(squares, -1, True))))
    else:
        raise ctx.invalid(f"norm {mode!r} does not exist")
    nothing = ctx.emit(relax.op.equal(divisor, ctx.const(0.0, "float32")))
    safe = ctx.emit(relax.op.where(nothing, ctx.const(1.0, "float32"), divisor))
    return ctx.emit(relax.op.divide(x, safe))


@converter("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(ctx: NodeContext) -> relax.Expr:
    """Columns by number; a vector counts as one row."""
    x, dims = ctx.expr(0), ctx.shape(0)
    count = int(np.prod(ctx.static_shape(1)))
    index = ctx.reshape(normalised(ctx, 1, dims[-1]), (count,))
    taken = ctx.emit(relax.op.take(x, index, len(dims) - 1, mode="clip"))
    return ctx.reshape(taken, [1, count]) if len(dims) == 1 else taken


@converter("FeatureVectorizer", domain=ML)
def feature_vectorizer(ctx: NodeContext) -> relax.Expr:
    """All inputs side by side as float32; vectors count as one row."""
    parts = []
    for place in range(len(ctx.inputs)):
        part = ctx.cast(ctx.expr(place), "float32")
        dims = list(shape_of(part))
        if len(dims) not in (1, 2):
            raise ctx.invalid(f"input {place} has rank {len(dims)}")
        parts.append(ctx.reshape(part, [1, *dims]) if len(dims) == 1 else part)
    widths = [int(v) for v in ctx.attrs.get("inputdimensions") or []]
    for place, (part, width) in enumerate(zip(parts, widths, strict=False)):
        found = shape_of(part)[1]
        if isinstance(found, int) and found != width:
            raise ctx.invalid(f"input {place} has {found} columns, inputdimensions says {width}")
    return parts[0] if len(parts) == 1 else ctx.emit(relax.op.concat(parts, 1))


@converter("Imputer", domain=ML)
def imputer(ctx: NodeContext) -> relax.Expr:
    """One value replaced, per column or everywhere."""
    dtype = ctx.dtype(0)
    real = "float" in dtype
    values = ctx.attrs.get("imputed_value_floats" if real else "imputed_value_int64s") or []
    old = ctx.attrs.get("replaced_value_float" if real else "replaced_value_int64", 0)
    width = ctx.shape(0)[-1] if ctx.rank(0) else 1
    if not values or (len(values) > 1 and len(values) != width):
        raise ctx.invalid(f"{len(values)} imputed values for {width} columns")
    new = ctx.const(values if len(values) > 1 else values[0], dtype)
    x = ctx.expr(0)
    if real and np.isnan(old):
        hit = ctx.emit(relax.op.isnan(x))
    else:
        hit = ctx.emit(relax.op.equal(x, ctx.const(old, dtype)))
    return ctx.emit(relax.op.where(hit, new, x))


@converter("OneHotEncoder", domain=ML)
def one_hot_encoder(ctx: NodeContext) -> relax.Expr:
    """A further axis with 1 at the element's category; unknown ones are all 0."""
    if not ctx.attrs.get("zeros", 1):
        raise Unsupported("unknown categories as errors (zeros = 0)")
    text = ctx.dtype(0) == TEXT
    names = ctx.attrs.get("cats_strings" if text else "cats_int64s") or []
    if not names:
        raise ctx.invalid("no categories are given")
    keys = np.asarray(names, object if text else np.int64)
    x = ctx.expr(0) if text else ctx.cast(ctx.expr(0), "int64")
    count = len(names)

    def compute(a: te.Tensor, k: te.Tensor) -> te.Tensor:
        def at(*i: Any) -> Any:
            return (a(*i[:-1]) == k(i[-1])).astype("float32")

        return te.compute((*a.shape, count), at, name="one_hot")

    return ctx.te(compute, x, ctx.importer.constant(keys), name="one_hot")


@converter("CategoryMapper", domain=ML)
def category_mapper(ctx: NodeContext) -> Any:
    """Texts to numbers or numbers to texts."""
    texts = np.asarray(ctx.attrs.get("cats_strings") or [], object)
    numbers = np.asarray(ctx.attrs.get("cats_int64s") or [], np.int64)
    if len(texts) != len(numbers) or not len(texts):
        raise ctx.invalid(f"{len(texts)} texts for {len(numbers)} numbers")
    if ctx.dtype(0) == TEXT:
        return look_up(ctx, texts, numbers, np.int64(ctx.attrs.get("default_int64", -1)))
    return look_up(ctx, numbers, texts, ctx.attrs.get("default_string", "_Unused"))


@converter("LabelEncoder", domain=ML)
def label_encoder(ctx: NodeContext) -> Any:
    """Each element by its key, or the default."""
    keys, _ = _side(ctx, "keys")
    values, form = _side(ctx, "values")
    if len(keys) != len(values) or not len(keys):
        raise ctx.invalid(f"{len(keys)} keys for {len(values)} values")
    if ctx.attrs.get("default_tensor") is not None:
        default: Any = np.asarray(ctx.attrs["default_tensor"]).reshape(-1)[0]
    elif form == "strings" or values.dtype == object:
        default = ctx.attrs.get("default_string", "_Unused")
    elif values.dtype.kind in "iu":
        default = ctx.attrs.get("default_int64", -1)
    else:
        default = ctx.attrs.get("default_float", -0.0)
    return look_up(ctx, keys, values, default)


def _side(ctx: NodeContext, side: str) -> tuple[Array, str]:
    """Keys or values of a LabelEncoder, and which attribute they came in."""
    forms: dict[str, Any] = {"strings": object, "int64s": np.int64, "floats": np.float32}
    if ctx.attrs.get(f"{side}_tensor") is not None:
        return np.asarray(ctx.attrs[f"{side}_tensor"]).reshape(-1), "tensor"
    if ctx.version < 2:
        texts = np.asarray(ctx.attrs.get("classes_strings") or [], object)
        numbers = np.arange(len(texts), dtype=np.int64)
        return (texts, "strings") if (ctx.dtype(0) == TEXT) == (side == "keys") else (
            numbers, "int64s")  # fmt: skip
    for form, dtype in forms.items():
        if ctx.attrs.get(f"{side}_{form}"):
            return np.asarray(ctx.attrs[f"{side}_{form}"], dtype), form
    raise ctx.invalid(f"no {side} are given")


def look_up(ctx: NodeContext, keys: Array, values: Array, default: Any) -> Any:
    """``values[keys == x]``, the default where there is none; the last of equal keys wins."""
    text = keys.dtype.kind in "OUS"
    if (ctx.dtype(0) == TEXT) != text or (is_stored(ctx.dtype(0)) and not text):
        raise ctx.invalid(f"keys of {keys.dtype} for elements of {ctx.dtype(0)}")
    if len(keys) > MOST_KEYS:
        raise Unsupported(f"a look-up of {len(keys)} keys")
    numbers = ctx.importer.strings.encode(keys) if text else keys.astype(ctx.dtype(0))
    missing = numbers != numbers  # NaN
    order = np.argsort(numbers, kind="stable")
    order = order[~missing[order]]
    last = np.flatnonzero(missing)
    table = np.append(values[order], [values[last[-1]] if len(last) else default, default])
    table = table.astype(object if values.dtype.kind in "OUS" else values.dtype)
    sorted_keys = numbers[order] if len(order) else np.zeros(1, numbers.dtype)
    place = _position(ctx, sorted_keys, len(order), bool(missing.any()))
    found = ctx.emit(relax.op.take(ctx.importer.constant(table), place, 0, mode="clip"))
    return Dynamic(found, element=TEXT if table.dtype == object else None)


def _position(ctx: NodeContext, keys: Array, count: int, knows_nan: bool) -> relax.Expr:
    """Row of each element's key: ``count`` for NaN among the keys, ``count`` + 1 for none."""
    x, dims = ctx.expr(0), list(ctx.shape(0))
    total = math.prod(dims)
    kernel = search_kernel(dim(total, "total"), len(keys), str(x.ty.dtype), count, knows_nan)
    args = [ctx.reshape(x, [total]), ctx.importer.constant(keys)]
    (place,) = call_kernel(ctx, kernel, args, [[total]], ["int64"], "look_up")
    return ctx.reshape(place, dims)
