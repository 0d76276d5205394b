"""Probes of TVM itself that are not models; tests.cases.guards has our answers."""

from __future__ import annotations

import numpy as np
from caselib import Registry, design_space_ok, f32, i64, matmul_mod, model, node, prim_mod

R = Registry("probes")
T = "apache/tvm#"
A = np.array


def _export_roundtrip():
    import io

    import numpy as np
    import torch
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.ReLU()).eval()
    x = torch.randn(2, 3, 4)
    buf = io.BytesIO()
    torch.export.save(torch.export.export(m, (x,)), buf)
    buf.seek(0)
    mod = from_exported_program(torch.export.load(buf))
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    got = vm["main"](tvm.runtime.tensor(x.numpy()))[0].numpy()
    return "" if np.allclose(got, m(x).detach().numpy(), atol=1e-5) else "values differ"


R.script(
    "s-torch-export-save-load",
    T + "18573",
    "torch-import",
    "a program saved with torch.export.save and loaded again cannot be imported",
    "imports and gives the eager value",
    _export_roundtrip,
)


def _scatter_oob():
    import numpy as np
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    ins = {
        "d": np.zeros((3, 4), f32),
        "i": np.array([[2**30, 0, 1, 2]], i64),
        "u": np.ones((1, 4), f32),
    }
    m = model(
        [node("ScatterElements", ["d", "i", "u"], ["y"], axis=0)],
        ins,
        {"y": (f32, [3, 4])},
        opset=18,
    )
    vm = relax.VirtualMachine(tvm.compile(from_onnx(m), "llvm"), tvm.cpu())
    try:
        vm["main"](*[tvm.runtime.tensor(v) for v in ins.values()])
    except Exception:
        return ""
    return "out-of-range scatter index accepted without an error"


R.script(
    "s-scatter-out-of-range",
    T + "20297",
    "robust-index",
    "an out-of-range ScatterElements index writes outside the output buffer (SIGSEGV)",
    "an error that names the index; never a crash",
    _scatter_oob,
)


def _ms():
    from tvm.s_tir import meta_schedule as ms

    return ms


def _db_roundtrip_layout():
    import os
    import tempfile

    import tvm
    from tvm import s_tir

    ms = _ms()
    sch = s_tir.Schedule(matmul_mod(), debug_mask="all")
    blk = sch.get_sblock("C") if hasattr(sch, "get_sblock") else sch.get_block("C")
    f = (
        sch.transform_sblock_layout
        if hasattr(sch, "transform_sblock_layout")
        else sch.transform_block_layout
    )
    f(blk, lambda i, j, k: (i * 16 + j, k))
    d = tempfile.mkdtemp()
    p = (os.path.join(d, "w.json"), os.path.join(d, "t.json"))
    db = ms.database.JSONDatabase(*p)
    wl = db.commit_workload(matmul_mod())
    db.commit_tuning_record(
        ms.database.TuningRecord(
            sch.trace,
            wl,
            [1.0],
            tvm.target.Target("llvm"),
            ms.arg_info.ArgInfo.from_prim_func(matmul_mod()["main"]),
        )
    )
    db2 = ms.database.JSONDatabase(*p)
    rec = db2.get_all_tuning_records()[0]
    s2 = s_tir.Schedule(rec.workload.mod, debug_mask="all")
    rec.trace.apply_to_schedule(s2, remove_postproc=False)
    tvm.ir.assert_structural_equal(s2.mod, sch.mod)
    return ""


R.script(
    "s-db-replay-transform-layout",
    T + "16288",
    "tuning-db",
    "a record whose trace has transform_block_layout cannot be replayed after a JSON round trip",
    "same schedule after reload",
    _db_roundtrip_layout,
)


def _space_reverse_sequence():
    from tvm import te, topi

    x = te.placeholder((4, 6), name="x")
    n = te.placeholder((4,), dtype="int32", name="l")
    return design_space_ok(prim_mod([x, n, topi.reverse_sequence(x, n, seq_axis=1, batch_axis=0)]))


R.script(
    "s-space-reverse-sequence",
    T + "18423",
    "tuning",
    "tuning a valid reverse_sequence kernel raises ScheduleError in a post-processor",
    "a non-empty design space, every post-processor applies",
    _space_reverse_sequence,
)


def _json_roundtrip():
    import tvm

    mod = matmul_mod()
    tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
    return ""


R.script(
    "s-module-json-roundtrip",
    T + "20094",
    "tuning-db",
    "a TVM wheel with another tvm-ffi release crashes when an IR node is saved as JSON",
    "the module comes back equal; or the mismatch is refused at import",
    _json_roundtrip,
)
