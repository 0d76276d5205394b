"""PyTorch frontend: ``torch.nn.Module``, ``ExportedProgram`` and ``.pt2`` files to Relax.

Every operator has a converter of ours that follows PyTorch's own rules for dtypes, shapes, NaN
and rounding, and the importer compares each result's shape and dtype with what PyTorch computed
while exporting. What cannot be converted is refused with all operators listed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uif_tvm.frontends.imported import ImportedModel

__all__ = ["import_torch"]


def import_torch(
    model: Any,
    dummy_input: Any = None,
    *,
    host_fallback: bool = False,
    dynamic_shapes: Any = None,
) -> ImportedModel:
    """Bring a PyTorch model into Relax.

    Args:
        model: a ``torch.nn.Module``, a ``torch.export.ExportedProgram``, or the path of a
            ``.pt2`` file written by ``torch.export.save``.
        dummy_input: example input of a module: one tensor or NumPy array, a tuple of positional
            arguments, or a dict of keyword arguments; containers may nest. Not needed for
            programs that are exported already.
        host_fallback: let operators that cannot be converted run on the host through PyTorch.
        dynamic_shapes: axes of a module's inputs that stay open, see
            :mod:`uif_tvm.frontends.dynamic`.

    Raises:
        ImportModelError: the file is damaged or unsafe, or PyTorch cannot export the module.
        UnsupportedError: operators without a converter, all of them listed.
    """
    from uif_tvm.frontends.torch.importer import import_program
    from uif_tvm.frontends.torch.program import export_program

    program, names = export_program(model, dummy_input, dynamic_shapes)
    return import_program(program, host_fallback, names)
