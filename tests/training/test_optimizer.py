"""Optimizers: weight decay, frozen parameters, multipliers and schedules, against NumPy and optax."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.checkpoint import Checkpoints
from gmlp_flax.checkpoints.pytree import leaves_by_path as flat
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.errors import RunError
from gmlp_flax.training import optimizer, step
from tests.selection import marked_unless
from tests.training import tiny


def endings(paths) -> set[str]:
    """The last parts of paths."""
    last_parts = set()
    for path in paths:
        _, _, last = path.rpartition("/")
        last_parts.add(last)
    return last_parts


@pytest.mark.parametrize(
    ("name", "decayed", "left_out"),
    [
        ("text_task", {"embedding", "kernel", "taps"}, {"bias", "scale"}),
        ("image_task", {"kernel", "weight"}, {"bias", "scale", "cls"}),
    ],
)
def test_decay_leaves_out_norms_and_biases(name, decayed, left_out, request):
    task = request.getfixturevalue(name)
    masks = optimizer.masks(task.param_metadata())
    is_decayed = flat(masks.decayed(task.shapes()))
    paths = set()
    for path, value in is_decayed.items():
        if value:
            paths.add(path)
    others = is_decayed.keys() - paths
    assert endings(paths) == decayed
    assert endings(others) == left_out
    assert "encoder/blocks/gate/spatial/bias" in others


def test_decay_of_all_parameters(config):
    """As in optimizers without a mask: without a gradient, a bias shrinks as a kernel does."""
    config.optimizer.update(learning_rate=0.1, schedule="constant", warmup=0)
    config.optimizer.update(weight_decay=0.3, decay_all=True)
    exact = exact_params()
    params = as_float32(exact)
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    no_gradients = jax.tree.map(jnp.zeros_like, params)
    updates = first_update(transformation, params, no_gradients)
    for name, value in exact["line"].items():
        expected = -0.1 * 0.3 * value
        assert_allclose(updates["line"][name], expected, rtol=1e-6)


def line_tree(kernel: list[float], bias: float) -> dict:
    """A tree of the parameters of `Line`."""
    return {"line": {"kernel": np.array(kernel), "bias": np.array(bias)}}


def as_float32(tree):
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.float32), tree)


def exact_params() -> dict:
    """The parameters of `Line` in float64."""
    return line_tree([1.0, -2.0, 0.5], 3.0)


def exact_gradients() -> list[dict]:
    """Gradients of norm 13 and 2 in float64."""
    first = line_tree([3.0, 4.0, 0.0], 12.0)
    second = line_tree([0.0, -2.0, 0.0], 0.0)
    return [first, second]


def adamw(params, gradients, options, rate=0.1):
    """Loshchilov and Hutter's algorithm 2 on dicts of arrays, with clipping by the global norm."""
    params = dict(params)
    means = {}
    for name, p in params.items():
        means[name] = np.zeros_like(p)
    squares = dict(means)
    for t, unclipped in enumerate(gradients, start=1):
        clipped = clip_by_norm(unclipped, options.clip)
        for name, g in clipped.items():
            means[name] = moving_average(options.b1, means[name], g)
            squares[name] = moving_average(options.b2, squares[name], g**2)
            mean_weight = 1 - options.b1**t
            mean = means[name] / mean_weight
            square_weight = 1 - options.b2**t
            square = squares[name] / square_weight
            deviation = np.sqrt(square)
            step = mean / (deviation + options.eps)
            if name == "kernel":
                decay = options.weight_decay * params[name]
                step = step + decay
            params[name] = params[name] - rate * step
    return params


def moving_average(decay: float, average, value):
    """An exponential moving average after another value."""
    kept = decay * average
    added = (1 - decay) * value
    return kept + added


