"""What all tasks share, and a complete user-defined task: its data, model, loss and answers."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gmlp_flax as gf
from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import Linear
from gmlp_flax.options import AT_LEAST_0, SIZE, Option
from gmlp_flax.tasks.base import Baseline, Inheritance, Task, joined_states, weighted_sum
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.tasks.inference.prediction import Predictor, Prepared, Settings
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loop
from tests.failures import raised
from tests.tasks import by_hand
from tests.training import tiny

SHAPES = ("sine", "square", "sawtooth")


def wave(shape: str, phase: float, length: int) -> np.ndarray:
    """Two periods of a wave: float32 [length]."""
    shares = 2 * np.arange(length) / length
    turns = shares + phase
    angles = 2 * np.pi * turns
    sine = np.sin(angles)
    values = {
        "sine": sine,
        "square": np.sign(sine),
        "sawtooth": 2 * (turns % 1) - 1,
    }
    return values[shape].astype(np.float32)


class Waves:
    """Noisy waves by position: each is made from its index."""

    def __init__(self, seed: int, count: int, length: int, noise: float):
        self.seed = seed
        self.count = count
        self.length = length
        self.noise = noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        seeds = [self.seed, index]
        rng = np.random.default_rng(seeds)
        label = index % len(SHAPES)
        phase = rng.random()
        clean = wave(SHAPES[label], phase, self.length)
        numbers = rng.normal(size=self.length)
        noise = numbers.astype(np.float32)
        series = clean + self.noise * noise
        return {"series": series, "label": np.int32(label)}


class WaveData(TaskData):
    """Training waves, and other waves held out."""

    def examples(self, role: str) -> Waves:
        length = self.config.model.length
        noise = self.config.data.noise
        if role == TRAIN:
            return Waves(0, 600, length, noise)
        return Waves(1, 90, length, noise)


class WaveModel(nnx.Module):
    """A token for each number of a series, an encoder, and a head on the mean of the tokens."""

    def __init__(self, spec, rngs: nnx.Rngs):
        self.embedding = Linear(spec, 1, spec.d_model, rngs)
        self.encoder = Encoder(spec, rngs)
        classes = len(SHAPES)
        self.head = Linear(spec, spec.d_model, classes, rngs)

    def __call__(self, series: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Float [batch, length] to logits [batch, shapes]. Training passes `key`, [batch]."""
        tokens = self.embedding(series[..., None])
        hidden = self.encoder(tokens, key)
        return self.head(hidden.mean(axis=1))

    def states(self, series: jax.Array, layers: tuple[int, ...]) -> list[jax.Array]:
        """The outputs of some layers, each [batch, length, d_model]."""
        tokens = self.embedding(series[..., None])
        return self.encoder.states(tokens, layers)


class WavePredictor(Predictor):
    """Names the shape of a series of numbers."""

    def prepare(self, given, truncate: bool = False) -> Prepared:
        series = np.asarray(given, np.float32)
        if series.shape != (self.task.length,):
            raise DataError(f"a series has {series.size} numbers: expected {self.task.length}")
        return Prepared([{"series": series}])

    def scores(self, params, batch) -> jax.Array:
        logits = self.task.apply(params, batch["series"])
        return logits[:, None]

    def encode(self, inputs) -> np.ndarray:
        rows = []
        for series in inputs:
            [example] = self.prepare(series).examples
            rows.append(example["series"])
        return np.stack(rows)


