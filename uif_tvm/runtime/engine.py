"""Engine: a loaded model that runs, counts and explains itself."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from uif_tvm.errors import InputError, RunError, UifError, UsageError
from uif_tvm.runtime import aten_ops, host_clock, host_ops, reference_ops
from uif_tvm.runtime.elements import stored_dtype, to_stored
from uif_tvm.runtime.ffi import runtime
from uif_tvm.runtime.inputs import bind
from uif_tvm.runtime.results import Results, empty_outputs, given_arrays
from uif_tvm.runtime.stats import RunStats, process_peak_mb
from uif_tvm.runtime.strings import STRINGS, RunStrings, Strings
from uif_tvm.runtime.tensors import aligned, numpy_dtype
from uif_tvm.runtime.vm import ThreadLocalVM
from uif_tvm.signature import Spec, TensorSpec, leaves, pack, tensors

if TYPE_CHECKING:
    from uif_tvm.artifact import Artifact


#: In the message of every failed check of an extent or of a value read back as one.
_MISMATCH = "match_cast"


class Engine:
    """Runs one model on one target. Safe to call from many threads at once.

    Make one with :func:`uif_tvm.load`.
    """

    def __init__(self, artifact: Artifact, target: str | None, threads: int | None) -> None:
        start = time.perf_counter()
        self._artifact = artifact
        self._section = artifact.select(target)
        self._signature = artifact.manifest.signature
        self._report = artifact.report(self._section)
        self._register_host_calls()
        self._plan = artifact.memory_plan(self._section)
        # The arrays own the mapped memory that the tensors look into.
        self._weights = [aligned(artifact.weight(name)) for name in self._section.weights]
        self._vm = ThreadLocalVM(
            artifact.library(self._section),
            self._section.entry,
            threads,
            self._plan,
            self._weights,
        )
        self._packed = self._vm.pack([self._vm.tensor(array) for array in self._weights])
        self._weight_addresses = {array.ctypes.data for array in self._weights}
        host_clock.forget(self._weight_addresses)
        self._results = Results(
            list(leaves(self._signature.outputs)),
            self._plan,
            self._vm.array,
            self._weight_addresses,
        )
        self._vm.warm()
        self._strings = self._constant_strings()
        self._stats = RunStats()
        self._load_ms = (time.perf_counter() - start) * 1e3

    def _register_host_calls(self) -> None:
        """Make the functions that compiled code calls on the host known to the runtime."""
        needed = {kernel["rule"] for kernel in self._report["kernels"] if kernel["kind"] == "host"}
        for name, register in (
            (host_ops.HOST_CALL, host_ops.register),
            (aten_ops.HOST_CALL, aten_ops.register),
            (reference_ops.HOST_CALL, reference_ops.register),
        ):
            if any(rule.startswith(name) for rule in needed):
                register(runtime())

    def _constant_strings(self) -> Strings:
        """The texts among the model's constants, under the ids that compiled code has for them."""
        if STRINGS not in self._section.extras:
            return Strings()
        return Strings.from_bytes(self._artifact.extra(self._section, STRINGS))

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """What :meth:`run` takes, in order."""
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """What :meth:`run` returns, in order."""
        return self._signature.outputs

    @property
    def target(self) -> str:
        """Id of the target whose code runs."""
        return str(self._section.target)

    @property
    def report(self) -> dict[str, Any]:
        """What the compiler did for this target: decisions, kernels, placement, memory."""
        return self._report

    @property
    def threads(self) -> int:
        """Worker threads that each run uses, the calling thread included."""
        return self._vm.threads

    def run(self, /, *args: Any, **named: Any) -> list[Any]:
        """Run the model once.

        Args:
            args: one value per input, in order, or one dict by name: an array, for a sequence a
                list of them, for an optional that was left out at export ``None``.
            named: the same by keyword.

        Returns:
            One value per output, in order, of the same kinds; texts as object arrays of ``str``.
            Each array owns its memory: writing to one changes neither another output, nor an
            input, nor what later runs return.

        Raises:
            InputError: names, shapes or dtypes do not fit (nothing was run), or the model was
                compiled for other input values.
            RunError: a kernel failed.
        """
        return self._run(None, args, named)

    def run_into(self, out: Any, /, *args: Any, **named: Any) -> list[Any]:
        """Run the model once, results written into arrays of the caller.

        Args:
            out: one writeable array per output, in order, or a dict by name; ``None`` (or a name
                left out) for what :meth:`run` would make. Results land in the arrays directly
                where these come from :meth:`empty_outputs` or from an earlier run, else by way of
                a copy. No array may share memory with an input or another one.
            args, named: as for :meth:`run`.

        Returns:
            As :meth:`run`: the arrays given, and new ones for the rest. After an error the
            arrays' content is undefined; after an interrupt a run may still be writing to them.

        Raises:
            InputError: also where an array does not fit its output (code ``UIF-RUN-OUT``).
            RunError: a kernel failed.
        """
        return self._run(out, args, named)

    def empty_outputs(self) -> list[Any]:
        """Arrays for :meth:`run_into` that compiled code writes to directly, not initialised.

        ``None`` stands for outputs whose size is settled in each run, lists and texts.
        """
        return empty_outputs(self.outputs)

    def _run(self, out: Any, args: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        start = time.perf_counter()
        texts = RunStrings(self._strings)
        bound = bind(self._signature, args, named)
        given = None if out is None else given_arrays(self.outputs, out, bound)
        arrays = [aligned(to_stored(array, texts)) for array in bound]
        run = self._results.begin(given)
        try:
            values = self._vm.call(
                arrays,
                self._packed,
                run.memory,
                texts,
                lambda returned, machine: self._results.collect(
                    run, returned, machine, texts, arrays
                ),
            )
        except UifError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        outputs = pack(self._signature.outputs, iter(values))
        self._stats.add(time.perf_counter() - start, run.nbytes)
        return outputs

    def _failure(self, error: Exception) -> UifError:
        """What the user reads when the virtual machine gives up with ``error``."""
        hosted = host_clock.take_error()
        if hosted is not None:
            return hosted
        if _MISMATCH not in str(error):
            return RunError(
                f"{type(error).__name__}: {error}",
                target=self.target,
                hint="report this with the model and its inputs; uif inspect shows the kernels",
            )
        names = self._report.get("specialised_inputs")
        fixed = f" (values compiled in: {', '.join(map(repr, names))})" if names else ""
        return InputError(
            f"the model was compiled for other input values or shapes{fixed}: {error}",
            code="UIF-RUN-SPECIALISED",
            target=self.target,
            hint="export the model again with an example like this input",
        )

    def get_stats(self) -> dict[str, Any]:
        """Counters since load. Times are in milliseconds, memory in MiB.

        ``latency_ms`` is the median over recent runs, the first run apart. ``peak_memory_mb`` is
        what the model needs by plan: weights, inputs, and the tensors made in a run at their
        peak, outputs included; ``None`` where a size is known at run time only.
        ``process_peak_mb`` is the whole process's peak resident size. ``host_ms`` is the mean
        time per run in each operator that runs on the host.

        ``arena_bytes`` is what each thread that runs the model keeps for its intermediate
        tensors; ``planned_peak_mb`` is that and the results, by plan; ``measured_peak_mb`` is
        what was allocated: the arena, and the most that the results of one run took. The last two
        are ``None`` without runs or where a run allocates by its own extents.
        """
        kinds: Counter[str] = Counter()
        for kernel in self._report["kernels"]:
            kinds[kernel["kind"]] += kernel["calls"]
        return self._stats.snapshot() | {
            "peak_memory_mb": self._planned_mb(),
            "process_peak_mb": process_peak_mb(),
            "arena_bytes": self._plan.arena_bytes if self._plan else 0,
            "planned_peak_mb": self._peak_mb(self._section.memory.get("activations")),
            "measured_peak_mb": self._peak_mb(self._measured_bytes()),
            "op_count": sum(kinds.values()),
            "kernels_by_kind": dict(kinds),
            "host_fallbacks": kinds.get("host", 0),
            "host_ms": self._host_ms(),
            "load_ms": self._load_ms,
            "target": self.target,
        }

    def _planned_mb(self) -> float | None:
        memory = self._section.memory
        given = map(_nbytes, tensors(self.inputs))
        sizes = [memory.get("weights", 0), memory.get("activations"), *given]
        known = [size for size in sizes if size is not None]
        return sum(known) / (1 << 20) if len(known) == len(sizes) else None

    @staticmethod
    def _peak_mb(nbytes: int | None) -> float | None:
        return None if nbytes is None else nbytes / (1 << 20)

    def _measured_bytes(self) -> int | None:
        """Bytes that one run's tensors took; ``None`` where the virtual machine allocates any."""
        if self._plan is None or self._plan.run_allocations or not self._stats.runs:
            return None
        return self._vm.arena_bytes + self._stats.most_bytes

    def _host_ms(self) -> dict[str, float]:
        runs = self._stats.runs or 1
        spent = host_clock.seconds_by_op(self._weight_addresses)
        return {op: seconds * 1e3 / runs for op, seconds in spent.items()}

    def placement(self) -> list[dict[str, Any]]:
        """Where each kind of operator runs (``native``, ``composed``, ``host``), why, and at what
        price: ``estimated_us`` per run, and for what runs on the host the measured mean
        ``host_ms``, ``None`` before the first run.
        """
        measured = self._host_ms() if self._stats.runs else {}
        return [
            row | ({"host_ms": measured.get(row["op"])} if row["where"] == "host" else {})
            for row in self._report["placement"]
        ]

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "an Engine holds mapped files and machine code and cannot be pickled or copied",
            code="UIF-USAGE-PICKLE",
            hint="pass the path of the .uif file, and call uif.load where it is used",
        )

    def __repr__(self) -> str:
        takes = ", ".join(str(spec) for spec in self.inputs)
        gives = ", ".join(str(spec) for spec in self.outputs)
        return f"<uif.Engine on {self.target}: ({takes}) -> ({gives})>"


def _nbytes(spec: TensorSpec) -> int | None:
    """Size of a tensor of ``spec``; ``None`` if an extent is symbolic."""
    extents = [extent for extent in spec.shape if isinstance(extent, int)]
    if len(extents) < len(spec.shape):
        return None
    return math.prod(extents) * numpy_dtype(stored_dtype(spec.dtype)).itemsize