def clip_by_norm(gradients: dict, most: float) -> dict:
    """Gradients scaled so that their global norm is at most `most`; 0 for no limit."""
    if not most:
        return gradients
    squares = [np.square(g).sum() for g in gradients.values()]
    norm = np.sqrt(sum(squares))
    scale = min(1, most / norm)
    return {name: scale * g for name, g in gradients.items()}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("clip", "freeze"),
    [
        (0.0, ()),
        (1.0, ()),
        (5.0, ()),
        (5.0, ("bias",)),
    ],
)
def test_two_steps_against_numpy(config, clip, freeze):
    """Clipping uses the norm of the gradients of the trained parameters only."""
    config.optimizer.update(learning_rate=0.1, schedule="constant", warmup=0)
    config.optimizer.update(clip=clip, freeze=freeze, weight_decay=0.3, eps=1e-3, b2=0.98)
    params = as_float32(exact_params())
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state = transformation.init(params)
    for gradients in exact_gradients():
        updates, state = transformation.update(as_float32(gradients), state, params)
        params = optax.apply_updates(params, updates)
    expected = exact_params()["line"]
    trained = without(expected, freeze)
    trained_gradients = []
    for g in exact_gradients():
        trained_gradients.append(without(g["line"], freeze))
    expected |= adamw(trained, trained_gradients, config.optimizer)
    for name, value in expected.items():
        found = params["line"][name]
        assert_allclose(found, value, rtol=1e-5)


def without(arrays: dict, names) -> dict:
    """All arrays except those of some names."""
    return {name: array for name, array in arrays.items() if name not in names}


def first_update(transformation, params, gradients):
    """The update of a new optimizer."""
    state = transformation.init(params)
    updates, _ = transformation.update(gradients, state, params)
    return updates


def updates_of(config, task):
    """The updates from random parameters whose gradients are all 1."""
    transformation = optimizer.make(config, task.shapes(), task.param_metadata())

    @jax.jit
    def updates(params):
        ones = jax.tree.map(jnp.ones_like, params)
        return first_update(transformation, params, ones)

    params = tiny.random_params(task.shapes(), 0.1)
    return jax.device_get(flat(updates(params)))


def test_frozen_parameters_stay_bit_identical(config, text_task):
    config.optimizer.freeze = ("/spatial/", "^embedding$")
    updates = updates_of(config, text_task)
    same = set()
    for name, update in updates.items():
        if not update.any():
            same.add(name)
    assert len(same) == 3
    for name in updates:
        is_frozen = name == "embedding" or "/spatial/" in name
        assert (name in same) == is_frozen


def expected_factor(name: str, axes: int):
    """The factor of the next test's lines for an update with a number of axes."""
    if name == "encoder/blocks/gate/spatial/bias":
        return 8
    if name == "bias":
        return 2
    if name.startswith("encoder/blocks/"):
        factors = np.array([0.25, 0.5, 1])
        other_axes = [1] * (axes - 1)
        return factors.reshape(3, *other_axes)
    return 1


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_multipliers_scale_the_updates_of_matching_parameters(tmp_path, optimizer_name):
    """The first matching line counts. Over stacked layers, a factor grows by the same ratio from layer
    to layer."""
    kind = OPTIMIZERS[optimizer_name]
    config = tiny.text_config(tmp_path, layers=3)
    changes = kind.requires | {"name": optimizer_name}
    config.optimizer.update(changes)
    config.optimizer.freeze = ("encoder/norm",)  # some parameters are frozen as well
    task, _ = tiny.open_task(config, tmp_path)
    plain = updates_of(config, task)
    config.optimizer.lr_multipliers = ("spatial/bias=8", "^encoder/blocks/=0.25..1", "bias=2")
    scaled = updates_of(config, task)
    rounding = {"rtol": 1e-3, "atol": 1e-6} if kind.averages else {"rtol": 1e-6}
    for name, update in plain.items():
        expected = update * expected_factor(name, update.ndim)
        assert_allclose(scaled[name], expected, err_msg=name, **rounding)
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
def test_patterns_that_match_no_parameter_are_refused(config, text_task, key, lines, named):
    config.optimizer[key] = lines
    with pytest.raises(RunError, match=re.escape(f"config.optimizer.{key}: {named}")):
        optimizer.make(config, text_task.shapes(), text_task.param_metadata())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_descends_and_decays_only_matrices(config, name):
    config.optimizer.update(name=name, learning_rate=0.01, schedule="constant", warmup=0)
    config.optimizer.update(clip=0.0, weight_decay=0.0)
    params = as_float32(exact_params())
    gradient, _ = as_float32(exact_gradients())
    no_gradient = jax.tree.map(jnp.zeros_like, gradient)

    def make_update():
        """The first update of an optimizer, as a function of the gradient."""
        transformation = optimizer.make(config, params, tiny.LINE_METADATA)

        @jax.jit
        def update(gradient):
            return first_update(transformation, params, gradient)["line"]

        return update

    update = make_update()
    step = update(gradient)
    rest = update(no_gradient)
    gradient_kernel = gradient["line"]["kernel"]
    assert np.vdot(step["kernel"], gradient_kernel) < 0
    assert step["bias"] < 0
    assert not np.any(rest["kernel"])
    if "weight_decay" not in OPTIMIZERS[name].hyperparameters:
        return
    config.optimizer.weight_decay = 0.5
    update = make_update()
    decay = update(no_gradient)
    kernel = params["line"]["kernel"]
    slope = np.vdot(decay["kernel"], kernel)
    assert slope < 0
    assert abs(decay["bias"]) < 1e-6


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_decay_does_not_gather_momentum(config, name):
    config.optimizer.update(name=name, learning_rate=0.1, schedule="constant", warmup=0)
    config.optimizer.update(clip=0.0, weight_decay=0.1)
    params = as_float32(exact_params())
    transformation = optimizer.make(config, params, tiny.LINE_METADATA)
    state = transformation.init(params)
    no_gradient = jax.tree.map(jnp.zeros_like, params)
    expected = -0.01 * params["line"]["kernel"]
    for _ in range(3):
        updates, state = transformation.update(no_gradient, state, params)
        assert_allclose(updates["line"]["kernel"], expected, rtol=1e-5)


