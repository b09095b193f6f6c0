"""Blocks of other papers, and causal ones, on fake devices: a mesh changes only rounding. See
many_blocks.py."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.training import fake_devices
from tests.training.many_blocks import BLOCKS, REPEATED, names, split_meshes


def assert_same(found: dict, expected: dict, mesh: str) -> None:
    """Checks that loss and gradients are equal up to rounding."""
    assert found.keys() == expected.keys()
    assert len(found) > 10
    for path, leaf in expected.items():
        largest = np.abs(leaf).max()
        tolerance = {"rtol": 1e-4, "atol": 1e-4 * largest + 1e-6}
        assert_allclose(found[path], leaf, **tolerance, err_msg=f"{mesh} {path}")


def check(folder, every: bool) -> None:
    """Checks that the loss and each gradient of a model equal those on a single device."""
    out = folder / "results.npz"
    arguments = ["all"] if every else []
    fake_devices.run("many_blocks", str(out), *arguments)
    results = fake_devices.read(out)
    compared = 0
    for number, name in enumerate(names(every)):
        expected = results[f"{name}:1x1x1"]
        for sizes in split_meshes(number, every):
            mesh_text = "x".join(map(str, sizes))
            mesh = f"{name}:{mesh_text}"
            assert_same(results[mesh], expected, mesh)
            compared += 1
    expected_count = 2 * len(BLOCKS) if every else len(BLOCKS) - len(REPEATED)
    assert compared == expected_count


@pytest.mark.slow
def test_mesh_changes_only_rounding(tmp_path):
    check(tmp_path, every=False)


@pytest.mark.nightly
def test_all_meshes_change_only_rounding(tmp_path):
    check(tmp_path, every=True)
