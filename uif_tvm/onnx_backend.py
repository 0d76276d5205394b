"""uif as an ONNX backend (``onnx.backend.base``): what ONNX's own tools and tests expect.

::

    import onnx.backend.test
    import uif_tvm.onnx_backend as backend

    tests = onnx.backend.test.BackendTest(backend, __name__)
    globals().update(tests.include(r"test_relu").test_cases)

A model is compiled when inputs of a kind (structure, shapes, dtypes) arrive for the first time,
since ONNX's interface prepares a model without any; each kind is compiled once. Where an operator
needs the value of an input at import, values of that input count as well.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, defs, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from uif_tvm import api
from uif_tvm.errors import InputError, TargetError, UsageError
from uif_tvm.runtime.elements import element_name
from uif_tvm.runtime.engine import Engine
from uif_tvm.runtime.host import host
from uif_tvm.runtime.strings import TEXT
from uif_tvm.target.registry import get_target

MAX_ENGINES = 32
"""Compiled variants that one prepared model keeps; the one unused for longest goes first."""

#: Options of :func:`uif_tvm.export` and :func:`uif_tvm.load` that ``prepare`` takes.
_EXPORT_OPTIONS = frozenset({"optimize_level", "fallback_mode", "cache_dir", "dynamic_shapes"})
_LOAD_OPTIONS = frozenset({"threads"})
#: What ONNX's test runner passes along to every backend and means for itself.
_RUNNER_OPTIONS = frozenset({"rtol", "atol"})


class UifBackendRep(BackendRep):  # type: ignore[misc]
    """A model ready to run on inputs of any kind that it takes.

    Make one with :meth:`UifBackend.prepare`. Safe to use from several threads.
    """

    def __init__(self, model: ModelProto, target: str, options: Mapping[str, Any]) -> None:
        self._model = model
        self._target = target
        self._export = {k: v for k, v in options.items() if k in _EXPORT_OPTIONS}
        self._load = {k: v for k, v in options.items() if k in _LOAD_OPTIONS}
        held = {tensor.name for tensor in model.graph.initializer}
        self._every = [value.name for value in model.graph.input]
        self._inputs = [name for name in self._every if name not in held]
        self._outputs = namedtupledict("Outputs", [value.name for value in model.graph.output])
        self._engines: OrderedDict[Any, list[Engine]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def engines(self) -> tuple[Engine, ...]:
        """What has been compiled so far, one engine per kind of inputs."""
        return tuple(engine for group in self._engines.values() for engine in group)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model once.

        Args:
            inputs: one value per input in order (arrays, lists for sequences, ``None`` for
                optionals left out), a mapping by name, or the array of a model with one input.
            kwargs: nothing; ONNX's interface has the parameter.

        Returns:
            A named tuple with one value per output.

        Raises:
            InputError: the inputs do not fit the model.
            UifError: it cannot be compiled for them, see :func:`uif_tvm.export`.
        """
        if kwargs:
            raise UsageError(f"run has no option {next(iter(kwargs))!r}")
        named = self._named(inputs)
        kind = tuple((name, _kind(named[name])) for name in self._inputs)
        with self._lock:
            candidates = list(self._engines.get(kind, ()))
        for engine in candidates:
            try:
                return self._named_outputs(engine.run(named))
            except InputError as error:
                if error.code != "UIF-RUN-SPECIALISED":
                    raise
        return self._named_outputs(self._compiled(kind, named).run(named))

    def _named_outputs(self, values: list[Any]) -> tuple[Any, ...]:
        named: tuple[Any, ...] = self._outputs(*values)
        return named

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            values = dict(inputs)
        else:
            alone = not isinstance(inputs, list | tuple)
            row = [inputs] if alone else list(inputs)
            names = self._every if len(row) == len(self._every) else self._inputs
            if len(row) != len(names):
                raise InputError(
                    f"got {len(row)} inputs, the model takes {len(self._inputs)}: "
                    f"{', '.join(self._inputs) or 'none'}",
                    code="UIF-RUN-COUNT",
                )
            values = dict(zip(names, row, strict=True))
        missing = [name for name in self._inputs if name not in values]
        if missing:
            raise InputError(
                f"missing input {', '.join(map(repr, missing))}",
                code="UIF-RUN-NAMES",
                hint=f"the model takes {', '.join(self._inputs) or 'none'}",
            )
        return {name: _numpy(values[name]) for name in self._inputs}

    def _compiled(self, kind: Any, example: dict[str, Any]) -> Engine:
        """An engine for inputs like ``example``."""
        with tempfile.TemporaryDirectory(prefix="uif-onnx-") as folder:
            path = Path(folder) / "model.uif"
            api.export(self._model, example, path, target_device=self._target, **self._export)
            engine = api.load(path, **self._load)
        with self._lock:
            self._engines.setdefault(kind, []).append(engine)
            self._engines.move_to_end(kind)
            while sum(map(len, self._engines.values())) > MAX_ENGINES:
                oldest = next(iter(self._engines))
                self._engines[oldest].pop(0)
                if not self._engines[oldest]:
                    del self._engines[oldest]
        return engine


