"""Blocks of other papers, and causal ones, on fake devices: a mesh changes nothing but rounding.
See many_blocks.py."""

import itertools

import numpy as np
import pytest

from tests.training import fake_devices
from tests.training.many_blocks import BLOCKS, MESHES

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("blocks") / "results.npz"
    fake_devices.run("many_blocks", str(out))
    return fake_devices.read(out)


def test_a_mesh_changes_nothing_but_rounding(results):
    """The loss and each gradient of a whole model. One test: two might run in processes that each
    make the results."""
    for name, sizes in itertools.product(BLOCKS, MESHES[1:]):
        expected = results[f"{name}:1x1x1"]
        split = results[mesh := f"{name}:{'x'.join(map(str, sizes))}"]
        assert split.keys() == expected.keys()
        assert len(split) > 10
        for path, leaf in expected.items():
            atol = 1e-4 * np.abs(leaf).max() + 1e-6
            np.testing.assert_allclose(
                split[path], leaf, rtol=1e-4, atol=atol, err_msg=f"{mesh} {path}"
            )
