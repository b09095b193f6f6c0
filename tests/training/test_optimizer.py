import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.pytree import leaves_by_path as flat
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.errors import RunError
from gmlp_flax.training import optimizer, step
from tests.training import tiny


@pytest.mark.parametrize("name", ["text_task", "image_task"])
def test_decay_leaves_out_norms_and_biases(name, request):
    task = request.getfixturevalue(name)
    mask = flat(optimizer.masks(task.param_metadata()).decayed(task.shapes()))
    decayed = {path for path, touched in mask.items() if touched}
    last = {path.rpartition("/")[2] for path in decayed}
    assert (
        last
        == {"text_task": {"embedding", "kernel", "taps"}, "image_task": {"kernel", "weight"}}[name]
    )
    left_out = {path.rpartition("/")[2] for path in mask.keys() - decayed}
    assert left_out == {"bias", "scale"} | ({"cls"} if name == "image_task" else set())
    assert "encoder/blocks/gate/spatial/bias" in mask.keys() - decayed


def test_decay_of_all_parameters(config):
    """As optimizers without a mask: without a gradient, a bias shrinks as a kernel does."""
    config.optimizer.update(
        learning_rate=0.1, schedule="constant", warmup=0, weight_decay=0.3, decay_all=True
    )
    params, _, exact, _ = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    updates, _ = transformation.update(
        jax.tree.map(jnp.zeros_like, params), transformation.init(params), params
    )
    for name, value in exact["line"].items():
        np.testing.assert_allclose(updates["line"][name], -0.1 * 0.3 * value, rtol=1e-6)


def line(**options):
    """Parameters, and gradients of norm 13 and 2."""
    params = {"line": {"kernel": np.array([1.0, -2.0, 0.5]), "bias": np.array(3.0)}}
    gradients = [
        {"line": {"kernel": np.array([3.0, 4.0, 0.0]), "bias": np.array(12.0)}},
        {"line": {"kernel": np.array([0.0, -2.0, 0.0]), "bias": np.array(0.0)}},
    ]
    as_f32 = lambda tree: jax.tree.map(lambda x: jnp.array(x, jnp.float32), tree)  # noqa: E731
    return as_f32(params), [as_f32(g) for g in gradients], params, gradients


def adamw(params, gradients, options, rate=0.1):
    """Loshchilov and Hutter's algorithm 2 on dicts of arrays, with clipping by the global norm."""
    params = dict(params)
    m = {name: np.zeros_like(p) for name, p in params.items()}
    v = dict(m)
    for t, g in enumerate(gradients, start=1):
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        scale = min(1, options.clip / norm) if options.clip else 1
        for name in params:
            m[name] = options.b1 * m[name] + (1 - options.b1) * scale * g[name]
            v[name] = options.b2 * v[name] + (1 - options.b2) * (scale * g[name]) ** 2
            mean = m[name] / (1 - options.b1**t)
            square = v[name] / (1 - options.b2**t)
            decay = options.weight_decay * params[name] if name == "kernel" else 0
            params[name] = params[name] - rate * (mean / (np.sqrt(square) + options.eps) + decay)
    return params


@pytest.mark.smoke
@pytest.mark.parametrize(("clip", "freeze"), [(0.0, ()), (1.0, ()), (5.0, ()), (5.0, ("bias",))])
def test_two_steps_against_numpy(config, clip, freeze):
    """Clipping uses the norm of the gradients of the trained parameters only."""
    config.optimizer.update(
        learning_rate=0.1, schedule="constant", warmup=0, clip=clip, freeze=freeze
    )
    config.optimizer.update(weight_decay=0.3, eps=1e-3, b2=0.98)
    params, gradients, exact, exact_gradients = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state = transformation.init(params)
    for g in gradients:
        updates, state = transformation.update(g, state, params)
        params = optax.apply_updates(params, updates)
    trained = {name: value for name, value in exact["line"].items() if name not in freeze}
    expected = adamw(
        trained,
        [{name: g["line"][name] for name in trained} for g in exact_gradients],
        config.optimizer,
    )
    expected = exact["line"] | expected
    jax.tree.map(
        lambda *pair: np.testing.assert_allclose(*pair, rtol=1e-5), params["line"], expected
    )


