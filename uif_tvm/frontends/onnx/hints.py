"""The nearest way around an operator that cannot be taken in."""

from __future__ import annotations

import difflib

_BY_OP = {
    "ZipMap": "export the scikit-learn model with options={'zipmap': False}",
    "DictVectorizer": "vectorise the dictionaries before the model",
    "CastMap": "pass the map's values as a dense tensor",
    "LinearClassifier": "give the node a row of coefficients for each class",
    "SVMClassifier": "export the classifier without probabilities (its decision function)",
    "Gradient": "export the model for inference; gradients belong to training",
    "Optional": "pass or return the tensor itself",
    "ImageDecoder": "decode images before the model, or allow fallback_mode='host'",
}
_TEXT_OPS = frozenset(
    "StringConcat StringSplit StringNormalizer RegexFullMatch TfIdfVectorizer".split()
)
_TRAINING = "ai.onnx.preview.training"


def hint_for(op: str, reason: str) -> str:
    """A remedy for one operator.

    Args:
        op: qualified name, such as ``ai.onnx.ml::ZipMap``.
        reason: why it was refused.
    """
    domain, _, name = op.rpartition("::")
    if name in _BY_OP:
        return _BY_OP[name]
    if domain == _TRAINING:
        return "export the model for inference; optimizer steps belong to training"
    if name in _TEXT_OPS or "string elements" in reason:
        return "process texts before the model, or allow fallback_mode='host'"
    if domain not in ("", "ai.onnx.ml"):
        return "give the operator its meaning with uif.register_op"
    unknown = _no_such_operator(domain, name)
    if unknown:
        return unknown
    if "run time" in reason:
        return "make the value a constant of the model, or allow fallback_mode='host'"
    return "allow fallback_mode='host', or register a converter"


def _no_such_operator(domain: str, name: str) -> str:
    """What to say of a name that ONNX does not define; empty if it does."""
    import onnx

    known = {item.name for item in onnx.defs.get_all_schemas() if item.domain == domain}
    if name in known:
        return ""
    text = "the installed onnx defines no such operator"
    near = difflib.get_close_matches(name, known, n=1)
    return f"{text}; did you mean {near[0]!r}?" if near else f"{text}; give it with uif.register_op"
