import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmlp_flax import tasks
from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.errors import RunError
from gmlp_flax.training import optimizer
from tests.training import tiny


def flat(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize("name", ["text_task", "image_task"])
def test_decay_leaves_out_norms_and_biases(name, request):
    task = request.getfixturevalue(name)
    mask = flat(optimizer.decay_mask(task.shapes(), task.param_metadata()))
    decayed = {path for path, touched in mask.items() if touched}
    last = {path.rpartition("/")[2] for path in decayed}
    assert last == {"text_task": {"embedding", "kernel", "taps"}, "image_task": {"kernel", "weight"}}[name]
    left_out = {path.rpartition("/")[2] for path in mask.keys() - decayed}
    assert left_out == {"bias", "scale"} | ({"cls"} if name == "image_task" else set())
    assert "encoder/blocks/gate/spatial/bias" in mask.keys() - decayed


def line(**options):
    """Parameters, and gradients of norm 13 and 2."""
    params = {"line": {"kernel": np.array([1.0, -2.0, 0.5]), "bias": np.array(3.0)}}
    gradients = [
        {"line": {"kernel": np.array([3.0, 4.0, 0.0]), "bias": np.array(12.0)}},
        {"line": {"kernel": np.array([0.0, -2.0, 0.0]), "bias": np.array(0.0)}},
    ]
    as_f32 = lambda tree: jax.tree.map(lambda x: jnp.array(x, jnp.float32), tree)  # noqa: E731
    return as_f32(params), [as_f32(g) for g in gradients], params, gradients


def adamw(params, gradients, options, rate):
    """Loshchilov and Hutter's algorithm 2 on dicts of arrays, with clipping by the global norm."""
    m = {name: np.zeros_like(p) for name, p in params.items()}
    v = dict(m)
    for t, g in enumerate(gradients, start=1):
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        scale = min(1, options.clip / norm) if options.clip else 1
        for name in params:
            m[name] = options.b1 * m[name] + (1 - options.b1) * scale * g[name]
            v[name] = options.b2 * v[name] + (1 - options.b2) * (scale * g[name]) ** 2
            mean, square = m[name] / (1 - options.b1**t), v[name] / (1 - options.b2**t)
            decay = options.weight_decay * params[name] if name == "kernel" else 0
            params[name] = params[name] - rate * (mean / (np.sqrt(square) + options.eps) + decay)
    return params


@pytest.mark.smoke
@pytest.mark.parametrize("clip", [0.0, 1.0, 5.0])
def test_two_steps_against_numpy(config, clip):
    config.optimizer.update(
        learning_rate=0.1, schedule="constant", warmup=0, clip=clip, weight_decay=0.3, eps=1e-3, b2=0.98
    )
    params, gradients, exact, exact_gradients = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state = transformation.init(params)
    for g in gradients:
        updates, state = transformation.update(g, state, params)
        params = optax.apply_updates(params, updates)
    expected = adamw(exact["line"], [g["line"] for g in exact_gradients], config.optimizer, 0.1)
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-5), params["line"], expected)


def test_frozen_parameters_stay_bit_identical(config, text_task):
    config.optimizer.freeze = ("/spatial/", "^embedding$")
    params = text_task.init(jax.random.key(0))
    transformation = optimizer.make(config, text_task.shapes(), text_task.param_metadata())
    gradients = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(transformation.update)(gradients, transformation.init(params), params)
    before, after = flat(params), flat(optax.apply_updates(params, updates))
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same == {name for name in before if re.search("/spatial/|^embedding$", name)}
    assert len(same) == 3


