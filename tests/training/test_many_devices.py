"""Fake CPU devices: their number is fixed before JAX starts, so each number has a process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, processes = tmp_path_factory.mktemp("devices"), {}
    for devices in (1, 2, 4):
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "PJRT_NPROC": "16",
            "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.training.many_devices", str(folder), str(folder / f"{devices}.npz")]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
        with np.load(folder / f"{devices}.npz") as arrays:
            processes[devices] = dict(arrays)
    return processes


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4])
def test_number_of_devices_makes_no_difference(results, devices):
    found, expected = results[devices], results[1]
    assert found.pop("devices") == devices and found.keys() | {"devices"} == expected.keys()
    assert found["predictions"] == expected["predictions"] and found["examples"] == expected["examples"]
    for name in found.keys() - {"checksums"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_checksum_does_not_depend_on_sharding(results):
    assert len(set(np.concatenate([result["checksums"] for result in results.values()]))) == 1
