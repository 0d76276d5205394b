"""What an import notes along the way, and reports in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from uif_tvm.errors import UnsupportedError, UnsupportedOp
from uif_tvm.frontends.extension import broken_hint
from uif_tvm.frontends.onnx.hints import hint_for
from uif_tvm.frontends.onnx.validate import node_label


@dataclass
class Notes:
    """Bookkeeping of one import.

    Args:
        removed: operators that mean nothing at inference.
        specialised: input whose example value is compiled in -> its parameter.
        refused: (operator, reason, hint) -> where it occurs.
        composed: operators taken apart into what their standard's function body consists of.
        host: operators that run on the host -> reason codes.
    """

    removed: Counter[str] = field(default_factory=Counter)
    specialised: dict[str, Any] = field(default_factory=dict)
    refused: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    host: dict[str, list[str]] = field(default_factory=dict)
    composed: Counter[str] = field(default_factory=Counter)

    def copy(self) -> Notes:
        """An independent copy, to go back to."""
        return Notes(
            Counter(self.removed),
            dict(self.specialised),
            {key: list(at) for key, at in self.refused.items()},
            {op: list(reasons) for op, reasons in self.host.items()},
            Counter(self.composed),
        )

    def refuse(self, node: Any, domain: str, reason: str, hint: str | None) -> None:
        """Note an operator that cannot be taken in."""
        op = qualified(node, domain)
        key = (op, reason, hint or hint_for(op, reason))
        self.refused.setdefault(key, []).append(node_label(node))

    def first_refusal_since(self, earlier: Notes) -> str:
        """An operator refused since ``earlier`` and why; empty if there is none."""
        for key, at in self.refused.items():
            if len(at) > len(earlier.refused.get(key, ())):
                return f"{key[0]}: {key[1]}"
        return ""

    def run_on_host(self, node: Any, domain: str, reason: str) -> None:
        """Note an operator that the host evaluates, with its reason code."""
        reasons = self.host.setdefault(qualified(node, domain), [])
        if reason not in reasons:
            reasons.append(reason)

    def host_reasons(self) -> dict[str, str]:
        """Operator -> reason codes, joined."""
        return {op: "; ".join(reasons) for op, reasons in self.host.items()}

    def raise_refused(self) -> None:
        """Report everything that was refused, if anything was.

        Raises:
            UnsupportedError: with one entry per operator and reason.
        """
        if self.refused:
            remedy = "give the operator its meaning with uif.register_op, or rewrite the model"
            if any("fallback_mode" in hint for _, _, hint in self.refused):
                remedy = f"allow fallback_mode='host', {remedy}"
            raise UnsupportedError(
                [
                    UnsupportedOp(name, len(nodes), reason, tuple(nodes), hint)
                    for (name, reason, hint), nodes in self.refused.items()
                ],
                hint="; ".join(filter(None, (remedy, broken_hint()))),
            )


def qualified(node: Any, domain: str) -> str:
    """The operator's name as reports show it."""
    return f"{domain}::{node.op_type}" if domain else str(node.op_type)


NO_CONVERTER = "no converter for this operator"


def reason_code(reason: str) -> str:
    """The code under which reports give the reason why an operator runs on the host."""
    if reason == NO_CONVERTER:
        return "no-kernel"
    if reason.startswith("no kernel for "):  # of elements that flow under a stored type
        return "string" if reason.startswith("no kernel for string") else "sub-byte"
    return f"refused:{reason}"
