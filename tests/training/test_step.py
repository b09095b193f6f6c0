import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.models.text import MaskedLM
from gmlp_flax.tasks.data import TaskData
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import evaluation, optimizer, step
from gmlp_flax.training.lora import lora_kernels
from tests.training import tiny


@pytest.fixture
def line(config):
    config.optimizer.update(learning_rate=0.1, warmup=2)
    config.log.every, config.steps, config.batch_size = 3, 10, 8
    return tiny.Line(config)


def start(task, partition):
    """The programs and a fresh state."""
    training = step.Training(task, partition)
    return training, training.init(jax.random.key(0))


def run(task, batches, partition, first=0):
    """States, as NumPy arrays, and windows after each batch."""
    training, state = start(task, partition)
    state = state._replace(step=jax.device_put(jnp.array(first, jnp.int32), partition.replicated))
    found = []
    for batch in batches:
        state, window = training.step(state, partition.put_batch(batch))
        found.append(jax.device_get((state, window)))
    return found


def assert_close(tree, other, **tolerance):
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, **tolerance), tree, other)


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_loss_is_a_mean_over_weights_not_a_mean_of_means(line, partition, microbatches):
    """Examples weigh 1 to 8, so microbatches weigh differently."""
    batch = tiny.line_batch(0)
    params = line.init(jax.random.key(0))
    keyed = batch | {"key": jax.random.split(jax.random.key(1), 8)}
    grads, sums = step.gradients(line, params, keyed, microbatches, partition)
    x, y, weight = (batch[name].astype(np.float64) for name in ("x", "y", "weight"))
    errors = x @ np.array(params["line"]["kernel"], np.float64) - y
    assert_close(sums["loss"], ((errors**2 * weight).sum(), 36), rtol=1e-5)
    assert_close(grads["line"]["kernel"], 2 * (errors * weight) @ x / 36, rtol=1e-5)
    assert_close(grads["line"]["bias"], 2 * (errors * weight).sum() / 36, rtol=1e-5)


def test_state_is_donated(line, partition):
    line.config.optimizer.ema = 0.5
    training, state = start(line, partition)
    training.step(state, partition.put_batch(tiny.line_batch(0)))
    assert all(
        leaf.is_deleted() for leaf in jax.tree.leaves((state.params, state.opt_state, state.ema))
    )


def noise(line, partition, seed=0, first=0, batches=1):
    line.config.seed, line.config.log.every = seed, 1
    return [
        float(window["noise"][0])
        for _, window in run(
            line, [tiny.line_batch(i) for i in range(batches)], partition, first=first
        )
    ]


@pytest.mark.smoke
def test_randomness_is_a_function_of_seed_and_step(line, partition):
    from_start = noise(line, partition, batches=4)
    assert len(set(from_start)) == 4
    assert noise(line, partition, first=2, batches=2) == from_start[2:]
    assert noise(line, partition, seed=1)[0] not in from_start
    line.config.optimizer.grad_accum_steps = 2
    np.testing.assert_allclose(noise(line, partition, batches=4), from_start, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.15, 0.9999])
def test_running_mean(line, partition, decay):
    """At step t the decay is min(decay, (1 + t) / (10 + t)), as in TensorFlow: a short run forgets
    where it began."""
    line.config.optimizer.ema = decay
    expected = jax.device_get(line.init(jax.random.key(0)))
    for t, (state, _) in enumerate(
        run(line, [tiny.line_batch(i) for i in range(5)], partition), start=1
    ):
        keep = np.float64(min(decay, (1 + t) / (10 + t)))
        expected = jax.tree.map(
            lambda mean, new, keep=keep: keep * mean + (1 - keep) * new, expected, state.params
        )
        assert_close(state.ema, expected, rtol=1e-5, atol=1e-7)


def test_the_decay_reaches_what_the_config_says(config):
    config.optimizer.ema = 0.9999
    steps = np.array([1, 10, 1000, 89_989, 89_991, 10**6])
    found = [float(step.ema_decay(config, jnp.array(t))) for t in steps]
    np.testing.assert_allclose(found, np.minimum(0.9999, (1 + steps) / (10 + steps)), rtol=1e-6)


def test_window_sums_until_a_line_is_due(line, partition):
    """With log.every = 3, steps 1 to 3, 4 to 6, ... share a window, which is a part of the
    state."""
    found = run(line, [tiny.line_batch(i) for i in range(7)], partition)
    assert [float(window["loss"][1]) for _, window in found] == [36, 72, 108, 36, 72, 108, 36]
    assert [float(window["grad_norm"][1]) for _, window in found] == [1, 2, 3, 1, 2, 3, 1]
    rates = [0.05, 0.1, 0.1]
    assert float(found[2][1]["learning_rate"][0]) == pytest.approx(sum(rates))
    for state, window in found:
        assert_close(state.window, window, rtol=0)


