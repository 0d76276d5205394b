"""Helpers shared by the registries; TVM, torch and onnx are imported where they are used."""

import numpy as np

f32, f64, f16 = np.float32, np.float64, np.float16
i64, i32, i8, u8 = np.int64, np.int32, np.int8, np.uint8


def rng(seed=0):
    return np.random.default_rng(seed)


def randn(*shape, seed=0, dtype=f32):
    return rng(seed).standard_normal(shape).astype(dtype)


def seq(*shape, dtype=f32, start=0):
    return np.arange(start, start + int(np.prod(shape)), dtype=dtype).reshape(shape)


def node(op, ins, outs, **attr):
    from onnx import helper

    return helper.make_node(op, list(ins), list(outs), **attr)


def model(nodes, inputs, outputs, inits=None, opset=17, dyn=None, check=True, functions=()):
    """inputs: name -> array (fixes dtype and shape, unless dyn[name] gives dims);
    outputs: name -> (dtype, shape)."""
    import onnx
    from onnx import helper, numpy_helper

    t = helper.np_dtype_to_tensor_dtype
    dyn = dyn or {}
    gi = [
        helper.make_tensor_value_info(k, t(np.asarray(v).dtype), dyn.get(k, list(np.shape(v))))
        for k, v in inputs.items()
    ]
    go = [helper.make_tensor_value_info(k, t(np.dtype(d)), s) for k, (d, s) in outputs.items()]
    g = helper.make_graph(
        list(nodes),
        "g",
        gi,
        go,
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (inits or {}).items()],
    )
    doms = {n.domain for n in nodes if n.domain}
    m = helper.make_model(
        g,
        opset_imports=[helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in doms],
    )
    m.ir_version = 10
    if check:
        onnx.checker.check_model(m)
    return m


def ref(m, inputs):
    from onnx.reference import ReferenceEvaluator

    return [np.asarray(x) for x in ReferenceEvaluator(m).run(None, dict(inputs))]