def test_lamb_trust_ratio_is_per_layer(config, text_task):
    """Stacked layers move as they would if each were a separate parameter. Parameters that are not
    decayed move as with Adam."""
    options = config.optimizer
    options.update(name="lamb", learning_rate=0.1, schedule="constant", warmup=0)
    options.update(clip=0.0, weight_decay=0.01)
    shapes = text_task.shapes()
    metadata = text_task.param_metadata()
    params = tiny.random_params(shapes, 0.1, 0)
    gradients = tiny.random_params(shapes, 0.1, 1)
    factors = np.array([0.01, 10.0], np.float32)
    output = params["encoder"]["blocks"]["proj_out"]
    output["kernel"] *= factors.reshape(2, 1, 1)
    masks = optimizer.masks(metadata)
    is_decayed = flat(masks.decayed(shapes))
    lamb = optax.lamb(0.1, options.b1, options.b2, options.eps, weight_decay=0.01)
    adam = optax.adam(0.1, options.b1, options.b2, options.eps)

    def update_alone(name, param, gradient):
        transformation = lamb if is_decayed[name] else adam
        if not name.startswith("encoder/blocks/"):
            return first_update(transformation, param, gradient)
        layers = []
        for layer in range(2):
            update = first_update(transformation, param[layer], gradient[layer])
            layers.append(update)
        return jnp.stack(layers)

    @jax.jit
    def all_alone(params, gradients):
        gradient_of = flat(gradients)
        updates = {}
        for name, param in flat(params).items():
            updates[name] = update_alone(name, param, gradient_of[name])
        return updates

    @jax.jit
    def all_together(params, gradients):
        transformation = optimizer.make(config, shapes, metadata)
        return first_update(transformation, params, gradients)

    alone = all_alone(params, gradients)
    together = flat(all_together(params, gradients))
    for name, update in together.items():
        assert_allclose(update, alone[name], rtol=1e-5, atol=1e-9, err_msg=name)


def open_with(folder, name, **model):
    """A task and its data with an optimizer and all options that can be combined with it."""
    config = tiny.text_config(folder, **model)
    kind = OPTIMIZERS[name]
    config.optimizer.update(kind.requires, name=name, learning_rate=0.01)
    config.optimizer.update(lr_multipliers=("bias=2",), freeze=("encoder/norm",))
    if "weight_decay" not in kind.hyperparameters:
        config.optimizer.weight_decay = 0.0
    gmlp_config.validate(config)
    return tiny.open_task(config, folder)


class After(NamedTuple):
    """The state and the window after a step, as NumPy arrays."""

    state: Any
    window: Any