def updates_of(config, task):
    """From random parameters, all of whose gradients are 1."""
    transformation = optimizer.make(config, task.shapes(), task.param_metadata())

    @jax.jit
    def updates(params):
        return transformation.update(
            jax.tree.map(jnp.ones_like, params), transformation.init(params), params
        )[0]

    return jax.device_get(flat(updates(tiny.random_params(task.shapes(), 0.1))))


def test_frozen_parameters_stay_bit_identical(config, text_task):
    config.optimizer.freeze = ("/spatial/", "^embedding$")
    updates = updates_of(config, text_task)
    same = {name for name, update in updates.items() if not update.any()}
    assert same == {name for name in updates if re.search("/spatial/|^embedding$", name)}
    assert len(same) == 3


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_rates_multiply_the_updates_of_the_parameters_that_they_name(tmp_path, optimizer_name):
    """The first line that matches counts; over stacked layers a factor grows by the same share from
    layer to layer."""
    config = tiny.text_config(tmp_path, layers=3)
    config.optimizer.update(OPTIMIZERS[optimizer_name].requires | {"name": optimizer_name})
    config.optimizer.freeze = ("encoder/norm",)  # frozen parameters beside them
    task, _ = tiny.open_task(config, tmp_path)
    plain = updates_of(config, task)
    config.optimizer.lr_multipliers = ("spatial/bias=8", "^encoder/blocks/=0.25..1", "bias=2")
    scaled = updates_of(config, task)
    for name, update in plain.items():
        factor = {"encoder/blocks/gate/spatial/bias": 8, "bias": 2}.get(name, 1)
        if name.startswith("encoder/blocks/") and factor == 1:
            factor = np.array([0.25, 0.5, 1]).reshape(-1, *[1] * (update.ndim - 1))
        rounding = (
            dict(rtol=1e-3, atol=1e-6) if OPTIMIZERS[optimizer_name].averages else dict(rtol=1e-6)
        )
        np.testing.assert_allclose(scaled[name], update * factor, err_msg=name, **rounding)
    assert not scaled["encoder/norm/scale"].any()
    assert plain["encoder/blocks/gate/spatial/bias"].any()


@pytest.mark.parametrize(
    ("key", "lines", "named"),
    [
        ("freeze", ("/spatial/", "/spatail/"), "'/spatail/'"),
        ("lr_multipliers", ("spatail=8",), "'spatail'"),
        (
            "lr_multipliers",
            ("bias=2", "spatial/bias=8"),
            "'spatial/bias' matches no parameter left",
        ),
        ("lr_multipliers", ("^bias=0.1..1",), "'^bias' matches bias, which has no layers"),
    ],
)
def test_patterns_that_do_not_fit_the_model(config, text_task, key, lines, named):
    config.optimizer[key] = lines
    with pytest.raises(RunError, match=re.escape(f"config.optimizer.{key}: {named}")):
        optimizer.make(config, text_task.shapes(), text_task.param_metadata())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_descends_and_decays_matrices_alone(config, name):
    config.optimizer.update(
        name=name, learning_rate=0.01, schedule="constant", warmup=0, clip=0.0, weight_decay=0.0
    )
    params, gradients, _, _ = line()
    still = jax.tree.map(jnp.zeros_like, gradients[0])

    def moved():
        transformation = optimizer.make(config, params, tiny.LINE_METADATA)
        update = jax.jit(
            lambda gradient: transformation.update(gradient, transformation.init(params), params)[0]
        )
        return (jax.device_get(update(gradient))["line"] for gradient in (gradients[0], still))

    step, rest = moved()
    assert np.vdot(step["kernel"], gradients[0]["line"]["kernel"]) < 0
    assert step["bias"] < 0
    assert not np.any(rest["kernel"])
    if "weight_decay" not in OPTIMIZERS[name].hyperparameters:
        return
    config.optimizer.weight_decay = 0.5
    _, decay = moved()
    assert np.vdot(decay["kernel"], params["line"]["kernel"]) < 0
    assert abs(decay["bias"]) < 1e-6


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_decay_does_not_gather_momentum(config, name):
    config.optimizer.update(
        name=name, learning_rate=0.1, schedule="constant", warmup=0, clip=0.0, weight_decay=0.1
    )
    params, gradients, _, _ = line()
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state = transformation.init(params)
    still = jax.tree.map(jnp.zeros_like, gradients[0])
    for _ in range(3):
        updates, state = transformation.update(still, state, params)
        np.testing.assert_allclose(
            updates["line"]["kernel"], -0.01 * params["line"]["kernel"], rtol=1e-5
        )


