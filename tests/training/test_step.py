"""The training step against NumPy: gradients, EMA, windows of logged sums, norms and skipped
spikes."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import evaluation, optimizer, step
from gmlp_flax.training.lora import lora_kernels
from tests.tasks import by_hand
from tests.training import tiny


@pytest.fixture
def line(config):
    config.optimizer.update(learning_rate=0.1, warmup=2)
    config.log.every = 3
    config.steps = 10
    config.batch_size = 8
    return tiny.Line(config)


def start(task, partition):
    """The programs and an initial state."""
    training = step.Training(task, partition)
    return training, training.init(jax.random.key(0))


class After(NamedTuple):
    """The state and the window after a step, as NumPy arrays."""

    state: Any
    window: dict


def run(task, batches, partition, first=0) -> list[After]:
    """The results of a step with each batch, the first of which has the number `first`."""
    training, state = start(task, partition)
    first_number = jnp.array(first, jnp.int32)
    number = jax.device_put(first_number, partition.replicated)
    state = state._replace(step=number)
    results = []
    for batch in batches:
        device_batch = partition.put_batch(batch)
        state, window = training.step(state, device_batch)
        result = jax.device_get(After(state, window))
        results.append(result)
    return results


def assert_close(tree, other, **tolerance):
    close = functools.partial(assert_allclose, **tolerance)
    jax.tree.map(close, tree, other)


def keyed(batch, seed: int = 1):
    """A batch of eight with a key for each example."""
    return batch | {"key": by_hand.keys(8, seed)}


def line_batches(count: int) -> list[dict]:
    return [tiny.line_batch(number) for number in range(count)]


def kernel_of(state) -> np.ndarray:
    """The kernel of `Line`."""
    return state.params["line"]["kernel"]


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_loss_is_a_mean_over_weights_not_a_mean_of_means(line, partition, microbatches):
    """Examples weigh 1 to 8, so microbatches weigh differently."""
    batch = tiny.line_batch(0)
    params = line.init(jax.random.key(0))
    keyed_batch = keyed(batch)
    grads, sums = step.gradients(line, params, keyed_batch, microbatches, partition)
    x = batch["x"].astype(np.float64)
    weight = batch["weight"].astype(np.float64)
    line_params = params["line"]
    kernel = np.array(line_params["kernel"], np.float64)
    errors = x @ kernel - batch["y"]
    weighted = weight * errors
    loss = np.vdot(weighted, errors)
    total_weight = 36
    kernel_gradient = 2 * weighted @ x / total_weight
    bias_gradient = 2 * weighted.sum() / total_weight
    assert_close(sums["loss"], (loss, total_weight), rtol=1e-5)
    assert_close(grads["line"]["kernel"], kernel_gradient, rtol=1e-5)
    assert_close(grads["line"]["bias"], bias_gradient, rtol=1e-5)


def test_state_is_donated(line, partition):
    line.config.optimizer.ema = 0.5
    training, state = start(line, partition)
    batch = partition.put_batch(tiny.line_batch(0))
    training.step(state, batch)
    donated = (state.params, state.opt_state, state.ema)
    for leaf in jax.tree.leaves(donated):
        assert leaf.is_deleted()


def noise(line, partition, seed=0, first=0, batches=1):
    """The random numbers of each step."""
    line.config.seed = seed
    line.config.log.every = 1
    batches_of_line = line_batches(batches)
    results = run(line, batches_of_line, partition, first)
    numbers = []
    for result in results:
        numbers.append(by_hand.total(result.window, "noise"))
    return numbers


@pytest.mark.slow
@pytest.mark.smoke
def test_randomness_is_a_function_of_seed_and_step(line, partition):
    from_start = noise(line, partition, batches=4)
    assert len(set(from_start)) == 4
    resumed = noise(line, partition, first=2, batches=2)
    assert resumed == from_start[2:]
    [with_other_seed] = noise(line, partition, seed=1)
    assert with_other_seed not in from_start
    line.config.optimizer.grad_accum_steps = 2
    accumulated = noise(line, partition, batches=4)
    assert_allclose(accumulated, from_start, rtol=1e-5)


def scaled(tree, factor: float):
    """A tree whose arrays are multiplied by a factor."""
    return jax.tree.map(lambda leaf: factor * leaf, tree)


@pytest.mark.parametrize("decay", [0.15, 0.9999])
def test_running_mean(line, partition, decay):
    """At step t the decay is min(decay, (1 + t) / (10 + t)), as in TensorFlow: a short run forgets its
    initial parameters."""
    line.config.optimizer.ema = decay
    key = jax.random.key(0)
    expected = jax.device_get(line.init(key))
    results = run(line, line_batches(5), partition)
    for t, result in enumerate(results, start=1):
        warming_up = (1 + t) / (10 + t)
        keep = np.float64(min(decay, warming_up))
        kept = scaled(expected, keep)
        params = result.state.params
        added = scaled(params, 1 - keep)
        expected = jax.tree.map(np.add, kept, added)
        assert_close(result.state.ema, expected, rtol=1e-5, atol=1e-7)


def test_ema_decay_warms_up_to_the_configured_value(config):
    config.optimizer.ema = 0.9999
    steps = np.array([1, 10, 1000, 89_989, 89_991, 10**6])
    decays = []
    for number in steps:
        step_number = jnp.array(number)
        decay = step.ema_decay(config, step_number)
        decays.append(float(decay))
    warming_up = (1 + steps) / (10 + steps)
    expected = np.minimum(0.9999, warming_up)
    assert_allclose(decays, expected, rtol=1e-6)


def test_window_accumulates_until_a_line_is_logged(line, partition):
    """With log.every = 3, steps 1 to 3, 4 to 6, ... share a window, which is a part of the state."""
    results = run(line, line_batches(7), partition)
    windows = [result.window for result in results]
    loss_weights = []
    for window in windows:
        loss_weights.append(by_hand.weight(window, "loss"))
    assert loss_weights == [36, 72, 108, 36, 72, 108, 36]
    norm_weights = []
    for window in windows:
        norm_weights.append(by_hand.weight(window, "grad_norm"))
    assert norm_weights == [1, 2, 3, 1, 2, 3, 1]
    rate = by_hand.total(windows[2], "learning_rate")
    assert rate == pytest.approx(0.05 + 0.1 + 0.1)
    for result in results:
        assert_close(result.state.window, result.window, rtol=0)


def test_gradient_norm_is_reported_before_clipping(line, partition):
    line.config.optimizer.clip = 1e-3
    batch = tiny.line_batch(0)
    params = line.init(jax.random.key(0))
    keyed_batch = keyed(batch)
    grads, _ = step.gradients(line, params, keyed_batch, 1, partition)
    expected = float(optax.tree.norm(grads))
    [result] = run(line, [batch], partition)
    logged = by_hand.total(result.window, "grad_norm")
    assert logged == pytest.approx(expected, rel=1e-6)


class RenamedLM(MaskedLM):
    """A model that calls its encoder `body`."""

    @property
    def encoder(self):
        return self.body

    @encoder.setter
    def encoder(self, module):
        self.body = module


class RenamedTask(MaskedLanguageModeling):
    def module(self, rngs):
        return RenamedLM(self.spec(), self.config.model.vocab_size, rngs)


class Norms(NamedTuple):
    """Parameters before and after one step that logs norms, and the windows of one and two steps."""

    before: dict
    after: dict
    first: dict
    both: dict


@pytest.fixture
def norms(tmp_path, partition):
    config = tiny.text_config(tmp_path)
    config.log.norms = True
    config.log.every = 2
    config.optimizer.warmup = 0
    task, data = tiny.open_task(config, tmp_path)
    training, state = start(task, partition)
    before = jax.device_get(state.params)
    with data.train_batches(0, 0, 1) as batches:
        batch = partition.put_batch(next(batches))
        state, window = training.step(state, batch)
        after = jax.device_get(state.params)
        first = jax.device_get(window)
        batch = partition.put_batch(next(batches))
        _, both = training.step(state, batch)
    return Norms(before, after, first, both)


def check_norms(window, kind: str, tree) -> None:
    """Compares logged norms with those of the arrays of each layer."""
    logged = by_hand.total(window, f"{kind}/embedding")
    norm = np.linalg.norm(tree["embedding"])
    assert logged == pytest.approx(norm, rel=1e-4)
    encoder_blocks = tree["encoder"]["blocks"]
    blocks = jax.tree.leaves(encoder_blocks)
    for layer in range(2):
        parts = [leaf[layer].ravel() for leaf in blocks]
        joined = np.concatenate(parts)
        norm = np.linalg.norm(joined)
        logged = by_hand.total(window, f"{kind}/encoder/{layer}")
        assert logged == pytest.approx(norm, rel=1e-4)


def test_norms_of_parameters_and_updates_by_layer(norms):
    update = jax.tree.map(np.subtract, norms.after, norms.before)
    check_norms(norms.first, "update_norm", update)
    check_norms(norms.first, "param_norm", norms.after)


def test_norms_of_the_gradient_by_layer(norms):
    """Together they give the norm of the whole gradient."""
    parts = []
    for name in norms.first:
        if name.startswith("grad_norm/"):
            parts.append(by_hand.total(norms.first, name))
    assert len(parts) == 5  # the embedding, the bias, two layers and the last norm
    whole = by_hand.total(norms.first, "grad_norm")
    assert np.linalg.norm(parts) == pytest.approx(whole, rel=1e-5)


def test_norms_of_several_steps_are_averaged(norms):
    assert by_hand.weight(norms.first, "grad_norm/embedding") == 1
    assert by_hand.weight(norms.both, "grad_norm/embedding") == 2


def trained_leaves(kind, encoder: str, folder, partition, name: str) -> dict[str, np.ndarray]:
    """Parameters and window after two steps of a task whose encoder has this name, by path with E for
    the encoder."""
    config = tiny.text_config(folder)
    config.log.norms = True
    config.optimizer.update(name=name, warmup=0, learning_rate=0.1)
    config.optimizer.lr_multipliers = (f"^{encoder}/blocks/=0.25..1",)
    data = kind.Data(config)
    task = kind(config, data.assets())
    training, state = start(task, partition)
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(2):
            batch = partition.put_batch(next(batches))
            state, window = training.step(state, batch)
    assert f"update_norm/{encoder}/1" in window
    assert len(task.stacks(state.params)) == 1
    kernels = lora_kernels(task.shapes(), task.param_metadata())
    blocks = f"{encoder}/blocks"
    assert kernels == [f"{blocks}/proj_in/kernel", f"{blocks}/proj_out/kernel"]
    arrays = jax.device_get({"params": state.params, "window": window})
    leaves = {}
    for path, leaf in leaves_by_path(arrays).items():
        renamed = path.replace(f"{encoder}/", "E/")
        leaves[renamed] = leaf
    return leaves


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_encoder_with_another_name_is_trained(tmp_path, partition, name):
    """Learning rates by depth, norms by layer, and the optimizer's updates of each layer."""
    standard = trained_leaves(MaskedLanguageModeling, "encoder", tmp_path, partition, name)
    renamed = trained_leaves(RenamedTask, "body", tmp_path, partition, name)
    assert standard.keys() == renamed.keys()
    for path, leaf in standard.items():
        # the norm of all gradients is summed in the order of the paths
        assert_allclose(renamed[path], leaf, rtol=1e-4, atol=1e-6, err_msg=path)