def results_of(training, data, partition, steps: int) -> list[After]:
    """The results of each step."""
    state = training.init(jax.random.key(0))
    results = []
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(steps):
            batch = partition.put_batch(next(batches))
            state, window = training.step(state, batch)
            result = jax.device_get(After(state, window))
            results.append(result)
    return results


@pytest.fixture(scope="module", params=marked_unless(["adamw"], OPTIMIZERS, pytest.mark.slow))
def four_steps(request, tmp_path_factory, partition):
    """The training with an optimizer, its data, and the state and the window after each of four
    steps."""
    folder = tmp_path_factory.mktemp("run")
    task, data = open_with(folder, request.param)
    training = step.Training(task, partition)
    results = results_of(training, data, partition, 4)
    return training, data, results


def test_resumed_run_takes_bit_identical_steps(four_steps, tmp_path, partition):
    training, data, results = four_steps
    shardings = jax.tree.map(lambda leaf: leaf.sharding, training.template)
    saved = jax.device_put(results[1].state, shardings)
    checkpoints = Checkpoints(str(tmp_path / "checkpoints"))
    checkpoints.save(2, saved, None)
    checkpoints.wait()
    state = checkpoints.restore(2, training.template)
    checkpoints.close()
    with data.train_batches(2, 0, 1) as batches:
        for expected in results[2:]:
            batch = partition.put_batch(next(batches))
            state, window = training.step(state, batch)
            found = jax.device_get(After(state, window))
            jax.tree.map(assert_array_equal, found, expected)


def test_all_parameters_except_frozen_ones_are_trained(four_steps):
    _, _, results = four_steps
    first = results[0].state
    last = results[-1].state
    is_same = jax.tree.map(np.array_equal, first.params, last.params)
    assert not is_same["embedding"]
    assert jax.tree.all(is_same["encoder"]["norm"])


@pytest.fixture
def schedule_free(tmp_path, partition):
    """The config of a run without a schedule, and its states after each of four steps."""
    task, data = open_with(tmp_path, "schedule_free")
    training = step.Training(task, partition)
    results = results_of(training, data, partition, 4)
    states = [result.state for result in results]
    return task.config, states


def wrapped_state(state):
    """The state of optax's wrapper."""
    return state.opt_state.inner_states["trained"].inner_state


def test_schedule_free_evaluates_its_average(schedule_free):
    """Against its definition: x is the mean of z, weighted by the squared learning rates."""
    config, states = schedule_free
    last = states[-1]
    zs = [wrapped_state(state).z["embedding"] for state in states]
    rate = optimizer.learning_rate(config)
    rates = rate(np.arange(4))
    largest_so_far = np.maximum.accumulate(rates)
    weights = largest_so_far**2
    mean = np.average(zs, axis=0, weights=weights)
    ema = last.ema["embedding"]
    assert_allclose(ema, mean, rtol=1e-4, atol=1e-6)
    y = moving_average(config.optimizer.b1, mean, zs[-1])
    embedding = last.params["embedding"]
    assert_allclose(embedding, y, rtol=1e-4, atol=1e-6)
    norm = last.params["encoder"]["norm"]
    averaged_norm = last.ema["encoder"]["norm"]
    jax.tree.map(assert_array_equal, averaged_norm, norm)


