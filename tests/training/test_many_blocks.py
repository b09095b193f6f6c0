"""Blocks of other papers, and causal ones, on fake devices: a mesh changes nothing but rounding.
See many_blocks.py."""

import numpy as np
import pytest

from tests.training import fake_devices
from tests.training.many_blocks import BLOCKS, split_meshes


def check(folder, every: bool) -> None:
    """The loss and each gradient of a whole model are those of a single device."""
    out = folder / "results.npz"
    fake_devices.run("many_blocks", str(out), *(["all"] if every else []))
    results = fake_devices.read(out)
    compared = 0
    for number, name in enumerate(BLOCKS):
        expected = results[f"{name}:1x1x1"]
        for sizes in split_meshes(number, every):
            mesh = f"{name}:{'x'.join(map(str, sizes))}"
            split = results[mesh]
            assert split.keys() == expected.keys()
            assert len(split) > 10
            compared += 1
            for path, leaf in expected.items():
                atol = 1e-4 * np.abs(leaf).max() + 1e-6
                np.testing.assert_allclose(
                    split[path], leaf, rtol=1e-4, atol=atol, err_msg=f"{mesh} {path}"
                )
    assert compared == len(BLOCKS) * (2 if every else 1)


@pytest.mark.slow
def test_a_mesh_changes_nothing_but_rounding(tmp_path):
    check(tmp_path, every=False)


@pytest.mark.nightly
def test_no_mesh_changes_more_than_rounding(tmp_path):
    check(tmp_path, every=True)
