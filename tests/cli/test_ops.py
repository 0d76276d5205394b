"""``uif ops``: the vocabulary that targets, reports and coverage share."""

from __future__ import annotations

import json
import warnings

import pytest

from uif_tvm import ops
from uif_tvm.cli.ops import describe

from .conftest import invoke


def test_list_names_every_operator():
    done = invoke("ops", "list", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], done.exit_code) == ("uif.ops", 0)
    assert {row["name"] for row in document["ops"]} == {spec.name for spec in ops.specs()}
    assert all(row["cases"] for row in document["ops"])


def test_list_of_one_family_and_of_none():
    done = invoke("ops", "list", "--family", "movement")
    assert "permute_dims" in done.stdout
    assert "exp " not in done.stdout
    done = invoke("ops", "list", "--family", "nope")
    assert done.exit_code == 2
    assert "elementwise" in done.stderr


def test_show_has_the_meaning_and_the_attributes():
    done = invoke("ops", "show", "permute_dims")
    assert done.exit_code == 0
    assert "axes=None" in done.stdout
    assert "np.transpose" in done.stdout
    assert "numpy.maximum" in invoke("ops", "show", "maximum").stdout


def test_show_of_an_unknown_operator():
    done = invoke("ops", "show", "nope")
    assert done.exit_code == 2
    assert "uif ops list" in done.stderr


@pytest.mark.parametrize("spec", [s for s in ops.specs() if s.decompose], ids=lambda s: s.name)
def test_decompositions_are_listed(spec):
    assert describe(spec)["composed_of"], "its first applicable case has one"


def test_listing_the_decompositions_warns_of_nothing():
    """The boundary cases hold empty arrays, of which NumPy would warn on every listing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        describe(ops.find("std"))
        describe(ops.find("mean"))