def test_frozen_parameters_do_not_count_for_clipping(config):
    """Clipping uses the norm of the gradients of the trained parameters only."""
    config.optimizer.update(
        freeze=("bias",), learning_rate=0.1, schedule="constant", warmup=0, clip=5.0, weight_decay=0.0
    )
    config.optimizer.update(eps=1.0)
    params, gradients, exact, exact_gradients = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    updates, _ = transformation.update(gradients[0], transformation.init(params), params)
    kernel = {"kernel": exact["line"]["kernel"]}
    expected = adamw(kernel, [{"kernel": exact_gradients[0]["line"]["kernel"]}], config.optimizer, 0.1)["kernel"]
    np.testing.assert_allclose(params["line"]["kernel"] + updates["line"]["kernel"], expected, rtol=1e-5)


def test_pattern_that_matches_nothing(config, text_task):
    config.optimizer.freeze = ("/spatial/", "/spatail/")
    with pytest.raises(RunError, match=r"^config.optimizer.freeze: '/spatail/' matches no parameter, e.g. \S+$"):
        optimizer.make(config, text_task.shapes(), text_task.param_metadata())


def updates_of(config, task, gradients):
    transformation = optimizer.make(config, task.shapes(), task.param_metadata())
    params = task.init(jax.random.key(0))
    return flat(jax.jit(transformation.update)(gradients(params), transformation.init(params), params)[0])


def test_rates_multiply_the_updates_of_the_parameters_that_they_name(tmp_path):
    """The first line that matches counts; over stacked layers a factor grows by the same share from layer to layer."""
    config = tiny.text_config(tmp_path, layers=3)
    config.optimizer.freeze = ("encoder/norm",)  # frozen parameters beside them
    task = tasks.create(config, str(tmp_path))
    ones = lambda params: jax.tree.map(jnp.ones_like, params)  # noqa: E731
    plain = updates_of(config, task, ones)
    config.optimizer.lr_multipliers = ("spatial/bias=8", "^encoder/blocks/=0.25..1", "bias=2")
    scaled = updates_of(config, task, ones)
    for name, update in plain.items():
        factor = {"encoder/blocks/gate/spatial/bias": 8, "bias": 2}.get(name, 1)
        if name.startswith("encoder/blocks/") and factor == 1:
            factor = np.array([0.25, 0.5, 1]).reshape(-1, *[1] * (update.ndim - 1))
        np.testing.assert_allclose(scaled[name], update * factor, rtol=1e-6, err_msg=name)
    assert not scaled["encoder/norm/scale"].any() and plain["encoder/blocks/gate/spatial/bias"].any()


def test_under_adam_a_rate_equals_a_factor_in_the_forward_pass(config):
    """A parameter b with rate k is k times a parameter with rate 1, if epsilon and decay are out of the way."""
    config.optimizer.update(learning_rate=0.1, schedule="constant", warmup=0, clip=0.0, eps=1e-30, weight_decay=0.0)

    def train(factor, rates):
        config.optimizer.lr_multipliers = rates
        params = {"bias": jnp.zeros(3)}
        transformation = optimizer.make(config, params, {})
        state = transformation.init(params)
        for target in (1.0, -2.0, 0.5, 3.0):
            gradient = jax.grad(
                lambda p, target=target: ((factor * p["bias"] - jnp.array([target, 2.0, 0.1])) ** 2).sum()
            )(params)
            updates, state = transformation.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return factor * params["bias"]

    np.testing.assert_allclose(train(8, ()), train(1, ("bias=8",)), rtol=1e-5)


@pytest.mark.parametrize(
    "lines, message",
    [
        (("spatail=8",), "'spatail' matches no parameter that is left, e.g. bias"),
        (("bias=2", "spatial/bias=8"), "'spatial/bias' matches no parameter that is left"),
        (("^bias=0.1..1",), "'^bias' matches bias, which has no layers: give one factor"),
    ],
)
def test_rates_that_do_not_fit_the_model(config, text_task, lines, message):
    config.optimizer.lr_multipliers = lines
    with pytest.raises(RunError, match=re.escape(f"config.optimizer.lr_multipliers: {message}")):
        optimizer.make(config, text_task.shapes(), text_task.param_metadata())


