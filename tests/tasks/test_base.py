"""What every task has, and a whole task of one's own: its data, its model, its loss and its
answers."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gmlp_flax as gf
from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import Linear
from gmlp_flax.options import AT_LEAST_0, SIZE, Option
from gmlp_flax.tasks.base import Baseline, Inheritance, Task, joined_states, weighted_sum
from gmlp_flax.tasks.data import TaskData
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.prediction import Predictor, Prepared, Settings
from gmlp_flax.training import loop
from tests.failures import raised
from tests.training import tiny

SHAPES = ("sine", "square", "sawtooth")


def wave(shape: str, phase: float, length: int) -> np.ndarray:
    """Two periods of a wave: float32 [length]."""
    turns = 2 * np.arange(length) / length + phase
    sine = np.sin(2 * np.pi * turns)
    values = {"sine": sine, "square": np.sign(sine), "sawtooth": 2 * (turns % 1) - 1}
    return values[shape].astype(np.float32)


class Waves:
    """Noisy waves by position: each is made from its number."""

    def __init__(self, seed: int, count: int, length: int, noise: float):
        self.seed = seed
        self.count = count
        self.length = length
        self.noise = noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self.seed, index])
        label = index % len(SHAPES)
        series = wave(SHAPES[label], rng.random(), self.length)
        series += self.noise * rng.normal(size=self.length).astype(np.float32)
        return {"series": series, "label": np.int32(label)}


class WaveData(TaskData):
    """Waves to train on, and others held out."""

    def examples(self, role: str) -> Waves:
        seed, count = (0, 600) if role == TRAIN else (1, 90)
        return Waves(seed, count, self.config.model.length, self.config.data.noise)


class WaveModel(nnx.Module):
    """A token for each number of a series, an encoder, and a head on the mean of the tokens."""

    def __init__(self, spec, rngs: nnx.Rngs):
        self.embedding = Linear(spec, 1, spec.d_model, rngs)
        self.encoder = Encoder(spec, rngs)
        self.head = Linear(spec, spec.d_model, len(SHAPES), rngs)

    def __call__(self, series: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Float [batch, length] to logits [batch, shapes]; `key`, [batch], is given in training."""
        tokens = self.embedding(series[..., None])
        return self.head(self.encoder(tokens, key).mean(axis=1))

    def states(self, series: jax.Array, layers: tuple[int, ...]) -> list[jax.Array]:
        """What some layers give, each [batch, length, d_model]."""
        return self.encoder.states(self.embedding(series[..., None]), layers)


class WavePredictor(Predictor):
    """Names the shape of a series of numbers."""

    def prepare(self, given, truncate: bool = False) -> Prepared:
        series = np.asarray(given, np.float32)
        if series.shape != (self.task.length,):
            raise DataError(f"a series has {series.size} numbers: expected {self.task.length}")
        return Prepared([{"series": series}])

    def scores(self, params, batch) -> jax.Array:
        return self.task.apply(params, batch["series"])[:, None]

    def encode(self, inputs) -> np.ndarray:
        return np.stack([self.prepare(given).examples[0]["series"] for given in inputs])