def ort(m, inputs):
    """What ONNX Runtime computes without its graph optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(m.SerializeToString(), options)
    return [np.asarray(x) for x in session.run(None, dict(inputs))]


def untyped_model(nodes, inputs, outputs, inits=None, opset=17, dyn=None, functions=(), ml=3):
    """A model whose outputs are declared by name only; shapes and types must be inferred."""
    import onnx

    nodes = list(nodes)
    m = model(nodes, inputs, {}, inits, opset, dyn, check=False)
    m.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    m.functions.extend(functions)
    for entry in m.opset_import:
        if entry.domain == "ai.onnx.ml":
            entry.version = ml
    return m


def conv_transpose2d(x, w, stride, pads, dil, group):
    """Naive ConvTranspose (onnx.reference cannot do uneven grouped cases)."""
    n, c, h, wd = x.shape
    _, m, kh, kw = w.shape
    oh = stride * (h - 1) + dil * (kh - 1) + 1
    ow = stride * (wd - 1) + dil * (kw - 1) + 1
    y = np.zeros((n, m * group, oh, ow))
    cg = c // group
    for ci in range(c):
        g = ci // cg
        for i in range(h):
            for j in range(wd):
                for a in range(kh):
                    for b in range(kw):
                        y[:, g * m : (g + 1) * m, i * stride + a * dil, j * stride + b * dil] += (
                            x[:, ci, i, j][:, None] * w[ci, :, a, b][None]
                        )
    return y[:, :, pads[0] : oh - pads[2], pads[1] : ow - pads[3]].astype(x.dtype)


class Registry(list):
    def __init__(self, split):
        super().__init__()
        self.split = split

    def _add(self, **kw):
        assert kw["id"] not in {c["id"] for c in self}, kw["id"]
        kw["split"] = self.split
        self.append(kw)

    def onnx(
        self,
        id,
        source,
        area,
        title,
        right,
        nodes,
        inputs,
        outputs,
        inits=None,
        opset=17,
        expected=None,
        tol=(1e-4, 1e-5),
        dyn=None,
        check=True,
        ort=True,
    ):
        """nodes / inputs / inits / expected may be callables (built lazily)."""

        def build():
            ins = {k: np.asarray(v) for k, v in (inputs() if callable(inputs) else inputs).items()}
            ini = inits() if callable(inits) else inits
            m = model(nodes() if callable(nodes) else nodes, ins, outputs, ini, opset, dyn, check)
            exp = (
                expected(ins)
                if callable(expected)
                else (expected if expected is not None else ref(m, ins))
            )
            return m, ins, [np.asarray(e) for e in exp]

        self._add(
            id=id,
            source=source,
            kind="onnx",
            area=area,
            title=title,
            right=right,
            build=build,
            tol=tol,
            ort=ort,
        )

    def op(
        self,
        id,
        source,
        area,
        title,
        right,
        op,
        inputs,
        outputs,
        inits=None,
        names=None,
        opset=17,
        attrs=None,
        **kw,
    ):
        """One-node ONNX model; node inputs = graph inputs then initializers, or `names`."""
        ins = list(inputs) + list(inits or {}) if names is None else names
        self.onnx(
            id,
            source,
            area,
            title,
            right,
            lambda: [node(op, ins, outputs, **(attrs or {}))],
            inputs,
            outputs,
            inits,
            opset,
            **kw,
        )

    def graph(
        self,
        id,
        title,
        nodes,
        inputs,
        outputs=("y",),
        inits=None,
        opset=17,
        expected=ort,
        tol=(1e-4, 1e-5),
        dyn=None,
        functions=(),
    ):
        """A model of several nodes; ``expected`` is a list, or a function of model and inputs."""

        def build():
            ins = {k: np.asarray(v) for k, v in inputs.items()}
            made = nodes() if callable(nodes) else nodes
            local = functions() if callable(functions) else functions
            m = untyped_model(made, ins, outputs, inits, opset, dyn, local)
            exp = expected(m, ins) if callable(expected) else expected
            return m, ins, [np.asarray(e) for e in exp]

        self._add(
            id=id, source="", kind="onnx", area=self.split, title=title, right="", build=build,
            tol=tol,
        )  # fmt: skip

    def single(self, id, title, op, inputs, outputs=("y",), inits=None, names=None, attrs=None,
               domain="", **kw):  # fmt: skip
        """A model of one node; its inputs are the graph's, then the initializers, or ``names``."""
        ins = [*inputs, *(inits or {})] if names is None else names
        attrs = dict(attrs or {})
        if domain:
            attrs["domain"] = domain
        self.graph(
            id, title, lambda: [node(op, ins, outputs, **attrs)], inputs,
            [name for name in outputs if name], inits, **kw,
        )  # fmt: skip

    def torch(
        self,
        id,
        source,
        area,
        title,
        right,
        make,
        args,
        tol=(1e-4, 1e-5),
        dynamic_shapes=None,
        export_args=None,
    ):
        """make(): nn.Module, or a plain function of tensors; args(): tuple of tensors."""

        def build():
            import torch

            torch.manual_seed(0)
            a = args()
            torch.manual_seed(0)
            m = make()
            if not isinstance(m, torch.nn.Module):
                fn = m

                class FnModule(torch.nn.Module):
                    def forward(self, *xs):
                        return fn(*xs)

                m = FnModule()
            m = m.eval()
            with torch.no_grad():
                out = m(*[x.clone() if hasattr(x, "clone") else x for x in a])
            flat = []

            def walk(o):
                if isinstance(o, (list, tuple)):
                    for x in o:
                        walk(x)
                elif o is not None:
                    flat.append(o.detach().numpy().copy())

            walk(out)
            return m, a, flat

        kw = {
            "id": id,
            "source": source,
            "kind": "torch",
            "area": area,
            "title": title,
            "right": right,
            "build": build,
            "tol": tol,
        }
        if dynamic_shapes:
            kw["dynamic_shapes"] = dynamic_shapes
        if export_args:
            kw["export_args"] = export_args
        self._add(**kw)

    def relax(self, id, source, area, title, right, build, tol=(1e-4, 1e-5), **kw):
        """build() -> (tvm IRModule with main, inputs, expected)."""
        self._add(
            id=id,
            source=source,
            kind="relax",
            area=area,
            title=title,
            right=right,
            build=build,
            tol=tol,
            **kw,
        )

    def script(self, id, source, area, title, right, run):
        """run() returns '' when right, else a short reason ."""
        self._add(
            id=id,
            source=source,
            kind="script",
            area=area,
            title=title,
            right=right,
            build=None,
            run=run,
            tol=None,
        )


# ---- helpers for the TVM-level (relax / script) cases; TVM is imported inside
def matmul_mod(n=16):
    from tvm import te

    a = te.placeholder((n, n), name="A")
    b = te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return prim_mod([a, b, c])


def prim_mod(tensors):
    import tvm
    from tvm import te

    return tvm.IRModule({"main": te.create_prim_func(tensors).with_attr("global_symbol", "main")})


def design_space_ok(mod):
    """Sketch generation plus every post-processor; '' when all apply."""
    import tvm
    from tvm.s_tir import meta_schedule as ms

    tgt = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    ctx = ms.TuneContext(
        mod=mod, target=tgt, space_generator="post-order-apply", num_threads=1, rand_state=1
    )
    spaces = ctx.generate_design_space()
    for s in spaces:
        for p in ctx.space_generator.postprocs:
            p.apply(s)
    return "" if spaces else "empty design space"