STEP_NUMBERS = np.arange(1, 11)  # of 10 steps
REST = np.arange(6) / 6  # of 10 steps, after 4 of warmup
HALF_COSINE = 0.5 * (1 + np.cos(np.pi * REST))
RISING = [0.25, 0.5, 0.75]  # the first 3 of 4 steps of warmup
RISING_IN_8 = np.arange(1, 9) / 8
FALLING = [1, 2 / 3, 1 / 3]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("schedule", "warmup", "shares"),
    [
        ("cosine", 4, [*RISING, 1, *HALF_COSINE]),
        ("linear", 4, [*RISING, 1, *1 - REST]),
        ("constant", 4, [*RISING, 1, 1, 1, 1, 1, 1, 1]),
        ("wsd", 4, [*RISING, 1, 1, 1, 1, *FALLING]),  # decay_share = 0.3
        ("wsd", 0, [1, 1, 1, 1, 1, 1, 1, *FALLING]),
        ("wsd", 8, [*RISING_IN_8, 1, 0.5]),
        ("linear", 0, 1 - np.arange(10) / 10),
        ("constant", 0, [1] * 10),
        ("cosine", 50, STEP_NUMBERS / 10),
        # It does not depend on the last step; a warmup longer than the run does not reach its peak,
        # as in Long Range Arena.
        ("rsqrt", 0, 1 / np.sqrt(STEP_NUMBERS)),
        ("rsqrt", 2000, STEP_NUMBERS / 2000),
    ],
)
def test_schedules(config, schedule, warmup, shares):
    """Warmup starts above zero and reaches the peak; after the last step the rate is zero."""
    config.steps = 10
    config.optimizer.update(learning_rate=0.4, schedule=schedule, warmup=warmup, decay_share=0.3)
    rate = optimizer.learning_rate(config)
    rates = [float(rate(step)) for step in range(10)]
    expected = 0.4 * np.array(shares)
    assert_allclose(rates, expected, rtol=1e-5, atol=1e-7)
    if schedule in ("cosine", "linear", "wsd") and warmup < config.steps:
        last_rate = float(rate(10))
        assert last_rate == pytest.approx(0, abs=1e-7)


def test_schedule_free_equals_the_optax_wrapper(schedule_free):
    _, states = schedule_free
    assert isinstance(wrapped_state(states[-1]), optax.contrib.ScheduleFreeState)


def test_schedule_free_starts_at_its_average(tmp_path, partition):
    task, _ = open_with(tmp_path, "schedule_free")
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    jax.tree.map(assert_array_equal, state.ema, state.params)


def test_rsqrt_schedule(config):
    """Long Range Arena's: base * min(1, step / warmup) / sqrt(max(step, warmup)), whose peak is
    base / sqrt(warmup). Its first step has number 0; ours is one ahead only in the warmup."""
    base = 0.05
    warmup = 4
    steps = np.arange(4, 10)
    warmup_factor = np.minimum(1, steps / warmup)
    root = np.sqrt(np.maximum(steps, warmup))
    published = base * warmup_factor / root
    config.steps = 10
    peak = base / warmup**0.5
    config.optimizer.update(learning_rate=peak, schedule="rsqrt", warmup=warmup)
    rate = optimizer.learning_rate(config)
    rising = 0.025 * np.arange(1, 5) / 4
    rising_rates = rate(np.arange(4))
    assert_allclose(rising_rates, rising, rtol=1e-6)
    assert_allclose(rate(steps), published, rtol=1e-6)


@pytest.fixture
def muon(tmp_path):
    """A transformer whose position logits have three axes, including the layer's."""
    options = {"block": "transformer", "heads": 2, "positions": "relative_only"}
    config = tiny.text_config(tmp_path, layers=2, **options)
    config.optimizer.update(name="muon", decay_all=True, warmup=0, schedule="constant")
    task, _ = tiny.open_task(config, tmp_path)
    return task


def three_axes_of_muon(task) -> tuple[set[str], set[str]]:
    """The paths of stacked parameters with three axes: matrices, and others."""
    shapes = task.shapes()
    masks = optimizer.masks(task.param_metadata(), decay_all=True)
    is_matrix = flat(masks.matrices(shapes))
    matrices = set()
    others = set()
    for path, leaf in flat(shapes).items():
        if path.startswith("encoder/blocks/") and leaf.ndim == 3:
            if is_matrix[path]:
                matrices.add(path)
            else:
                others.add(path)
    return matrices, others


def test_muon_orthogonalizes_only_matrices(muon):
    matrices, others = three_axes_of_muon(muon)
    assert others
    for path in others:
        assert "relative" in path
    assert endings(matrices) == {"kernel"}


def test_muon_updates_other_parameters_with_nadam(muon):
    """Even if all parameters are decayed."""
    config = muon.config
    config.optimizer.weight_decay = 0.0
    updates = updates_of(config, muon)
    shapes = flat(muon.shapes())
    _, others = three_axes_of_muon(muon)
    rate = config.optimizer.learning_rate
    nadam = optax.nadamw(rate, eps=config.optimizer.eps, weight_decay=0.0)
    for path in others:
        ones = jnp.ones(shapes[path].shape)
        expected = first_update(nadam, ones, ones)
        assert_allclose(updates[path], expected, rtol=1e-3)  # clipped
