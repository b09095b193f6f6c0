"""Every optimizer with its state split over fake devices, which need a process of their own."""

import numpy as np
import pytest

from gmlp_flax.config.optimizers import OPTIMIZERS
from tests.training import fake_devices

pytestmark = pytest.mark.slow


def test_fsdp_changes_only_rounding_and_splits_the_state(tmp_path):
    fake_devices.run("many_optimizers", str(tmp_path), str(tmp_path / "out.npz"))
    results = fake_devices.read(tmp_path / "out.npz")
    for name in (*OPTIMIZERS, "lora"):
        alone, split = (results[f"{name}:{devices}"] for devices in (1, 8))
        assert alone.keys() == split.keys()
        shares = [(tree.pop("split"), tree.pop("size")) for tree in (alone, split)]
        for share, size in shares:
            assert share > 0.7 or size < 0.1, (name, shares)
        for key, expected in alone.items():
            np.testing.assert_allclose(
                split[key], expected, rtol=1e-3, atol=2e-5, err_msg=f"{name} {key}"
            )
