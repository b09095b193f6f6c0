import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models.blocks.synthesizer import SynthesizerBlock
from gmlp_flax.models.parameters import Grids, token_logits
from gmlp_flax.training import optimizer, warm_start
from tests.models.reference import quick_jit, small_spec


def block(kind="random", **fields):
    return SynthesizerBlock(
        small_spec(**{"block": "synthesizer", "synthesizer": kind} | fields), nnx.Rngs(0)
    )


def tiny_config(**model):
    config = gmlp_config.default(block="synthesizer")
    config.model.update({"layers": 2, "d_model": 8, "d_ffn": 8, "vocab_size": 20} | model)
    return config


@pytest.mark.parametrize(("length", "given", "factors"), [
    (128, 0, (8, 16)), (64, 0, (8, 8)), (7, 0, (1, 7)), (12, 6, (6, 2)),
])  # fmt: skip
def test_factors_of_dense_logits(length, given, factors):
    spec = small_spec(block="synthesizer", length=length, dense_factor=given)
    assert spec.factors == factors


@pytest.mark.parametrize("kind", ["random", "fixed_random", "factorized_random"])
def test_random_logits_begin_with_the_standard_deviation_that_is_asked(kind):
    for std in (1.0, 0.25):
        module = block(kind, dtype="float32", length=64, random_std=std)
        scores = module.attention_scores(jnp.zeros((1, 64, 6)))
        assert scores.shape == (1, 3, 64, 64)
        assert abs(scores.std() / std - 1) < 0.12
        assert abs(scores.mean()) < 0.1 * std


def test_fixed_logits_stay_as_they_are_under_optimizers():
    """Though decay, momentum and the trust ratio change all else."""
    config = tiny_config(synthesizer="fixed_random+dense", length=5, heads=2, layers=1)
    task = tasks.find(config.task)(config)
    before = quick_jit(task.init)(jax.random.key(0))
    tokens = jnp.arange(10).reshape(2, 5)
    places = jnp.zeros((2, 1), int)
    gradient = quick_jit(jax.grad(lambda params: (task.apply(params, tokens, places) ** 2).sum()))(
        before
    )
    for name in ("sgd", "lamb"):
        config.optimizer.update(name=name, learning_rate=0.1, warmup=0, weight_decay=0.5)
        transformation = optimizer.make(config, before, task.param_metadata())

        @quick_jit
        def two_steps(params, transformation=transformation):
            state = transformation.init(params)
            for _ in range(2):
                updates, state = transformation.update(gradient, state, params)
                params = jax.tree.map(jnp.add, params, updates)
            return params

        made = two_steps(before)["encoder"]["blocks"]["synthesizer"]
        old = before["encoder"]["blocks"]["synthesizer"]
        np.testing.assert_array_equal(made["fixed_random"]["logits"], old["fixed_random"]["logits"])
        assert (
            np.abs(made["dense"]["proj_out"]["weight"] - old["dense"]["proj_out"]["weight"]).min()
            > 0
        )


def test_logits_are_fitted_to_other_lengths():
    """First rows and columns; 0 for new tokens; of images, interpolated over the patches."""
    x = jnp.arange(2 * 9.0).reshape(2, 3, 3)
    rule = token_logits(-2, -1)
    np.testing.assert_array_equal(rule(x, (2, 2, 2), None), x[:, :2, :2])
    longer = rule(x, (2, 4, 4), None)
    np.testing.assert_array_equal(longer[:, :3, :3], x)
    assert not longer[:, 3].any()
    assert not longer[:, :, 3].any()
    flat = rule(jnp.full((2, 4, 4), 3.0), (2, 16, 16), Grids((2, 2), (4, 4)))
    np.testing.assert_allclose(flat, np.full((2, 16, 16), 3.0), rtol=1e-6)


def test_a_shorter_model_is_the_beginning_of_the_longer_one():
    """Warm start at another length, with every kind of logits that has a part for each token."""
    configs = [
        tiny_config(synthesizer="random+factorized_random+dense", length=length)
        for length in (8, 4)
    ]
    long, short = (tasks.find("masked_lm")(config) for config in configs)
    params = quick_jit(long.init)(jax.random.key(0))
    fitted = warm_start.adapt(params, short, configs[0], "the long run")
    tokens = jnp.arange(8).reshape(2, 4)
    places = jnp.arange(2)[:, None]
    outputs = [
        quick_jit(task.apply)(given, tokens, places)
        for task, given in ((short, fitted), (long, params))
    ]
    np.testing.assert_allclose(*outputs, atol=1e-6)


@pytest.mark.parametrize(("options", "message"), [
    ({"synthesizer": ""}, "synthesizer is ''"), ({"synthesizer": "random+"}, "model.synthesizer is 'random.': ''"),
    ({"synthesizer": "vanilla"}, "'vanilla'"), ({"synthesizer": "random+random"}, "each kind of logits once"),
    ({"rank": 0}, "model.rank is 0"), ({"dense_factor": 2}, "dense_factor is 2"), ({"heads": 4}, "model.heads, 4"),
    ({"random_std": 0.0}, "model.random_std is 0.0"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="synthesizer", **options)
