import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.models import parameters
from gmlp_flax.models.blocks import synthesizer
from gmlp_flax.models.blocks.synthesizer import LOGITS, SynthesizerBlock
from gmlp_flax.models.layers import LayerRng
from gmlp_flax.models.resize import Grids, TokenLogits
from gmlp_flax.training import optimizer, warm_start
from tests.models.reference import (
    function_of,
    in_float64,
    normal,
    quick_jit,
    randomized,
    small_spec,
)

MIXTURES = ("random+attention", "dense+factorized_random", "factorized_dense+fixed_random+dense")
ALL = pytest.mark.parametrize("kind", [*LOGITS, *MIXTURES])


def block(kind="random", **fields):
    return SynthesizerBlock(small_spec(**{"block": "synthesizer", "synthesizer": kind} | fields), nnx.Rngs(0))


def jacobian(module, x):
    """Largest entry of each block of the Jacobian of the mixing branch's scores: [query, key, input token]."""
    found = quick_jit(jax.jacrev(lambda x: module.attention_scores(x[None])[0]))(x)
    return np.abs(found).max(axis=(0, 4))


@in_float64
def test_the_mixture_of_equal_parts_is_their_mean():
    a, b = normal(0, 2, 4, 4), normal(1, 5, 2, 4, 4)
    np.testing.assert_allclose(synthesizer.mixture([a, b], jnp.zeros(2)), (a + b) / 2, atol=1e-12)
    found = synthesizer.mixture([a, b, b], jnp.log(jnp.array([1.0, 2.0, 5.0])))
    np.testing.assert_allclose(found, a / 8 + 7 * b / 8, atol=1e-12)


def test_each_pair_of_factors_is_one_logit():
    """Were both only repeated, a = 2 and b = 4 would give four different pairs, not eight."""
    found = synthesizer.all_products(jnp.array([2.0, 3.0]), jnp.array([5.0, 7.0, 11.0, 13.0]))
    np.testing.assert_array_equal(found, [10, 14, 22, 26, 15, 21, 33, 39])


@pytest.mark.parametrize(("length", "given", "factors"), [
    (128, 0, (8, 16)), (64, 0, (8, 8)), (7, 0, (1, 7)), (12, 6, (6, 2)),
])  # fmt: skip
def test_factors_of_dense_logits(length, given, factors):
    spec = small_spec(block="synthesizer", length=length, dense_factor=given)
    assert spec.factors == factors


@ALL
@in_float64
def test_what_logits_depend_on_at_the_start(kind):
    """Random ones on nothing; dense ones of a query on its own token; those of content on query and key."""
    module = quick_jit(lambda: nnx.state(block(kind)))()
    module = nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: block(kind))), module)
    found = jacobian(module, jnp.asarray(normal(0, 5, 6))) > 1e-12
    query, key, token = np.indices((5, 5, 5))
    parts = set(kind.split("+"))
    expected = (token == query) if parts & {"dense", "factorized_dense"} else np.zeros((5, 5, 5), bool)
    if "attention" in parts:
        expected = (token == query) | (token == key)
    np.testing.assert_array_equal(found & ~expected, False)
    # relu may have cut all hidden channels of a head of two, but not of all heads and tokens.
    assert (found.sum() > 0.8 * expected.sum()) if expected.any() else not found.any()


@pytest.mark.parametrize("kind", ["random", "fixed_random", "factorized_random"])
def test_random_logits_begin_with_the_standard_deviation_that_is_asked(kind):
    for std in (1.0, 0.25):
        module = block(kind, dtype="float32", length=64, random_std=std)
        scores = module.attention_scores(jnp.zeros((1, 64, 6)))
        assert scores.shape == (1, 3, 64, 64)
        assert abs(scores.std() / std - 1) < 0.12 and abs(scores.mean()) < 0.1 * std


def test_fixed_logits_stay_as_they_are_under_every_optimizer():
    """Though decay, momentum and the trust ratio change all else."""
    config = gmlp_config.default(block="synthesizer")
    config.model.update(
        synthesizer="fixed_random+dense",
        layers=2,
        length=5,
        d_model=8,
        d_ffn=8,
        heads=2,
        vocab_size=20,
    )
    task = tasks.find(config.task).without_data(config)
    before = jax.jit(task.init)(jax.random.key(0))
    tokens, places = jnp.arange(10).reshape(2, 5), jnp.zeros((2, 1), int)
    gradient = jax.jit(jax.grad(lambda params: (task.apply(params, tokens, places) ** 2).sum()))
    for name in OPTIMIZERS:
        config.optimizer.update(name=name, learning_rate=0.1, warmup=0, weight_decay=0.5)
        params, transformation = before, optimizer.make(config, before, task.param_metadata())
        state, update = jax.jit(transformation.init)(params), jax.jit(transformation.update)
        for _ in range(2):
            updates, state = update(gradient(params), state, params)
            params = jax.tree.map(jnp.add, params, updates)
        made = params["encoder"]["blocks"]["synthesizer"]
        old = before["encoder"]["blocks"]["synthesizer"]
        np.testing.assert_array_equal(made["fixed_random"]["logits"], old["fixed_random"]["logits"])
        assert np.abs(made["dense"]["proj_out"]["weight"] - old["dense"]["proj_out"]["weight"]).min() > 0