# The factor of the targets of a batch, by its number.
SPIKES = {3: np.nan, 5: 4, 25: 100, 27: np.inf, 29: 100}
SKIPPED = [3, 25, 27, 29]


def spiked(number: int) -> dict:
    """A batch of `Line`. The errors of some batches are large or not finite."""
    batch = tiny.line_batch(number)
    batch["y"] = batch["y"] * SPIKES.get(number, 1)
    return batch


def spiked_batches() -> list[dict]:
    return [spiked(number) for number in range(32)]


@pytest.fixture
def skipping(line):
    """A `Line` that skips spikes."""
    options = line.config.optimizer
    options.update(schedule="constant", warmup=0, learning_rate=1e-3)
    options.update(skip_spikes=10.0, ema=0.5)
    line.config.log.every = 10
    return line


def assert_equal(tree, other) -> None:
    jax.tree.map(assert_array_equal, tree, other)


def test_spikes_are_skipped(skipping, partition):
    """In the first 20 steps, only steps that are not finite are skipped."""
    results = run(skipping, spiked_batches(), partition)
    for number in range(1, 32):
        state = results[number - 1].state
        before = kernel_of(state)
        after = kernel_of(results[number].state)
        is_same = np.array_equal(after, before)
        assert is_same == (number in SKIPPED)
    for leaf in jax.tree.leaves(results):
        assert np.isfinite(leaf).all()