class WaveTask(Task):
    """Tells the shape of a wave; batches have "series" float32 [batch, length] and "label" int32
    [batch]."""

    options = {
        "model.length": Option(16, "numbers of a series", SIZE),
        "data.noise": Option(0.1, "standard deviation of the noise", AT_LEAST_0),
    }
    Data = WaveData
    Predictor = WavePredictor
    class_names = SHAPES
    best = ("accuracy", "max")

    def example_shapes(self):
        return {"series": ((self.length,), jnp.float32), "label": ((), jnp.int32)}

    def module(self, rngs: nnx.Rngs) -> WaveModel:
        return WaveModel(self.spec(), rngs)

    def sums(self, params, batch, weights, key):
        logits = self.apply(params, batch["series"], key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        hits = logits.argmax(-1) == batch["label"]
        return {"loss": weighted_sum(losses, weights), "accuracy": weighted_sum(hits, weights)}


def wave_config(**model):
    """A gMLP of two layers on waves of 16 numbers."""
    config = gmlp_config.default(task=f"{__name__}:WaveTask")
    config.model.update({"layers": 2, "d_model": 16, "d_ffn": 32, "spatial": "dense"} | model)
    config.batch_size = 32
    config.eval.batch_size = 40
    return config


def by_hand(logits, labels) -> tuple[np.ndarray, np.ndarray]:
    """The cross-entropy of each example, in float64, and whether its class is the likeliest."""
    exact = np.asarray(logits, np.float64)
    normalised = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    losses = -np.take_along_axis(normalised, labels[:, None], -1)[:, 0]
    return losses, exact.argmax(-1) == labels


@pytest.fixture(scope="module")
def waves():
    """The task, its data, and parameters that tell waves apart."""
    config = wave_config()
    task = WaveTask(config)
    return task, WaveData(config), tiny.random_params(task.shapes())


@pytest.mark.smoke
def test_a_task_of_ones_own_is_trained_and_predicts(tmp_path):
    config = wave_config()
    config.steps = 120
    config.optimizer.update(learning_rate=0.01, warmup=10)
    result = loop.train(config, str(tmp_path / "run"))
    assert result["step"] == 120
    assert result["eval"]["examples"] == 90
    assert result["eval"]["accuracy"] > 0.8
    model = gf.load(tmp_path / "run")
    series = [wave(shape, 0.2, 16) for shape in SHAPES]
    answers = model.predict(series, top=2)
    assert [answer[0][0][0] for answer in answers] == list(SHAPES)
    assert all(len(answer[0]) == 2 for answer in answers)
    assert "7 numbers" in raised(DataError, model.predict, [[0.0] * 7])


def test_loss_and_evaluation_are_the_sums(waves):
    """In training each example counts once; in evaluation by its weight."""
    task, data, params = waves
    with data.train_batches(0, 0, 1) as batches:
        batch = next(batches)
    losses, hits = by_hand(task.apply(params, batch["series"]), batch["label"])
    batch["key"] = jax.random.split(jax.random.key(0), 32)
    loss, sums = jax.jit(task.loss)(params, batch)
    assert float(loss) == float(sums["loss"][0]) == pytest.approx(losses.sum(), rel=1e-5)
    assert float(sums["accuracy"][0]) == hits.sum()
    assert float(sums["loss"][1]) == float(sums["accuracy"][1]) == 32
    assert set(sums) == set(task.metrics)

    weights = np.float32([1, 0] * 16)
    evaluated, outputs = task.evaluate(params, {**batch, "weight": weights})
    assert outputs == {}
    assert float(evaluated["loss"][0]) == pytest.approx(losses[::2].sum(), rel=1e-5)
    assert float(evaluated["accuracy"][0]) == hits[::2].sum()
    assert [float(value) for value in evaluated["examples"]] == [16, 16]


def test_training_hands_a_key_to_the_sums_and_evaluation_does_not():
    """So that dropout is on in training alone."""
    task = WaveTask(wave_config(dropout=0.5))
    params = tiny.random_params(task.shapes())
    series = Waves(0, 8, 16, 0.0)
    batch = {
        "series": np.stack([series[index]["series"] for index in range(8)]),
        "label": np.arange(8, dtype=np.int32) % 3,
        "weight": np.ones(8, np.float32),
    }
    losses = []
    for seed in (0, 0, 1):
        keys = jax.random.split(jax.random.key(seed), 8)
        losses.append(float(task.loss(params, {**batch, "key": keys})[0]))
    expected, _ = by_hand(task.apply(params, batch["series"]), batch["label"])
    assert losses[0] == losses[1] != losses[2]
    assert float(task.evaluate(params, batch)[0]["loss"][0]) == pytest.approx(
        expected.sum(), rel=1e-5
    )


def test_metrics_are_means_and_counts(waves):
    task, data, _ = waves
    sums = {"loss": (6.0, 4.0), "accuracy": (3.0, 4.0), "examples": (4.0, 4.0)}
    assert task.summarize(sums, {}, data) == {"loss": 1.5, "accuracy": 0.75, "examples": 4}
    assert task.eval_metrics == ("loss", "accuracy")
    assert task.baselines(sums, data) == []
    assert task.prediction_files({}, data) == {}
    assert Baseline("none", {"loss": 1.0}).metrics == {"loss": 1.0}


def test_answers_rank_the_class_names(waves):
    task, data, params = waves
    series = [data.examples(HELDOUT)[index]["series"] for index in range(5)]
    logits = np.asarray(task.apply(params, np.stack(series)), np.float64)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    predictions = task.predictor.predict(params, series, Settings(top=2, batch_size=2))
    for row, [candidates] in zip(shares, predictions, strict=True):
        best = np.argsort(-row)[:2]
        assert [name for name, _ in candidates] == [SHAPES[index] for index in best]
        np.testing.assert_allclose([share for _, share in candidates], row[best], rtol=1e-4)


def test_features_are_the_states_of_layers_side_by_side(waves):
    task, data, params = waves
    series = np.stack([data.examples(TRAIN)[index]["series"] for index in range(3)])
    first, last = task.bind(params).states(series, (0, -1))
    features = task.features(params, series, (0, -1))
    np.testing.assert_array_equal(features, np.concatenate([first, last], axis=-1))
    mean = task.features(params, series, pool="mean")
    np.testing.assert_allclose(mean, np.asarray(last).mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(task.features(params, series, (0,), "cls"), first[:, 0])


def test_stacks_are_the_layers_of_the_encoder(waves):
    """By which filters and attention are drawn."""
    task, _, params = waves
    [stack] = task.stacks(params)
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(stack)))
    expected = jax.tree.leaves(params["encoder"]["blocks"])
    assert len(leaves) == len(expected)
    assert {len(leaf) for leaf in leaves} == {2}
    np.testing.assert_array_equal(leaves[0], expected[0])