def test_lamb_trusts_each_layer_by_itself(config, text_task):
    """Stacked layers move as they would if each were a parameter of its own, and what is not
    decayed as by Adam."""
    config.optimizer.update(
        name="lamb", learning_rate=0.1, schedule="constant", warmup=0, clip=0.0, weight_decay=0.01
    )
    shapes = text_task.shapes()
    metadata = text_task.param_metadata()
    params, gradients = (tiny.random_params(shapes, 0.1, seed) for seed in (0, 1))
    params["encoder"]["blocks"]["proj_out"]["kernel"] *= np.float32([0.01, 10.0])[:, None, None]
    hyperparameters = config.optimizer.b1, config.optimizer.b2, config.optimizer.eps
    decays = flat(optimizer.masks(metadata).decayed(shapes))

    def update(transformation, params, gradients):
        return transformation.update(gradients, transformation.init(params), params)[0]

    def alone(name, params, gradients):
        lamb = optax.lamb(0.1, *hyperparameters, weight_decay=0.01)
        one = lamb if decays[name] else optax.adam(0.1, *hyperparameters)
        if name.startswith("encoder/blocks/"):
            return [update(one, params[layer], gradients[layer]) for layer in range(2)]
        return update(one, params, gradients)

    @jax.jit
    def both(params, gradients):
        found = update(optimizer.make(config, shapes, metadata), params, gradients)
        of = flat(gradients)
        return flat(found), {
            name: alone(name, leaf, of[name]) for name, leaf in flat(params).items()
        }

    found, expected = both(params, gradients)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-9, err_msg=name)


def chosen(folder, name, **model):
    """A task, and its data, with an optimizer, of which all that may be set with it is set."""
    config = tiny.text_config(folder, **model)
    config.optimizer.update(
        OPTIMIZERS[name].requires | {"name": name, "lr_multipliers": ("bias=2",)}
    )
    config.optimizer.update(freeze=("encoder/norm",), learning_rate=0.01)
    if "weight_decay" not in OPTIMIZERS[name].hyperparameters:
        config.optimizer.weight_decay = 0.0
    gmlp_config.validate(config)
    return tiny.open_task(config, folder)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_resumes_takes_the_same_steps_bit_for_bit(tmp_path, partition, name):
    task, data = chosen(tmp_path, name)
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    states = []
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(4):
            state, window = training.step(state, partition.put_batch(next(batches)))
            states.append(jax.device_get((state, window)))
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    checkpoints.save(
        2, jax.device_put(states[1][0], jax.tree.map(lambda x: x.sharding, training.template)), None
    )
    checkpoints.wait()
    state = checkpoints.restore(2, step.Training(training.task, partition).template)
    checkpoints.close()
    with data.train_batches(2, 0, 1) as batches:
        for expected in states[2:]:
            state, window = training.step(state, partition.put_batch(next(batches)))
            jax.tree.map(np.testing.assert_array_equal, jax.device_get((state, window)), expected)
    moved = jax.tree.map(
        lambda x, y: bool(np.any(x != y)), states[0][0].params, states[-1][0].params
    )
    assert moved["embedding"]
    assert not any(jax.tree.leaves(moved["encoder"]["norm"]))


def test_schedule_free_evaluates_its_average(tmp_path, partition):
    """Against optax's own wrapper, and its own definition: x is the mean of z, weighted by the
    squared rates."""
    task, data = chosen(tmp_path, "schedule_free")
    training = step.Training(task, partition)
    options = training.task.config.optimizer
    state = training.init(jax.random.key(0))
    zs = []
    jax.tree.map(np.testing.assert_array_equal, state.ema, state.params)
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(4):
            state, _ = training.step(state, partition.put_batch(next(batches)))
            zs.append(
                jax.device_get(state.opt_state.inner_states["trained"].inner_state.z["embedding"])
            )
    assert isinstance(
        state.opt_state.inner_states["trained"].inner_state, optax.contrib.ScheduleFreeState
    )
    rate = optimizer.learning_rate(training.task.config)
    weights = [float(np.max(rate(np.arange(t + 1)))) ** 2 for t in range(4)]
    mean = np.einsum("t,t...->...", weights, zs) / sum(weights)
    np.testing.assert_allclose(state.ema["embedding"], mean, rtol=1e-4, atol=1e-6)
    y = options.b1 * mean + (1 - options.b1) * zs[-1]
    np.testing.assert_allclose(state.params["embedding"], y, rtol=1e-4, atol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal, state.ema["encoder"]["norm"], state.params["encoder"]["norm"]
    )


