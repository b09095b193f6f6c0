import jax
import numpy as np
import pytest

from gmlp_flax.training import partition
from gmlp_flax.training.errors import RunError


@pytest.mark.parametrize(
    ("batch_size", "microbatches", "devices", "advice"),
    [
        (6, 1, 4, "batch is 6, which does not divide by 4 devices: set it to 4 or 8"),
        (12, 4, 2, "batch is 12, which does not divide by 2 devices x 4 microbatches: set it to 8 or 16"),
        (3, 1, 8, "batch is 3, which does not divide by 8 devices: set it to 8"),
    ],
)
def test_uneven_batch_is_refused_with_sizes_that_would_do(monkeypatch, batch_size, microbatches, devices, advice):
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    with pytest.raises(RunError) as caught:
        partition.check_batch(batch_size, microbatches, "batch")
    assert str(caught.value) == advice


def test_even_batch_passes(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    partition.check_batch(16, 4, "batch")


def test_batches_are_split_and_states_replicated(mesh):
    batch = partition.put_batch(mesh, {"x": np.arange(6.0, dtype=np.float32).reshape(3, 2)})
    assert batch["x"].sharding == partition.over_batch(mesh)
    np.testing.assert_array_equal(batch["x"], np.arange(6).reshape(3, 2))
    described = partition.describe({"w": np.zeros((2, 3), np.float32)}, mesh)["w"]
    assert (described.shape, described.dtype, described.sharding) == ((2, 3), np.float32, partition.replicated(mesh))
