import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models.blocks.synthesizer import SynthesizerBlock
from gmlp_flax.models.parameters import Grids, token_logits
from gmlp_flax.training import optimizer, warm_start
from tests.models.reference import quick_jit, small_spec


def block(kind="random", **fields):
    options = {"block": "synthesizer", "synthesizer": kind}
    spec = small_spec(**options | fields)
    return SynthesizerBlock(spec, nnx.Rngs(0))


def tiny_config(**model):
    config = gmlp_config.default(block="synthesizer")
    sizes = {"layers": 2, "d_model": 8, "d_ffn": 8, "vocab_size": 20}
    config.model.update(sizes | model)
    return config


@pytest.mark.parametrize(
    ("length", "dense_factor", "factors"),
    [
        (128, 0, (8, 16)),
        (64, 0, (8, 8)),
        (7, 0, (1, 7)),
        (12, 6, (6, 2)),
    ],
)
def test_dense_logits_have_two_factors(length, dense_factor, factors):
    spec = small_spec(block="synthesizer", length=length, dense_factor=dense_factor)
    assert spec.factors == factors


@pytest.mark.parametrize("std", [1.0, 0.25])
@pytest.mark.parametrize("kind", ["random", "fixed_random", "factorized_random"])
def test_random_logits_start_with_the_standard_deviation_of_the_option(kind, std):
    module = block(kind, dtype="float32", length=64, random_std=std)
    zeros = jnp.zeros((1, 64, 6))
    scores = module.attention_scores(zeros)
    assert scores.shape == (1, 3, 64, 64)
    ratio = scores.std() / std
    assert abs(ratio - 1) < 0.12
    assert abs(scores.mean()) < 0.1 * std


def two_steps(config, task, before):
    """The parameters of a task after two steps of the config's optimizer by one gradient."""
    tokens = jnp.arange(10).reshape(2, 5)
    places = jnp.zeros((2, 1), int)
    metadata = task.param_metadata()
    transformation = optimizer.make(config, before, metadata)

    def loss(params):
        logits = task.apply(params, tokens, places)
        return (logits**2).sum()

    @quick_jit
    def updated(params):
        gradient = jax.grad(loss)(params)
        state = transformation.init(params)
        for _ in range(2):
            updates, state = transformation.update(gradient, state, params)
            params = jax.tree.map(jnp.add, params, updates)
        return params

    return updated(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "lamb"])
def test_optimizers_do_not_change_fixed_logits(name):
    """Decay, momentum and the trust ratio change all other parameters."""
    config = tiny_config(synthesizer="fixed_random+dense", length=5, heads=2, layers=1)
    config.optimizer.update(name=name, learning_rate=0.1, warmup=0, weight_decay=0.5)
    task = tasks.find(config.task)(config)
    key = jax.random.key(0)
    params = quick_jit(task.init)(key)
    trained = two_steps(config, task, params)
    before = params["encoder"]["blocks"]["synthesizer"]
    after = trained["encoder"]["blocks"]["synthesizer"]
    fixed_before = before["fixed_random"]["logits"]
    fixed_after = after["fixed_random"]["logits"]
    assert_array_equal(fixed_after, fixed_before)
    dense_before = before["dense"]["proj_out"]["weight"]
    dense_after = after["dense"]["proj_out"]["weight"]
    change = dense_after - dense_before
    assert np.abs(change).min() > 0


def test_logits_are_cropped_or_padded_to_other_lengths():
    """First rows and columns; 0 for new tokens."""
    numbers = jnp.arange(2 * 9.0)
    x = numbers.reshape(2, 3, 3)
    resize = token_logits(-2, -1)
    shorter = resize(x, (2, 2, 2), None)
    cropped = x[:, :2, :2]
    assert_array_equal(shorter, cropped)
    longer = resize(x, (2, 4, 4), None)
    start = longer[:, :3, :3]
    assert_array_equal(start, x)
    new_rows = longer[:, 3]
    new_columns = longer[:, :, 3]
    assert not new_rows.any()
    assert not new_columns.any()


def test_logits_of_images_are_interpolated_over_patches():
    logits = jnp.full((2, 4, 4), 3.0)
    grids = Grids((2, 2), (4, 4))
    resize = token_logits(-2, -1)
    resized = resize(logits, (2, 16, 16), grids)
    expected = np.full((2, 16, 16), 3.0)
    assert_allclose(resized, expected, rtol=1e-6)


@pytest.mark.slow
def test_warm_started_shorter_models_give_the_same_outputs():
    """With every kind of logits that has a part for each token."""
    parts = "random+factorized_random+dense"
    long_config = tiny_config(synthesizer=parts, length=8)
    short_config = tiny_config(synthesizer=parts, length=4)
    find_task = tasks.find("masked_lm")
    long = find_task(long_config)
    short = find_task(short_config)
    key = jax.random.key(0)
    params = quick_jit(long.init)(key)
    adapted = warm_start.adapt(params, short, long_config, "the long run")
    tokens = jnp.arange(8).reshape(2, 4)
    places = jnp.arange(2)[:, None]
    apply_short = quick_jit(short.apply)
    of_short = apply_short(adapted, tokens, places)
    apply_long = quick_jit(long.apply)
    of_long = apply_long(params, tokens, places)
    assert_allclose(of_short, of_long, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synthesizer": ""}, "synthesizer is ''"),
        ({"synthesizer": "random+"}, "model.synthesizer is 'random.': ''"),
        ({"synthesizer": "vanilla"}, "'vanilla'"),
        ({"synthesizer": "random+random"}, "each kind of logits once"),
        ({"rank": 0}, "model.rank is 0"),
        ({"dense_factor": 2}, "dense_factor is 2"),
        ({"heads": 4}, "model.heads, 4"),
        ({"random_std": 0.0}, "model.random_std is 0.0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="synthesizer", **options)