@pytest.mark.parametrize(("kind", "name", "reach"), [
    ("random", "random/logits", math.log(127)), ("random+attention", "random/logits", 2 * math.log(127)),
    ("factorized_random", "factorized_random/rows", (math.log(127) / 8) ** 0.5),
    ("factorized_random", "factorized_random/columns", (math.log(127) / 8) ** 0.5),
    ("fixed_random", "fixed_random/logits", 0), ("dense", "dense/proj_out/bias", 0),
])  # fmt: skip
def test_how_far_logits_may_have_to_travel(kind, name, reach):
    module = nnx.eval_shape(lambda: block(kind, length=128, dtype="float32"))
    fact = parameters.metadata(module)[f"synthesizer/{name}"]
    assert fact.max_logit_gap == pytest.approx(reach) and fact.decayed == (name == "dense/proj_out/weight")


@in_float64
def test_the_reach_gives_one_token_half_of_the_mass():
    """Moved that far, from equal logits, by the shares of a fresh mixture too."""
    n = 128
    spec = small_spec(block="synthesizer", length=n, synthesizer="random+dense")
    logits = np.zeros((1, n, n))
    logits[:, :, 3] = spec.max_logit_gap
    share = jax.nn.softmax(synthesizer.mixture([logits, 0 * logits], jnp.zeros(2)))[0, 0, 3]
    assert share == pytest.approx(0.5)
    rank = 8
    reach = parameters.metadata(nnx.eval_shape(lambda: block("factorized_random", length=n)))[
        "synthesizer/factorized_random/rows"
    ].max_logit_gap
    columns = np.zeros((1, n, rank))
    columns[:, 3] = reach
    share = jax.nn.softmax(synthesizer.outer(np.full((1, n, rank), reach), columns))[0, 0, 3]
    assert share == pytest.approx(0.5)


def test_a_run_too_short_for_random_logits_says_so():
    config = gmlp_config.default(block="synthesizer")
    config.model.update(layers=2, length=128, d_model=16, d_ffn=16, vocab_size=20)
    config.steps, config.optimizer.learning_rate = 900, 4e-3
    task = tasks.find(config.task).without_data(config)
    [line] = optimizer.reach_notes(config, task.shapes(), task.param_metadata())
    assert "encoder/blocks/synthesizer/random/logits can travel about 1.8, and may need 4.8" in line
    config.optimizer.lr_multipliers = ("random/logits=16",)
    assert not optimizer.reach_notes(config, task.shapes(), task.param_metadata())


def test_logits_are_fitted_to_other_lengths():
    """First rows and columns; 0 for new tokens; of images, interpolated over the patches."""
    x = jnp.arange(2 * 9.0).reshape(2, 3, 3)
    rule = TokenLogits((-2, -1))
    np.testing.assert_array_equal(rule(x, (2, 2, 2), None), x[:, :2, :2])
    longer = rule(x, (2, 4, 4), None)
    np.testing.assert_array_equal(longer[:, :3, :3], x)
    assert not longer[:, 3].any() and not longer[:, :, 3].any()
    flat = rule(jnp.full((2, 4, 4), 3.0), (2, 16, 16), Grids((2, 2), (4, 4)))
    np.testing.assert_allclose(flat, np.full((2, 16, 16), 3.0), rtol=1e-6)


def test_a_shorter_model_is_the_beginning_of_the_longer_one():
    """Warm start at another length, with every kind of logits that has a part for each token."""
    configs = []
    for length in (8, 4):
        config = gmlp_config.default(block="synthesizer")
        config.model.update(
            synthesizer="random+factorized_random+dense",
            layers=2,
            length=length,
            d_model=8,
            d_ffn=8,
            vocab_size=20,
        )
        configs.append(config)
    long, short = (tasks.find("masked_lm").without_data(config) for config in configs)
    params = jax.jit(long.init)(jax.random.key(0))
    fitted = warm_start.adapt(params, short, configs[0], "the long run")
    tokens, places = jnp.arange(8).reshape(2, 4), jnp.arange(2)[:, None]
    np.testing.assert_allclose(short.apply(fitted, tokens, places), long.apply(params, tokens, places), atol=1e-6)


@pytest.mark.parametrize(("options", "message"), [
    ({"synthesizer": ""}, "synthesizer is ''"), ({"synthesizer": "random+"}, "model.synthesizer is 'random.': ''"),
    ({"synthesizer": "vanilla"}, "'vanilla'"), ({"synthesizer": "random+random"}, "each kind of logits once"),
    ({"rank": 0}, "model.rank is 0"), ({"dense_factor": 2}, "dense_factor is 2"), ({"heads": 4}, "model.heads, 4"),
    ({"random_std": 0.0}, "model.random_std is 0.0"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="synthesizer", **options)


def test_dropout_on_the_weights_draws():
    spec = small_spec(block="synthesizer", attention_dropout=0.5, dtype="float32")
    state, call = function_of(randomized(lambda: SynthesizerBlock(spec, nnx.Rngs(0))))
    x, keys = jnp.ones((2, 5, 6)), jax.random.split(jax.random.key(0), 2)
    quiet, noisy = call(state, x), call(state, x, LayerRng(keys))
    assert spec.draws and np.abs(noisy - quiet).max() > 1e-3