def test_pooled_states_leave_out_padding():
    states = [jnp.arange(8.0).reshape(1, 4, 2), jnp.ones((1, 4, 2))]
    mask = jnp.array([[True, True, False, False]])
    assert joined_states(states, "mean", mask).tolist() == [[1, 2, 1, 1]]
    assert joined_states(states, "mean").tolist() == [[3, 4, 1, 1]]
    assert joined_states(states, None).shape == (1, 4, 4)


class WithoutLoss(WaveTask):
    """A task that defines no loss and no answers."""

    sums = Task.sums
    Predictor = None


def test_a_task_that_defines_too_little_says_what_is_missing():
    task = WithoutLoss(wave_config())
    batch = {"weight": jnp.ones(2)}
    assert "`sums`" in raised(ConfigError, task.evaluate, {}, batch)
    assert "WithoutLoss" in raised(RunError, lambda: task.predictor)
    assert task.files == {}


def test_inheritance_lists_the_files_of_a_model():
    inheritance = Inheritance(shared=("a",), heads={"b": "head/"}, optional=("c",))
    assert inheritance.required == ("a", "b")
    assert inheritance.files == ("a", "b", "c")
    assert Inheritance().files == ()
    assert not Inheritance().model


def test_a_parameter_tree_has_metadata_for_each_leaf(waves):
    task, _, params = waves
    leaves = jax.tree_util.tree_leaves_with_path(params)
    paths = {"/".join(part.key for part in path) for path, _ in leaves}
    assert task.param_metadata().keys() == paths
    assert task.param_metadata()["head/kernel"].layers is None
    assert task.param_metadata()["embedding/bias"].decayed is False


def test_sums_are_float32_whatever_the_values():
    total, weight = weighted_sum(jnp.full(3000, 1.0, jnp.bfloat16), jnp.ones(3000, jnp.bool_))
    assert total.dtype == weight.dtype == jnp.float32
    assert float(total) == float(weight) == 3000


def test_spec_takes_all_fields_from_the_config(tmp_path):
    spec = MaskedLanguageModeling(tiny.text_config(tmp_path)).spec()
    assert (spec.length, spec.layers, spec.d_model, spec.spatial_init_std) == (16, 2, 8, 0.02)


def test_float64_needs_jaxs_own_switch(tmp_path):
    task = MaskedLanguageModeling(tiny.text_config(tmp_path, dtype="float64"))
    assert "JAX_ENABLE_X64" in raised(ValueError, task.spec)
    with jax.enable_x64(True):
        assert task.spec().dtype == "float64"


def test_metrics_are_shown_in_percent_and_counts_in_full(waves):
    task, _, _ = waves
    metrics = {
        "perplexity": 61.68,
        "accuracy": 0.2683,
        "ema_accuracy": 0.3,
        "predictions": 130_945.0,
        "loss": 1e12,
    }
    expected = (
        "perplexity 61.68  accuracy 26.8%  ema_accuracy 30.0%  predictions 130,945  loss 1e+12"
    )
    assert task.format_metrics(metrics) == expected