class UifBackend(Backend):  # type: ignore[misc]
    """The backend's entry points; this module has them as functions too."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the device is there; what a model's operators need shows when it is run."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> UifBackendRep:
        """A model ready to run; it is compiled when the first inputs arrive.

        Args:
            model: the model.
            device: a device as ONNX writes it (``"CPU"``), or any target id of ours.
            kwargs: ``optimize_level``, ``fallback_mode``, ``cache_dir``, ``dynamic_shapes`` (see
                :func:`uif_tvm.export`), ``threads`` (see :func:`uif_tvm.load`).

        Raises:
            TargetError: there is no such device.
            UsageError: an unknown option.
        """
        target = get_target(_target_id(device)).id
        known = _EXPORT_OPTIONS | _LOAD_OPTIONS | _RUNNER_OPTIONS
        unknown = [name for name in kwargs if name not in known]
        if unknown:
            raise UsageError(
                f"prepare has no option {unknown[0]!r}",
                hint=f"it takes {', '.join(sorted(_EXPORT_OPTIONS | _LOAD_OPTIONS))}",
            )
        return UifBackendRep(model, target, kwargs)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile and run a model once; see :meth:`prepare` and :meth:`UifBackendRep.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Compile and run one node.

        Args:
            node: the node.
            inputs: one value per input that the node names, in order, or a mapping by name.
            device: see :meth:`prepare`.
            outputs_info: dtype and shape of each output; not needed.
            kwargs: options of :meth:`prepare`, and ``opset_version`` (default: the newest).
        """
        version = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        values = inputs if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        missing = [name for name in names if name not in values]
        if missing:
            raise InputError(f"missing input {missing[0]!r}", code="UIF-RUN-NAMES")
        values = {name: _numpy(values[name]) for name in names}
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_value_info(name, _type_of(value)) for name, value in values.items()],
            [ValueInfoProto(name=name) for name in node.output if name],
        )
        imports = [helper.make_opsetid(node.domain, version)]
        return cls.run_model(
            helper.make_model(graph, opset_imports=imports), values, device, **kwargs
        )

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a target for the device that this machine can run."""
        try:
            return not host().missing(get_target(_target_id(device)).requirement)
        except TargetError:
            return False


def _target_id(device: str) -> str:
    """ONNX writes kinds of devices in capitals and may number them; ours are named in small."""
    return device.partition(":")[0].lower()


def _numpy(value: Any) -> Any:
    """Values as arrays, lists of them, or ``None``; scalars become arrays of no dimensions."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_numpy(item) for item in value]
    return value if isinstance(value, np.ndarray) else np.asarray(value)


def _kind(value: Any) -> Any:
    """What decides whether one compiled variant serves two inputs."""
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(map(_kind, value))
    return element_name(value), value.shape


def _type_of(value: Any) -> TypeProto:
    """The ONNX type of a value."""
    if value is None:
        raise InputError("an input of a node cannot be None", hint="leave out the input's name")
    if isinstance(value, list):
        if not value:
            raise InputError("an empty list does not tell its type", hint="run a model instead")
        return helper.make_sequence_type_proto(_type_of(value[0]))
    dtype = np.dtype(object) if element_name(value) == TEXT else value.dtype
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), value.shape)


is_compatible = UifBackend.is_compatible
prepare = UifBackend.prepare
run_model = UifBackend.run_model
run_node = UifBackend.run_node
supports_device = UifBackend.supports_device