def test_gradient_norm_is_reported_before_clipping(line, partition):
    line.config.optimizer.clip = 1e-3
    batch = tiny.line_batch(0)
    params = line.init(jax.random.key(0))
    keyed = batch | {"key": jax.random.split(jax.random.key(1), 8)}
    grads, _ = step.gradients(line, params, keyed, 1, partition)
    ((_, window),) = run(line, [batch], partition)
    assert float(window["grad_norm"][0]) == pytest.approx(float(optax.tree.norm(grads)), rel=1e-6)


def test_norms_by_layer(tmp_path, partition):
    """Against those of each layer's arrays; together they make the norm of the whole gradient."""
    config = tiny.text_config(tmp_path)
    config.log.norms, config.log.every, config.optimizer.warmup = True, 2, 0
    task, data = tiny.open_task(config, tmp_path)
    training, state = start(task, partition)
    before = jax.device_get(state.params)
    with data.train_batches(0, 0, 1) as batches:
        state, window = training.step(state, partition.put_batch(next(batches)))
        after = jax.device_get(state.params)
        found = {
            name: float(total) for name, (total, weight) in window.items() if float(weight) == 1
        }
        _, both = training.step(state, partition.put_batch(next(batches)))
    moved = jax.tree.map(np.subtract, after, before)
    for kind, tree in (("update_norm", moved), ("param_norm", after)):
        assert found[f"{kind}/embedding"] == pytest.approx(
            np.linalg.norm(tree["embedding"]), rel=1e-4
        )
        for layer in range(2):
            leaves = [leaf[layer].ravel() for leaf in jax.tree.leaves(tree["encoder"]["blocks"])]
            norm = np.linalg.norm(np.concatenate(leaves))
            assert found[f"{kind}/encoder/{layer}"] == pytest.approx(norm, rel=1e-4)
    of_gradient = [value for name, value in found.items() if name.startswith("grad_norm/")]
    assert len(of_gradient) == 5  # the embedding, the bias, two layers and the last norm
    assert np.linalg.norm(of_gradient) == pytest.approx(found["grad_norm"], rel=1e-5)
    assert both["grad_norm/embedding"][1] == 2  # the line of the log has the mean


class Renamed(MaskedLM):
    """A model that calls its encoder `body`."""

    @property
    def encoder(self):
        return self.body

    @encoder.setter
    def encoder(self, module):
        self.body = module


class RenamedTask(MaskedLanguageModeling):
    def module(self, rngs):
        return Renamed(self.spec(), self.config.model.vocab_size, rngs)


@pytest.mark.parametrize("name", ["lamb", "muon"])
def test_an_encoder_of_another_name_is_trained_alike(tmp_path, partition, name):
    """Rates by depth, norms by layer, and what an optimizer does to each layer."""
    results = []
    for kind, encoder in ((MaskedLanguageModeling, "encoder"), (RenamedTask, "body")):
        config = tiny.text_config(tmp_path)
        config.log.norms = True
        config.optimizer.update(name=name, warmup=0, learning_rate=0.1)
        config.optimizer.lr_multipliers = (f"^{encoder}/blocks/=0.25..1",)
        data = kind.Data(config)
        task = kind(config, data.assets())
        training, state = start(task, partition)
        with data.train_batches(0, 0, 1) as batches:
            for _ in range(2):
                state, window = training.step(state, partition.put_batch(next(batches)))
        assert f"update_norm/{encoder}/1" in window
        assert len(task.stacks(state.params)) == 1
        kernels = lora_kernels(task.shapes(), task.param_metadata())
        assert kernels == [f"{encoder}/blocks/proj_{way}/kernel" for way in ("in", "out")]
        leaves = leaves_by_path(jax.device_get({"params": state.params, "window": window}))
        results.append({path.replace(f"{encoder}/", "E/"): leaf for path, leaf in leaves.items()})
    standard, renamed = results
    assert standard.keys() == renamed.keys()
    for path, leaf in standard.items():
        # the norm of all gradients is summed in the order of the paths
        np.testing.assert_allclose(renamed[path], leaf, rtol=1e-4, atol=1e-6, err_msg=path)


