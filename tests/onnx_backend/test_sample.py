"""A sample of ONNX's own backend tests, every kind of input and output, run as upstream runs it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import uif_tvm.onnx_backend as backend

SAMPLE = """
    test_abs test_add_uint8 test_and_bcast3v2d test_clip_default_int8_inbounds test_matmul_bcast
    test_basic_conv_with_padding test_castlike_BFLOAT16_to_FLOAT test_cast_FLOAT_to_FLOAT8E5M2
    test_cast_no_saturate_FLOAT16_to_FLOAT8E4M3FNUZ test_cast_FLOAT8E4M3FN_to_FLOAT16
    test_castlike_FLOAT_to_INT4 test_dequantizelinear_float4e2m1 test_quantizelinear_int2
    test_cast_e8m0_FLOAT_to_FLOAT8E8M0 test_equal_string test_string_concat_utf8
    test_ai_onnx_ml_label_encoder_string_int test_identity_sequence test_sequence_insert_at_back
    test_sequence_map_identity_1_sequence test_split_to_sequence_1 test_if test_if_seq
    test_loop11 test_loop13_seq test_scan9_sum test_identity_opt
    test_optional_has_element_empty_optional_input test_optional_get_element_optional_sequence
    test_nonzero_example test_reduce_sum_empty_set test_reshape_extended_dims
    test_constantofshape_int_shape_zero test_range_float_type_positive_delta_expanded
""".split()


@pytest.fixture(scope="module")
def upstream():
    """Upstream's test case class over our backend: one method per test and device."""
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return BackendTest(backend, __name__).test_cases["OnnxBackendNodeModelTest"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_as_upstream_runs_it(upstream, name, monkeypatch, tmp_path):
    monkeypatch.setenv("UIF_CACHE_DIR", str(tmp_path))
    method = f"{name}_cpu"
    with np.errstate(all="ignore"):
        getattr(upstream(method), method)()
