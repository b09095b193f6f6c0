"""What a checkpoint says of itself, as JSON and back; whatever is changed in it is noticed."""

import copy
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


def by_file(value: dict) -> dict:
    return json.loads(json.dumps(value))


@pytest.mark.smoke
@pytest.mark.parametrize("metrics", [None, {}, {"loss": 0.1, "top1": 1.0}])
def test_round_trip(metrics):
    assert Manifest.from_json(by_file(manifest(metrics).to_json())) == manifest(metrics)


def test_metrics_that_are_not_finite():
    read = Manifest.from_json(by_file(manifest({"a": math.nan, "b": -math.inf}).to_json()))
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
def test_any_change_is_noticed(keys):
    value = by_file(manifest({"loss": 0.5}).to_json())
    for change in ("other", "gone"):
        changed = copy.deepcopy(value)
        part = changed["manifest"]
        for key in keys[:-1]:
            part = part[key]
        if change == "gone":
            del part[keys[-1]]
        else:
            part[keys[-1]] = 9
        with pytest.raises(ValueError, match="checksum"):
            Manifest.from_json(changed)
    value["sha256"] = value["sha256"][::-1]
    with pytest.raises(ValueError, match="checksum"):
        Manifest.from_json(value)