def test_skipped_step_leaves_the_state(skipping, partition):
    results = run(skipping, spiked_batches(), partition)
    for number in SKIPPED:
        before = results[number - 1].state
        after = results[number].state
        moments = optimizer.after_skipped_step(before.opt_state, after.opt_state)
        assert_equal(after.params, before.params)
        assert_equal(after.opt_state, moments)
        assert_equal(after.ema, before.ema)
        assert_equal(after.level, before.level)


def test_skipped_steps_are_counted(skipping, partition):
    results = run(skipping, spiked_batches(), partition)
    skipped = {9: 1, 19: 0, 29: 3, 31: 0}
    steps = {9: 10, 19: 10, 29: 10, 31: 2}
    for number, count in skipped.items():
        window = results[number].window
        assert by_hand.total(window, "skipped") == count
        assert by_hand.weight(window, "skipped") == steps[number]


def test_skipped_spikes_leave_no_trace(skipping, partition):
    with_spikes = run(skipping, spiked_batches(), partition)
    others = []
    for number in range(32):
        if number not in SKIPPED:
            others.append(spiked(number))
    without_spikes = run(skipping, others, partition)
    found = with_spikes[-1].state
    expected = without_spikes[-1].state
    assert_equal(found.params, expected.params)


def test_spikes_are_skipped_in_a_resumed_run(skipping, partition):
    results = run(skipping, spiked_batches(), partition)
    training = step.Training(skipping, partition)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, training.template)
    state = jax.device_put(results[25].state, shardings)
    for number in range(26, 32):
        batch = partition.put_batch(spiked(number))
        state, window = training.step(state, batch)
        found = jax.device_get(After(state, window))
        assert_equal(found, results[number])


