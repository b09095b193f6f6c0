"""The manifest of a checkpoint is kept as JSON, and any change of it is noticed."""

import json
import math

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from gmlp_flax.checkpoints.manifest import Manifest, describe_leaves

TREE = {"step": jnp.int32(7), "params": {"half": jnp.ones((2, 3), jnp.bfloat16)}}
CHECKSUMS = {"step": np.uint32(5), "params/half": np.uint32(2**32 - 1)}


def manifest(metrics=None) -> Manifest:
    return Manifest(
        run="a0",
        step=7,
        metrics=metrics,
        leaves=describe_leaves(TREE, CHECKSUMS),
        files={"labels.json": "00ff"},
    )


def through_json(original: Manifest) -> dict:
    """The values of a manifest, written to JSON and read."""
    text = json.dumps(original.to_json())
    return json.loads(text)


@pytest.mark.smoke
@pytest.mark.parametrize("metrics", [None, {}, {"loss": 0.1, "top1": 1.0}])
def test_manifests_survive_json(metrics):
    original = manifest(metrics)
    assert Manifest.from_json(through_json(original)) == original


def test_metrics_need_not_be_finite():
    original = manifest({"a": math.nan, "b": -math.inf})
    read = Manifest.from_json(through_json(original))
    assert math.isnan(read.metrics["a"])
    assert read.metrics["b"] == -math.inf


def test_shapes_are_those_of_the_state():
    shapes = manifest().shapes()
    assert shapes["step"].shape == ()
    assert shapes["step"].dtype == np.int32
    half = shapes["params"]["half"]
    assert half.shape == (2, 3)
    assert half.dtype == ml_dtypes.bfloat16
    assert manifest().leaves["params/half"].checksum == 2**32 - 1


@pytest.mark.parametrize(
    "keys",
    [
        ("run",),
        ("step",),
        ("metrics", "loss"),
        ("leaves", "step", "shape"),
        ("leaves", "params/half", "dtype"),
        ("leaves", "step", "checksum"),
        ("files", "labels.json"),
    ],
)
@pytest.mark.parametrize("is_deleted", [False, True])
def test_changed_and_deleted_values_are_noticed(keys, is_deleted):
    values = through_json(manifest({"loss": 0.5}))
    part = values["manifest"]
    *parents, last = keys
    for key in parents:
        part = part[key]
    if is_deleted:
        del part[last]
    else:
        part[last] = 9
    with pytest.raises(ValueError, match="checksum"):
        Manifest.from_json(values)


def test_changed_checksums_are_noticed():
    values = through_json(manifest())
    values["sha256"] = values["sha256"][::-1]
    with pytest.raises(ValueError, match="checksum"):
        Manifest.from_json(values)