class WaveTask(Task):
    """Classifies waves. Batches have "series" float32 [batch, length] and "label" int32
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
        return {
            "series": ((self.length,), jnp.float32),
            "label": ((), jnp.int32),
        }

    def module(self, rngs: nnx.Rngs) -> WaveModel:
        return WaveModel(self.spec(), rngs)

    def sums(self, params, batch, weights, key):
        logits = self.apply(params, batch["series"], key)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        hits = logits.argmax(-1) == batch["label"]
        return {
            "loss": weighted_sum(losses, weights),
            "accuracy": weighted_sum(hits, weights),
        }


def wave_config(**model):
    """A gMLP of two layers on waves of 16 numbers."""
    config = gmlp_config.default(task=f"{__name__}:WaveTask")
    config.model.update(layers=2, d_model=16, d_ffn=32, spatial="dense")
    config.model.update(model)
    config.batch_size = 32
    config.eval.batch_size = 40
    return config


@pytest.fixture(scope="module")
def waves():
    """The task, its data, and parameters whose outputs differ between waves."""
    config = wave_config()
    task = WaveTask(config)
    params = tiny.random_params(task.shapes())
    return task, WaveData(config), params


@pytest.mark.slow
@pytest.mark.smoke
def test_user_defined_task_trains_and_predicts(tmp_path):
    config = wave_config()
    config.steps = 120
    config.optimizer.update(learning_rate=0.01, warmup=10)
    run = str(tmp_path / "run")
    result = loop.train(config, run)
    assert result["step"] == 120
    metrics = result["eval"]
    assert metrics["examples"] == 90
    assert metrics["accuracy"] > 0.8
    model = gf.load(tmp_path / "run")
    series = [wave(shape, 0.2, 16) for shape in SHAPES]
    answers = model.predict(series, top=2)
    for shape, [candidates] in zip(SHAPES, answers, strict=True):
        assert len(candidates) == 2
        assert by_hand.names_of(candidates)[0] == shape
    too_short = [0.0] * 7
    message = raised(DataError, model.predict, [too_short])
    assert "7 numbers" in message


def losses_and_hits(task, params, batch) -> tuple[np.ndarray, np.ndarray]:
    """The cross-entropy of each example of a batch, and whether its class is the most likely."""
    logits = task.apply(params, batch["series"])
    labels = batch["label"]
    losses = by_hand.cross_entropies(logits, labels)
    hits = by_hand.are_hits(logits, labels)
    return losses, hits


def test_training_counts_each_example_once(waves):
    task, data, params = waves
    batch = by_hand.first_batch(data)
    losses, hits = losses_and_hits(task, params, batch)
    batch["key"] = by_hand.keys(32)
    loss, sums = jax.jit(task.loss)(params, batch)
    expected = pytest.approx(losses.sum(), rel=1e-5)
    assert float(loss) == expected
    assert by_hand.total(sums, "loss") == expected
    assert by_hand.total(sums, "accuracy") == hits.sum()
    assert by_hand.weight(sums, "loss") == 32
    assert by_hand.weight(sums, "accuracy") == 32
    assert set(sums) == set(task.metrics)


def test_evaluation_counts_each_example_by_its_weight(waves):
    task, data, params = waves
    batch = by_hand.first_batch(data)
    losses, hits = losses_and_hits(task, params, batch)
    batch["key"] = by_hand.keys(32)
    weights = [1, 0] * 16
    batch["weight"] = np.float32(weights)
    sums, outputs = task.evaluate(params, batch)
    assert outputs == {}
    expected_loss = losses[::2].sum()
    expected_hits = hits[::2].sum()
    total = by_hand.total(sums, "loss")
    assert total == pytest.approx(expected_loss, rel=1e-5)
    assert by_hand.total(sums, "accuracy") == expected_hits
    assert by_hand.total(sums, "examples") == 16
    assert by_hand.weight(sums, "examples") == 16


@pytest.mark.slow
def test_only_training_passes_a_key_to_the_sums():
    """Dropout is active only in training."""
    task = WaveTask(wave_config(dropout=0.5))
    params = tiny.random_params(task.shapes())
    source = Waves(0, 8, 16, 0.0)
    batch = by_hand.stacked(by_hand.all_examples(source))
    batch["weight"] = np.ones(8, np.float32)
    losses = []
    for seed in (0, 0, 1):
        keys = by_hand.keys(8, seed)
        keyed_batch = {**batch, "key": keys}
        loss, _ = task.loss(params, keyed_batch)
        losses.append(float(loss))
    first, with_same_seed, with_other_seed = losses
    assert first == with_same_seed
    assert first != with_other_seed
    expected, _ = losses_and_hits(task, params, batch)
    sums, _ = task.evaluate(params, batch)
    total = by_hand.total(sums, "loss")
    assert total == pytest.approx(expected.sum(), rel=1e-5)


def test_metrics_are_means_and_counts(waves):
    task, data, _ = waves
    sums = {"loss": (6.0, 4.0), "accuracy": (3.0, 4.0), "examples": (4.0, 4.0)}
    metrics = task.summarize(sums, {}, data)
    assert metrics == {"loss": 1.5, "accuracy": 0.75, "examples": 4}
    assert task.eval_metrics == ("loss", "accuracy")


def test_task_has_no_baselines_and_prediction_files_by_default(waves):
    task, data, _ = waves
    sums = {"loss": (6.0, 4.0), "accuracy": (3.0, 4.0), "examples": (4.0, 4.0)}
    assert task.baselines(sums, data) == []
    assert task.prediction_files({}, data) == {}
    assert Baseline("none", {"loss": 1.0}).metrics == {"loss": 1.0}


def first_series(data, role: str, count: int) -> np.ndarray:
    """Float [count, length]."""
    examples = data.examples(role)
    series = []
    for index in range(count):
        series.append(examples[index]["series"])
    return np.stack(series)


def test_answers_rank_the_class_names(waves):
    task, data, params = waves
    series = first_series(data, HELDOUT, 5)
    scores = task.apply(params, series)
    shares = by_hand.softmax(scores)
    settings = Settings(top=2, batch_size=2)
    listed = list(series)
    predictions = task.predictor.predict(params, listed, settings)
    for row, [candidates] in zip(shares, predictions, strict=True):
        best = by_hand.largest(row, 2)
        expected = [SHAPES[index] for index in best]
        assert by_hand.names_of(candidates) == expected
        found_shares = by_hand.shares_of(candidates)
        assert_allclose(found_shares, row[best], rtol=1e-4)


def test_features_are_concatenated_states_of_layers(waves):
    task, data, params = waves
    series = first_series(data, TRAIN, 3)
    bound = task.bind(params)
    first, last = bound.states(series, (0, -1))
    features = task.features(params, series, (0, -1))
    expected = np.concatenate([first, last], axis=-1)
    assert_array_equal(features, expected)


def test_features_are_pooled(waves):
    task, data, params = waves
    series = first_series(data, TRAIN, 3)
    bound = task.bind(params)
    first, last = bound.states(series, (0, -1))
    mean = task.features(params, series, pool="mean")
    expected = np.asarray(last).mean(axis=1)
    assert_allclose(mean, expected, rtol=1e-5, atol=1e-6)
    of_first_token = task.features(params, series, (0,), "cls")
    assert_array_equal(of_first_token, first[:, 0])


def test_stacks_are_the_encoder_layers(waves):
    """From which filters and attention are drawn."""
    task, _, params = waves
    [stack] = task.stacks(params)
    state = nnx.to_pure_dict(nnx.state(stack))
    leaves = jax.tree.leaves(state)
    blocks = params["encoder"]["blocks"]
    expected = jax.tree.leaves(blocks)
    assert len(leaves) == len(expected)
    assert {len(leaf) for leaf in leaves} == {2}
    assert_array_equal(leaves[0], expected[0])


def test_pooled_states_leave_out_padding():
    rising = jnp.arange(8.0).reshape(1, 4, 2)
    constant = jnp.ones((1, 4, 2))
    states = [rising, constant]
    mask = jnp.array([[True, True, False, False]])
    pooled = joined_states(states, "mean", mask)
    assert pooled.tolist() == [[1, 2, 1, 1]]
    pooled_with_padding = joined_states(states, "mean")
    assert pooled_with_padding.tolist() == [[3, 4, 1, 1]]
    assert joined_states(states, None).shape == (1, 4, 4)


class WithoutLoss(WaveTask):
    """A task that defines no loss and no answers."""

    sums = Task.sums
    Predictor = None


def test_incomplete_task_names_what_is_missing():
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


def test_each_parameter_has_metadata(waves):
    task, _, params = waves
    paths = set()
    for keys, _ in jax.tree_util.tree_leaves_with_path(params):
        paths.add(jax.tree_util.keystr(keys, simple=True, separator="/"))
    metadata = task.param_metadata()
    assert metadata.keys() == paths
    assert metadata["head/kernel"].layers is None
    assert metadata["embedding/bias"].decayed is False


def test_sums_are_float32():
    values = jnp.full(3000, 1.0, jnp.bfloat16)
    total, weight = weighted_sum(values, jnp.ones(3000, jnp.bool_))
    assert total.dtype == jnp.float32
    assert weight.dtype == jnp.float32
    assert float(total) == 3000
    assert float(weight) == 3000


def test_spec_takes_all_fields_from_the_config(tmp_path):
    spec = MaskedLanguageModeling(tiny.text_config(tmp_path)).spec()
    assert spec.length == 16
    assert spec.layers == 2
    assert spec.d_model == 8
    assert spec.spatial_init_std == 0.02


def test_float64_needs_jax_enable_x64(tmp_path):
    task = MaskedLanguageModeling(tiny.text_config(tmp_path, dtype="float64"))
    assert "JAX_ENABLE_X64" in raised(ValueError, task.spec)
    with jax.enable_x64(True):
        assert task.spec().dtype == "float64"


def test_accuracies_are_shown_in_percent_and_counts_in_full(waves):
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
