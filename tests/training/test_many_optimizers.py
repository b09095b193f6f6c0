"""Every optimizer with its state sharded over fake devices, which need a separate process."""

import pytest
from numpy.testing import assert_allclose

from gmlp_flax.config.optimizers import OPTIMIZERS
from tests.training import fake_devices

pytestmark = pytest.mark.slow


def test_fsdp_changes_only_rounding_and_splits_the_state(tmp_path):
    fake_devices.run("many_optimizers", str(tmp_path), str(tmp_path / "out.npz"))
    results = fake_devices.read(tmp_path / "out.npz")
    for name in (*OPTIMIZERS, "lora"):
        single = results[f"{name}:1"]
        sharded = results[f"{name}:8"]
        assert single.keys() == sharded.keys()
        for arrays in (single, sharded):
            split = arrays.pop("split")
            size = arrays.pop("size")
            assert split > 0.7 or size < 0.1, (name, split, size)
        for key, expected in single.items():
            message = f"{name} {key}"
            assert_allclose(sharded[key], expected, rtol=1e-3, atol=2e-5, err_msg=message)