NOT_FINITE = (1, 3, 5, 8)


def broken_batches() -> list[dict]:
    """Twelve batches of `Line`, some of which are not finite."""
    batches = line_batches(12)
    for number in NOT_FINITE:
        batches[number]["y"] = batches[number]["y"] * np.nan
    return batches


@pytest.fixture
def warming(line):
    """A `Line` that skips spikes while its learning rate changes."""
    options = line.config.optimizer
    options.update(schedule="linear", warmup=6, learning_rate=1e-3)
    options.update(skip_spikes=10.0, weight_decay=0.0, clip=0.0)
    line.config.log.every = 1
    line.config.steps = 12
    return line


@pytest.mark.parametrize("name", ["sgd", "adamw", "schedule_free"])
def test_learning_rate_follows_the_step_despite_skips(warming, partition, name):
    """The logged learning rate is that of the step's number."""
    warming.config.optimizer.name = name
    if name == "schedule_free":
        warming.config.optimizer.schedule = "constant"
    results = run(warming, broken_batches(), partition)
    schedule_rate = optimizer.learning_rate(warming.config)
    for number, result in enumerate(results):
        scheduled = float(schedule_rate(number))
        expected = 0.0 if number in NOT_FINITE else scheduled
        rate = by_hand.total(result.window, "learning_rate")
        assert rate == pytest.approx(expected)
    opt_state = results[-1].state.opt_state
    counts = []
    for node in jax.tree.leaves(opt_state, is_leaf=has_schedule):
        if has_schedule(node):
            counts.append(int(node.count))
    assert counts == [12]


def test_logged_learning_rate_is_applied_despite_skips(warming, partition):
    warming.config.optimizer.update(name="sgd", b1=0.0)
    batches = broken_batches()
    results = run(warming, batches, partition)
    for number in (4, 7, 11):  # steps that were not skipped
        before = results[number - 1].state
        after, window = results[number]
        batch = keyed(batches[number], 0)
        grads, _ = step.gradients(warming, before.params, batch, 1, partition)
        update = kernel_of(after) - kernel_of(before)
        rate = by_hand.total(window, "learning_rate")
        kernel_gradient = grads["line"]["kernel"]
        expected = -rate * kernel_gradient
        assert_allclose(update, expected, rtol=1e-3, atol=1e-6)


def test_wrong_batch_shapes_are_refused_at_the_start_of_the_step(line, partition):
    training, state = start(line, partition)
    batch = tiny.line_batch(0)
    batch["weight"] = batch["weight"][:4]
    with pytest.raises(AssertionError, match="prefix"):
        training.step(state, batch)


def test_wrong_parameter_types_are_refused_at_the_start_of_the_step(line, partition):
    training, state = start(line, partition)
    half_precision = jax.tree.map(lambda leaf: leaf.astype(np.float16), state.params)
    state = state._replace(params=half_precision)
    batch = tiny.line_batch(0)
    with pytest.raises(AssertionError, match="float16"):
        training.step(state, batch)


def test_wrong_shapes_are_refused_at_the_start_of_an_evaluation(line, partition):
    _, state = start(line, partition)
    data = TaskData(line.config)
    evaluator = evaluation.Evaluator(line, data, partition)
    batch = tiny.line_batch(0)
    batch["x"] = batch["x"][:4]
    with pytest.raises(AssertionError, match="prefix"):
        evaluator.step(state.params, batch)


def has_schedule(node) -> bool:
    return isinstance(node, optax.ScaleByScheduleState)