def test_a_bias_that_cannot_travel_far_enough_is_named(tmp_path):
    """128 tokens need ln 127 = 4.84; 900 steps at 8e-3 with 100 of warmup and linear decay travel 3.6."""
    config = tiny.text_config(tmp_path, block="transformer", positions="relative", heads=2, length=128)
    config.steps = 900
    config.optimizer.update(learning_rate=8e-3, schedule="linear", warmup=100)
    task = tasks.create(config, str(tmp_path))
    found = optimizer.reach_notes(config, task.shapes(), task.param_metadata())
    name = "encoder/blocks/attention/relative/bias"
    assert found == [
        f"note: in 900 steps {name} can travel about 3.6, and may need 4.8: consider "
        f"--config.optimizer.lr_multipliers=\"('{name}=2',)\""
    ]
    for change in (
        {"lr_multipliers": ("relative/bias=2",)},
        {"learning_rate": 0.05},
        {"name": "sgd"},
        {"learning_rate": 0.0},
    ):
        with config.unlocked():
            changed = config.copy_and_resolve_references()
        changed.optimizer.update(change)
        assert optimizer.reach_notes(changed, task.shapes(), task.param_metadata()) == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_descends_and_decays_matrices_alone(config, name):
    config.optimizer.update(name=name, learning_rate=0.01, schedule="constant", warmup=0, clip=0.0, weight_decay=0.0)
    params, gradients, _, _ = line()
    still = jax.tree.map(jnp.zeros_like, gradients[0])

    def moved(gradient):
        transformation = optimizer.make(config, params, tiny.LINE_METADATA)
        return transformation.update(gradient, transformation.init(params), params)[0]["line"]

    step = moved(gradients[0])
    assert float(jnp.vdot(step["kernel"], gradients[0]["line"]["kernel"])) < 0 and float(step["bias"]) < 0
    assert not np.any(moved(still)["kernel"])
    config.optimizer.weight_decay = 0.5
    decay = moved(still)
    assert float(jnp.vdot(decay["kernel"], params["line"]["kernel"])) < 0 and float(decay["bias"]) == 0


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_decay_does_not_gather_momentum(config, name):
    config.optimizer.update(name=name, learning_rate=0.1, schedule="constant", warmup=0, clip=0.0, weight_decay=0.1)
    params, gradients, _, _ = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state, still = transformation.init(params), jax.tree.map(jnp.zeros_like, gradients[0])
    for _ in range(3):
        updates, state = transformation.update(still, state, params)
        np.testing.assert_allclose(updates["line"]["kernel"], -0.01 * params["line"]["kernel"], rtol=1e-5)


def test_lamb_trusts_each_layer_by_itself(config, text_task):
    """Stacked layers move as they would if each were a parameter of its own."""
    config.optimizer.update(name="lamb", learning_rate=0.1, schedule="constant", warmup=0, clip=0.0, weight_decay=0.01)
    params = text_task.init(jax.random.key(0))
    kernel = params["encoder"]["blocks"]["proj_out"]["kernel"]
    params["encoder"]["blocks"]["proj_out"]["kernel"] = kernel * jnp.array([0.01, 10.0])[:, None, None]
    gradients = jax.tree.map(lambda p: jnp.asarray(np.random.default_rng(0).normal(size=p.shape), jnp.float32), params)

    def updates(transformation, params, gradients):
        return transformation.update(gradients, transformation.init(params), params)[0]

    found = updates(optimizer.make(config, text_task.shapes(), text_task.param_metadata()), params, gradients)
    decays = flat(optimizer.decay_mask(text_task.shapes(), text_task.param_metadata()))
    params, gradients = flat(params), flat(gradients)
    for name, update in flat(found).items():
        alone = optax.lamb(
            0.1,
            config.optimizer.b1,
            config.optimizer.b2,
            config.optimizer.eps,
            weight_decay=0.01 if decays[name] else 0.0,
        )
        stacked = name.startswith("encoder/blocks/")
        layers = range(2) if stacked else [slice(None)]
        for layer in layers:
            expected = updates(alone, params[name][layer], gradients[name][layer])
            np.testing.assert_allclose(update[layer], expected, rtol=1e-5, atol=1e-9)


