"""LoRA: against the gradients of A and B themselves, and as a run."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gmlp_flax as gf
from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.pytree import leaves_by_path as flat
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models.parameters import Layers, ParamMetadata
from gmlp_flax.training import loop, optimizer, step
from gmlp_flax.training.lora import Lora, lora_kernels
from tests.failures import raised
from tests.training import tiny

KERNEL = "encoder/blocks/proj/kernel"


def test_against_a_model_with_adapters_of_its_own():
    """Five steps of AdamW on A, B and a head, by autodiff through W0 + alpha / rank A B."""
    keys = jax.random.split(jax.random.key(0), 4)
    kernel = jax.random.normal(keys[0], (2, 6, 5))
    head = jax.random.normal(keys[1], (5,))
    x = jax.random.normal(keys[2], (16, 6))
    y = jax.random.normal(keys[3], (2, 16))
    params = {
        "encoder": {"blocks": {"proj": {"kernel": kernel}}, "norm": jnp.ones(5)},
        "head": {"kernel": head},
    }
    alpha = 6.0
    rank = 3

    def loss(params):
        hidden = (
            jnp.tanh(x @ params["encoder"]["blocks"]["proj"]["kernel"]) * params["encoder"]["norm"]
        )
        return jnp.square(hidden @ params["head"]["kernel"] - y).mean()

    def of_adapters(own):
        merged = kernel + alpha / rank * own["a"] @ own["b"]
        encoder = {"blocks": {"proj": {"kernel": merged}}, "norm": jnp.ones(5)}
        return loss({"encoder": encoder, "head": {"kernel": own["head"]}})

    adamw = optax.adamw(0.05, weight_decay=0.1)
    lora = Lora([KERNEL], ("head/",), rank=rank, alpha=alpha, seed=7)
    transformation = lora.transformation(lambda _: adamw)
    state = transformation.init(params)
    own = {"a": state.adapters[f"{KERNEL}/a"], "b": state.adapters[f"{KERNEL}/b"], "head": head}
    inner = adamw.init(own)
    for _ in range(5):
        updates, state = transformation.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
        moved, inner = adamw.update(jax.grad(of_adapters)(own), inner, own)
        own = optax.apply_updates(own, moved)
    change = flat(params)[KERNEL] - np.asarray(kernel)
    np.testing.assert_allclose(change, alpha / rank * own["a"] @ own["b"], atol=2e-5)
    np.testing.assert_allclose(params["head"]["kernel"], own["head"], atol=1e-5)
    np.testing.assert_array_equal(params["encoder"]["norm"], np.ones(5))
    assert np.abs(change).max() > 0.05
    assert [np.linalg.matrix_rank(layer, 1e-4) for layer in change] == [3, 3]


def test_which_kernels_have_it():
    """Those over channels, of each layer; not those over tokens."""
    leaf = jax.ShapeDtypeStruct((2, 4, 4), jnp.float32)
    shapes = {
        "encoder": {"blocks": {"proj": {"kernel": leaf}, "tokens": {"kernel": leaf}}},
        "stem": {"kernel": leaf},
    }
    layers = Layers(first=0, total=2)
    resized = ParamMetadata(resize=lambda leaf, shape, grids: leaf, layers=layers)
    metadata = {
        KERNEL: ParamMetadata(layers=layers),
        "encoder/blocks/tokens/kernel": resized,
        "stem/kernel": ParamMetadata(),
    }
    assert lora_kernels(shapes, metadata) == [KERNEL]


def test_the_state_has_adapters_alone(tmp_path, partition):
    config = tiny.text_config(tmp_path)
    config.optimizer.update(lora_rank=2, warmup=0, learning_rate=0.1)
    task, data = tiny.open_task(config, tmp_path)
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    before = flat(jax.device_get(state.params))
    # A and B of rank 2: proj_in 8 x 16, proj_out 8 x 8, in 2 layers
    kernels = 2 * 2 * (8 + 16) + 2 * 2 * (8 + 8)
    # two moments, two counters
    assert sum(leaf.size for leaf in jax.tree.leaves(state.opt_state)) == 3 * kernels + 2
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(2):
            state, _ = training.step(state, partition.put_batch(next(batches)))
    after = flat(jax.device_get(state.params))
    moved = [name for name in before if np.any(before[name] != after[name])]
    assert moved == ["encoder/blocks/proj_in/kernel", "encoder/blocks/proj_out/kernel"]
    for name in moved:
        assert [np.linalg.matrix_rank(layer, 1e-5) for layer in after[name] - before[name]] == [
            2,
            2,
        ]


def test_a_run(text_run, tmp_path):
    """From a run, by the config; what is exported is a plain model; what has nothing to adapt is
    refused."""
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_run)
    config.steps = 2
    config.optimizer.update(lora_rank=2, warmup=0)
    assert loop.train(config, str(tmp_path / "run"))["step"] == 2
    old, new = (flat(gf.load(str(folder)).params) for folder in (text_run, tmp_path / "run"))
    moved = {name.rpartition("/")[2] for name in old if np.any(old[name] != new[name])}
    assert moved == {"kernel"}
    config.init_from = ""
    with pytest.raises(RunError, match="lora_rank is 2, and there is nothing to adapt"):
        loop.train(config, str(tmp_path / "other"))
    config.optimizer.update(name="schedule_free", schedule="constant")
    assert "optimizer.lora_rank is 2" in raised(
        ConfigError, loop.train, config, str(tmp_path / "other")
    )
    assert json.loads((tmp_path / "run" / "config.json").read_text())["optimizer"]["lora_rank"] == 2


def test_what_has_no_channel_projections(config):
    config.optimizer.lora_rank = 4
    params = {"line": {"kernel": jnp.ones(3), "bias": jnp.ones(())}}
    assert "lora_rank is 4" in raised(RunError, optimizer.make, config, params, tiny.LINE_METADATA)