def spiked(number):
    """A batch of `Line`: the errors of some are large, or not finite."""
    batch = tiny.line_batch(number)
    return batch | {
        "y": batch["y"] * {3: np.nan, 5: 4, 25: 100, 27: np.inf, 29: 100}.get(number, 1)
    }


def test_spikes_are_skipped_and_counted(line, partition):
    """As if their batches had not been there. In the first 20 steps only those that are not finite
    are skipped."""
    line.config.optimizer.update(
        skip_spikes=10.0, schedule="constant", warmup=0, learning_rate=1e-3, ema=0.5
    )
    line.config.log.every = 10
    found = run(line, map(spiked, range(32)), partition)
    states = [state for state, _ in found]
    same = [
        i
        for i in range(1, 32)
        if np.array_equal(
            states[i].params["line"]["kernel"], states[i - 1].params["line"]["kernel"]
        )
    ]
    assert same == [3, 25, 27, 29]
    for i in same:
        before = states[i - 1]
        moments = optimizer.after_skipped_step(before.opt_state, states[i].opt_state)
        expected = before._replace(opt_state=moments)
        for name in ("params", "opt_state", "ema", "level"):
            jax.tree.map(
                np.testing.assert_array_equal,
                getattr(states[i], name),
                getattr(expected, name),
            )
    counts = [tuple(map(float, window["skipped"])) for _, window in found]
    assert [counts[i] for i in (9, 19, 29, 31)] == [(1, 10), (0, 10), (3, 10), (0, 2)]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    without = run(line, [spiked(i) for i in range(32) if i not in same], partition)[-1][0]
    jax.tree.map(np.testing.assert_array_equal, without.params, states[-1].params)
    training = step.Training(line, partition)
    state = jax.device_put(states[25], jax.tree.map(lambda x: x.sharding, training.template))
    for number in range(26, 32):
        state, window = training.step(state, partition.put_batch(spiked(number)))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get((state, window)), found[number])


@pytest.mark.parametrize("name", ["sgd", "adamw", "schedule_free"])
def test_rates_follow_the_step_where_steps_are_skipped(line, partition, name):
    """The rate that is used is the one that is logged, of the step's own number."""
    schedule = "constant" if name == "schedule_free" else "linear"
    line.config.optimizer.update(
        name=name, skip_spikes=10.0, schedule=schedule, warmup=6, learning_rate=1e-3
    )
    line.config.optimizer.update(weight_decay=0.0, clip=0.0)
    line.config.log.every, line.config.steps = 1, 12
    skipped = (1, 3, 5, 8)
    batches = [tiny.line_batch(number) for number in range(12)]
    spiked_batches = [
        batch | {"y": batch["y"] * np.nan} if number in skipped else batch
        for number, batch in enumerate(batches)
    ]
    found = run(line, spiked_batches, partition)
    rates = [float(window["learning_rate"][0]) for _, window in found]
    schedule_rate = optimizer.learning_rate(line.config)
    for number in range(12):
        expected = 0.0 if number in skipped else float(schedule_rate(number))
        assert rates[number] == pytest.approx(expected)
    counts = [
        int(state.count)
        for state in jax.tree.leaves(found[-1][0].opt_state, is_leaf=has_schedule)
        if has_schedule(state)
    ]
    assert counts == [12]
    if name == "sgd":
        line.config.optimizer.b1 = 0.0
        found = run(line, spiked_batches, partition)
        kernels = [state.params["line"]["kernel"] for state, _ in found]
        for number in (4, 7, 11):  # steps that were taken
            keyed = spiked_batches[number] | {"key": jax.random.split(jax.random.key(0), 8)}
            params = found[number - 1][0].params
            grads, _ = step.gradients(line, params, keyed, 1, partition)
            moved = kernels[number] - kernels[number - 1]
            np.testing.assert_allclose(
                moved, -rates[number] * grads["line"]["kernel"], rtol=1e-3, atol=1e-6
            )


def has_schedule(node):
    return isinstance(node, optax.ScaleByScheduleState)


def test_wrong_shapes_are_refused_where_the_step_begins(line, partition):
    training, state = start(line, partition)
    batch = tiny.line_batch(0)
    with pytest.raises(AssertionError, match="prefix"):
        training.step(state, batch | {"weight": batch["weight"][:4]})
    with pytest.raises(AssertionError, match="float16"):
        training.step(
            state._replace(params=jax.tree.map(lambda x: x.astype(np.float16), state.params)), batch
        )
    with pytest.raises(AssertionError, match="prefix"):
        evaluator = evaluation.Evaluator(line, TaskData(line.config), partition)
        evaluator.step(state.params, batch | {"x": batch["x"][:4]})