def rates(config, **options):
    config.steps = 10
    config.optimizer.update(learning_rate=0.4, **options)
    rate = optimizer.learning_rate(config)
    return np.array([float(rate(step)) for step in range(10)])


@pytest.mark.smoke
def test_warmup_begins_above_zero_and_reaches_the_peak(config):
    for name in ("cosine", "linear", "constant"):
        np.testing.assert_allclose(rates(config, schedule=name, warmup=4)[:4], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)


def test_cosine_schedule(config):
    expected = 0.4 * 0.5 * (1 + np.cos(np.pi * np.arange(6) / 6))
    np.testing.assert_allclose(rates(config, schedule="cosine", warmup=4)[4:], expected, rtol=1e-5)


def test_linear_schedule(config):
    np.testing.assert_allclose(rates(config, schedule="linear", warmup=4)[4:], 0.4 * (1 - np.arange(6) / 6), rtol=1e-5)


def test_constant_schedule(config):
    np.testing.assert_allclose(rates(config, schedule="constant", warmup=0), np.full(10, 0.4), rtol=1e-6)


def test_no_warmup(config):
    np.testing.assert_allclose(rates(config, schedule="linear", warmup=0), 0.4 * (1 - np.arange(10) / 10), rtol=1e-5)


def test_rsqrt_schedule(config):
    """Long Range Arena's: base * min(1, step / warmup) / sqrt(max(step, warmup)), whose peak is base / sqrt(warmup).
    Its first step has number 0; ours is one ahead in the warmup alone."""
    base, warmup = 0.05, 4
    steps = np.arange(4, 10)
    published = base * np.minimum(1, steps / warmup) / np.sqrt(np.maximum(steps, warmup))
    config.steps = 10
    config.optimizer.update(learning_rate=base / warmup**0.5, schedule="rsqrt", warmup=warmup)
    rate = optimizer.learning_rate(config)
    np.testing.assert_allclose([float(rate(step)) for step in range(4)], 0.025 * np.arange(1, 5) / 4, rtol=1e-6)
    np.testing.assert_allclose([float(rate(step)) for step in steps], published, rtol=1e-6)
    np.testing.assert_allclose(rate(steps), published, rtol=1e-6)


def test_rsqrt_does_not_depend_on_the_end(config):
    short = rates(config, schedule="rsqrt", warmup=3)
    config.steps = 1000
    config.optimizer.update(learning_rate=0.4)
    np.testing.assert_allclose([float(optimizer.learning_rate(config)(step)) for step in range(10)], short)
    # A warmup longer than the run does not reach its peak, as in Long Range Arena's Retrieval.
    np.testing.assert_allclose(
        rates(config, schedule="rsqrt", warmup=2000)[:4], 0.4 * np.arange(1, 5) / 2000, rtol=1e-4
    )
    np.testing.assert_allclose(rates(config, schedule="rsqrt", warmup=0)[:4], 0.4 / np.sqrt([1, 2, 3, 4]), rtol=1e-6)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_ends_at_zero(config, name):
    config.steps = 1000
    config.optimizer.update(learning_rate=1.0, schedule=name, warmup=10)
    rate = optimizer.learning_rate(config)
    assert 0 <= float(rate(999)) < 2e-3 and float(rate(1000)) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("warmup", [1, 10, 50])
def test_warmup_of_one_step_and_of_the_whole_run(config, warmup):
    found = rates(config, schedule="cosine", warmup=warmup)
    assert np.isfinite(found).all() and found.max() == pytest.approx(0.4)
    assert found[0] == pytest.approx(0.4 / min(warmup, 10))