REST = np.arange(6) / 6  # of 10 steps, after 4 of warmup


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("schedule", "warmup", "shares"),
    [
        ("cosine", 4, [0.25, 0.5, 0.75, 1, *0.5 * (1 + np.cos(np.pi * REST))]),
        ("linear", 4, [0.25, 0.5, 0.75, 1, *1 - REST]),
        ("constant", 4, [0.25, 0.5, 0.75] + 7 * [1]),
        ("wsd", 4, [0.25, 0.5, 0.75] + 4 * [1] + [1, 2 / 3, 1 / 3]),  # decay_share = 0.3
        ("wsd", 0, 7 * [1] + [1, 2 / 3, 1 / 3]),
        ("wsd", 8, [*np.arange(1, 9) / 8, 1, 0.5]),
        ("linear", 0, 1 - np.arange(10) / 10),
        ("constant", 0, 10 * [1]),
        ("cosine", 50, np.arange(1, 11) / 10),
        # Not by how near the end is; a warmup longer than the run does not reach its peak, as in
        # Long Range Arena's.
        ("rsqrt", 0, 1 / np.sqrt(np.arange(1, 11))),
        ("rsqrt", 2000, np.arange(1, 11) / 2000),
    ],
)
def test_schedules(config, schedule, warmup, shares):
    """Warmup begins above zero and reaches the peak; after the last step the rate is zero."""
    config.steps = 10
    config.optimizer.update(learning_rate=0.4, schedule=schedule, warmup=warmup, decay_share=0.3)
    rate = optimizer.learning_rate(config)
    np.testing.assert_allclose(
        [float(rate(step)) for step in range(10)], 0.4 * np.array(shares), rtol=1e-5, atol=1e-7
    )
    if schedule in ("cosine", "linear", "wsd") and warmup < config.steps:
        assert float(rate(10)) == pytest.approx(0, abs=1e-7)


def test_rsqrt_schedule(config):
    """Long Range Arena's: base * min(1, step / warmup) / sqrt(max(step, warmup)), whose peak is
    base / sqrt(warmup). Its first step has number 0; ours is one ahead in the warmup alone."""
    base = 0.05
    warmup = 4
    steps = np.arange(4, 10)
    published = base * np.minimum(1, steps / warmup) / np.sqrt(np.maximum(steps, warmup))
    config.steps = 10
    config.optimizer.update(learning_rate=base / warmup**0.5, schedule="rsqrt", warmup=warmup)
    rate = optimizer.learning_rate(config)
    np.testing.assert_allclose(rate(np.arange(4)), 0.025 * np.arange(1, 5) / 4, rtol=1e-6)
    np.testing.assert_allclose(rate(steps), published, rtol=1e-6)


def test_muon_makes_matrices_orthogonal_and_nothing_else(tmp_path):
    """Biases and logits of three axes, with the layer's, have NAdam's updates, also if all
    parameters are decayed."""
    config = tiny.text_config(
        tmp_path, block="transformer", layers=2, heads=2, positions="relative_only"
    )
    config.optimizer.update(name="muon", decay_all=True, warmup=0, schedule="constant")
    task, _ = tiny.open_task(config, tmp_path)
    shapes = task.shapes()
    masks = optimizer.masks(task.param_metadata(), decay_all=True)
    is_matrix = flat(masks.matrices(shapes))
    stacked = {path for path, leaf in flat(shapes).items() if path.startswith("encoder/blocks/")}
    with_three_axes = {path for path in stacked if flat(shapes)[path].ndim == 3}
    others = {path for path in with_three_axes if not is_matrix[path]}
    assert others
    assert all("relative" in path for path in others)
    assert {path.rpartition("/")[2] for path in with_three_axes - others} == {"kernel"}
    config.optimizer.weight_decay = 0.0
    updates = updates_of(config, task)
    nadam = optax.nadamw(config.optimizer.learning_rate, eps=config.optimizer.eps, weight_decay=0.0)
    for path in others:
        ones = jnp.ones(flat(shapes)[path].shape)
        expected, _ = nadam.update(ones, nadam.init(ones), ones)
        np.testing.assert_allclose(updates[path], expected, rtol=1e-3)  # clipped
