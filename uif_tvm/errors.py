"""Typed errors: every failure says at which stage, in which op, why, and what to do.

``UifError`` is the root. Each concrete class also subclasses the built-in that fits, so that
``except ValueError`` keeps working for callers who do not know us. The CLI maps classes to
exit codes through ``exit_code`` and prints no traceback for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

STAGES = ("usage", "import", "place", "compile", "load", "run")


class UifError(Exception):
    """Root of all errors this package raises on purpose.

    Args:
        message: what went wrong, with the offending value in it.
        stage: one of ``STAGES``.
        code: stable identifier, ``UIF-<STAGE>-<NAME>``; never reused for another meaning.
        op: the operator or node concerned, as the model's author would recognise it.
        target: id of the target concerned.
        hint: the remedy, as an instruction.
    """

    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "UIF-INTERNAL"
    default_stage: ClassVar[str] = "compile"

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        code: str | None = None,
        op: str | None = None,
        target: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage or self.default_stage
        if self.stage not in STAGES:
            raise AssertionError(f"stage {self.stage!r} is none of {', '.join(STAGES)}")
        self.code = code or self.default_code
        self.op = op
        self.target = target
        self.hint = hint

    def __str__(self) -> str:
        where = [self.stage]
        if self.target:
            where.append(f"target {self.target}")
        if self.op:
            where.append(f"op {self.op}")
        text = f"[{self.code}] {', '.join(where)}: {self.message}"
        return f"{text}\n  remedy: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        # By state, not by calling the class again: process pools send errors home this way.
        return _restored, (type(self), self.args, self.__dict__)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, for ``--json`` output."""
        return {
            "code": self.code,
            "stage": self.stage,
            "op": self.op,
            "target": self.target,
            "message": self.message,
            "hint": self.hint,
        }


def _restored(cls: type[UifError], args: tuple[Any, ...], state: dict[str, Any]) -> UifError:
    """An error as it was before it was pickled."""
    error = cls.__new__(cls, *args)
    error.args = args  # OSError forgets them
    error.__dict__.update(state)
    return error


class UsageError(UifError, ValueError):
    """The caller passed something that cannot be meant."""

    exit_code = 2
    default_code = "UIF-USAGE"
    default_stage = "usage"


class ImportModelError(UifError, ValueError):
    """A model file or object is malformed, hostile, or not what it says."""

    exit_code = 2
    default_code = "UIF-IMPORT-INVALID"
    default_stage = "import"


@dataclass(frozen=True)
class UnsupportedOp:
    """One kind of operator that cannot be taken in, with where and how often it occurs."""

    op: str
    count: int
    reason: str
    locations: tuple[str, ...] = ()
    hint: str | None = None

    def __str__(self) -> str:
        at = f" at {', '.join(self.locations[:3])}" if self.locations else ""
        more = f" and {len(self.locations) - 3} more" if len(self.locations) > 3 else ""
        text = f"{self.op} x{self.count}{at}{more}: {self.reason}"
        return f"{text} ({self.hint})" if self.hint else text


class UnsupportedError(UifError, NotImplementedError):
    """Operators that no stage can handle; *all* of them are listed, not the first."""

    exit_code = 3
    default_code = "UIF-IMPORT-UNSUPPORTED"
    default_stage = "import"

    def __init__(
        self, ops: Sequence[UnsupportedOp], fault: str = "not supported", **kwargs: Any
    ) -> None:
        self.ops = tuple(ops)
        lines = "".join(f"\n  - {op}" for op in self.ops)
        kinds = "1 operator is" if len(self.ops) == 1 else f"{len(self.ops)} operators are"
        kwargs.setdefault("op", ", ".join(op.op for op in self.ops))
        super().__init__(f"{kinds} {fault}:{lines}", **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, one entry per unsupported operator."""
        return super().to_dict() | {"ops": [vars(op) for op in self.ops]}


class CompileError(UifError, RuntimeError):
    """A pass, a schedule or the code generator failed."""

    default_code = "UIF-COMPILE-FAILED"
    default_stage = "compile"


class TargetError(UifError, ValueError):
    """An unknown, broken or unsuitable target."""

    exit_code = 2
    default_code = "UIF-TARGET-UNKNOWN"
    default_stage = "place"


class ArtifactError(UifError, ValueError):
    """A ``.uif`` file is damaged, hostile, too new, or cannot be written."""

    exit_code = 1
    default_code = "UIF-ARTIFACT-INVALID"
    default_stage = "load"


class ArtifactIOError(UifError, OSError):
    """A file could not be read or written; what stood there before is untouched."""

    exit_code = 4
    default_code = "UIF-ARTIFACT-IO"
    default_stage = "load"


class EnvironmentFault(UifError, RuntimeError):
    """This machine lacks something: a package, a version, a compiler, a CPU feature."""

    exit_code = 4
    default_code = "UIF-ENV"
    default_stage = "load"


class InputError(UifError, ValueError):
    """Inputs of ``Engine.run`` do not fit the model's signature."""

    exit_code = 2
    default_code = "UIF-RUN-INPUT"
    default_stage = "run"


class RunError(UifError, RuntimeError):
    """A kernel failed while running."""

    default_code = "UIF-RUN-FAILED"
    default_stage = "run"


class HostFallbackWarning(UserWarning):
    """Operators of an exported model run on the host; said once per export, counted in stats."""


class TrainModeWarning(UserWarning):
    """A module in training mode was exported as in eval mode: no dropout, fixed statistics."""
