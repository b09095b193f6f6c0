"""The loss and the metrics of a classifier of images against NumPy, its classes, and the arrays that
it reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.prediction import Answer, Settings
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import failure, raised
from tests.training import tiny


@pytest.fixture(scope="module")
def params(digits):
    """Fresh ones, but for a head that is not zero."""
    task, _ = digits
    params = jax.jit(task.init)(jax.random.key(0))
    kernel = params["head"]["kernel"]
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), kernel.shape)
    return params


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.smoke
def test_loss_with_label_smoothing(digits, params):
    """0.9 on the label and 0.1 spread over all ten classes."""
    task, data = digits
    with data.train_batches(0, 0, 1) as batches:
        batch = next(batches)
    logits = np.array(task.apply(params, jnp.asarray(batch["image"])), np.float64)
    assert logits.shape == (8, 10)
    targets = 0.9 * np.eye(10)[batch["label"]] + 0.01
    batch["key"] = jax.random.split(jax.random.key(0), 8)
    total, sums = task.loss(params, batch)
    expected = -(targets * log_softmax(logits)).sum()
    assert float(total) == float(sums["loss"][0]) == pytest.approx(expected, rel=1e-5)
    assert float(sums["accuracy"][0]) == (logits.argmax(-1) == batch["label"]).sum()
    assert float(sums["loss"][1]) == float(sums["accuracy"][1]) == 8


def heldout_arrays(data) -> tuple[np.ndarray, np.ndarray]:
    """All held-out images and their labels."""
    images = []
    labels = []
    with data.evaluation_batches(0, 1) as batches:
        for batch in batches:
            is_real = batch["weight"] == 1
            images.append(batch["image"][is_real])
            labels.append(batch["label"][is_real])
    return np.concatenate(images), np.concatenate(labels)


def test_evaluation_against_numpy(digits, params):
    """382 images in batches of 100: the last one holds 82. The loss has no label smoothing."""
    task, data = digits
    data.config.eval.batch_size = 100
    evaluator = Evaluator(task, data, Partition.make())
    metrics, _ = evaluator(params, params)
    images, labels = heldout_arrays(data)
    assert len(images) == 382
    logits = np.array(jax.jit(task.apply)(params, images), np.float64)
    rows = np.arange(382)
    ranks = (logits > logits[rows, labels][:, None]).sum(1)
    expected = {
        "top1": (ranks < 1).mean(),
        "top5": (ranks < 5).mean(),
        "loss": -log_softmax(logits)[rows, labels].mean(),
        "examples": 382,
    }
    for name, value in expected.items():
        assert metrics[name] == metrics[f"ema_{name}"] == pytest.approx(value, rel=1e-5)
    assert 0 < expected["top1"] < expected["top5"] < 1
    [baseline] = evaluator.baselines()
    most = np.bincount(labels).max() / 382
    assert baseline.metrics == {"top1": pytest.approx(most)}


def test_without_files_the_classes_are_imagenets_numbers():
    task = ImageClassification(tiny.image_config())
    assert task.class_names == tuple(str(number) for number in range(1000))
    assert task.shapes()["head"]["kernel"].shape == (8, 1000)
    assert task.names == task.classes


def test_classes_and_words_of_the_files():
    files = {"classes.json": b'["n1", "n0"]', "names.json": b'["cat", "dog"]'}
    task = ImageClassification(tiny.image_config(), files)
    assert task.class_names == ("n1", "n0")
    assert task.predictor.names == ("cat", "dog")
    assert task.shapes()["head"]["kernel"].shape == (8, 2)


def test_a_run_on_other_classes_starts_with_a_new_head():
    """The architecture is the config's own."""
    inheritance = ImageClassification.inheritance
    assert not inheritance.model
    assert inheritance.heads == {"classes.json": "head/"}
    assert inheritance.files == ("classes.json", "names.json")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("classes.json", b'{"a": 1}'),
        ("classes.json", "[]".encode("utf-16")),
        ("classes.json", b"[1, 2]"),
        ("names.json", b"[null]"),
        ("names.json", b"["),
    ],
)
def test_damaged_names_are_refused_by_file(name, content):
    def names():
        return ImageClassification(tiny.image_config(), {name: content}).names

    assert name in failure(names)


def test_words_for_other_classes_are_refused():
    files = {"classes.json": b'["n1", "n0"]', "names.json": b'["cat"]'}
    task = ImageClassification(tiny.image_config(), files)
    message = failure(lambda: task.names)
    assert "names.json has 1 names for 2 classes" in message


def test_images_that_cannot_be_read_count_up_to_the_limit():
    """The limit is of all hosts together."""
    config = tiny.image_config()
    config.data.max_bad_records = 1
    task = ImageClassification(config)
    sums = dict.fromkeys(("loss", "top1", "top5"), (3.0, 4.0))
    metrics = task.summarize({**sums, "examples": (25, 26)}, {}, None)
    assert metrics == {"loss": 0.75, "top1": 0.75, "top5": 0.75, "examples": 26, "unread": 1}
    metrics = task.summarize({**sums, "examples": (26, 26)}, {}, None)
    assert {*task.eval_metrics, "examples"} == set(metrics)
    message = failure(task.summarize, {**sums, "examples": (24, 26)}, {}, None)
    assert "2 of 26" in message
    assert "config.data.max_bad_records=1" in message


def test_no_real_label_at_all_is_refused():
    config = tiny.image_config()
    config.eval.real_labels = "real.json"
    task = ImageClassification(config)
    assert task.eval_metrics == ("top1", "top5", "loss", "real")
    sums = dict.fromkeys(("loss", "top1", "top5"), (3.0, 4.0))
    nothing = {**sums, "examples": (4, 4), "real": (0.0, 0.0)}
    assert "real.json" in failure(task.summarize, nothing, {}, None)


def test_unread_images_and_images_without_a_real_label_are_not_scored():
    task = ImageClassification(tiny.image_config(), {"classes.json": b'["a", "b", "c"]'})
    params = tiny.random_params(task.shapes())
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), np.uint8)
    best = np.asarray(task.apply(params, images)).argmax(-1)
    real = np.full((5, 2), -1)
    real[:3, 1] = [best[0], (best[1] + 1) % 3, best[2]]
    labels = np.array([best[0], best[1], -1, (best[3] + 1) % 3, best[4]])
    weights = np.float32([1, 1, 1, 1, 0])
    batch = {"image": images, "label": labels, "weight": weights, "real": real}
    sums, outputs = task.evaluate(params, batch)
    pairs = {name: (float(sums[name][0]), float(sums[name][1])) for name in ("top1", "real")}
    assert pairs == {"top1": (2, 3), "real": (1, 2)}
    assert [float(value) for value in sums["examples"]] == [3, 4]
    assert float(sums["classes"][1]) == 3
    assert (
        np.asarray(sums["classes"][0]).tolist()
        == np.bincount(labels[[0, 1, 3]], minlength=3).tolist()
    )
    assert outputs == {}


def test_arrays_of_bytes_and_of_floats_are_inputs():
    task = ImageClassification(tiny.image_config())
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 1))
    assert task.as_inputs(images) is images
    scaled = task.as_inputs(images / 255)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, images, rtol=1e-6)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((8, 8, 1), np.uint8),
        np.zeros((2, 8, 8, 3), np.uint8),
        np.full((2, 8, 8, 1), 256),
        np.full((2, 8, 8, 1), -1),
        np.full((2, 8, 8, 1), 1.5),
        np.full((2, 8, 8, 1), np.nan),
        np.zeros((2, 8, 8, 1), complex),
        np.full((2, 8, 8, 1), "a"),
    ],
)
def test_other_arrays_are_no_inputs(array):
    task = ImageClassification(tiny.image_config())
    assert "'batch', 8, 8, 1" in failure(task.as_inputs, array)


def test_images_are_answered_as_evaluation_sees_them(digits, params):
    """Arrays and Pillow images alike."""
    task, data = digits
    pixels = data.dataset(HELDOUT).examples[0]["image"]
    seen = data.labelled(HELDOUT)[0]["image"]
    predictor = task.predictor
    np.testing.assert_array_equal(predictor.transform(pixels), seen)
    image = Image.fromarray(pixels[..., 0])
    np.testing.assert_array_equal(predictor.encode([image, pixels]), [seen, seen])
    [[ranked]] = predictor.predict(params, [pixels], Settings(top=3))
    logits = np.asarray(task.apply(params, seen[None]), np.float64)[0]
    best = np.argsort(-logits)[:3]
    assert [name for name, _ in ranked] == [task.classes[index] for index in best]
    shares = np.exp(log_softmax(logits))
    assert [share for _, share in ranked] == pytest.approx(shares[best], rel=1e-4)


def test_an_array_of_two_or_three_axes_is_one_image(digits):
    predictor = digits[0].predictor
    for shape, count in (((8, 8), 1), ((8, 8, 1), 1), ((4, 8, 8, 1), 4)):
        assert len(predictor.listed(np.zeros(shape, np.uint8))) == count
    assert predictor.listed("a.png") == ["a.png"]


def test_paths_of_images(digits, tmp_path):
    predictor = digits[0].predictor
    for name in ("b.png", "a.jpg"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    both = [str(tmp_path / name) for name in ("a.jpg", "b.png")]
    assert sorted(predictor.paths_in(tmp_path)) == both
    assert predictor.paths_in(str(tmp_path / "*.png")) == both[1:]
    assert predictor.paths_in(both[0]) is None
    assert predictor.paths_in(np.zeros((8, 8))) is None
    assert list(predictor.inputs_of_file("a.jpg", lambda path, stream: iter(()))) == ["a.jpg"]
    with pytest.raises(DataError, match="none"):
        predictor.transform(str(tmp_path / "none.png"))


def test_an_answer_is_one_line(digits):
    answer = Answer("a.png", [[("7", 0.75), ("1", 0.25)]])
    assert digits[0].predictor.format(answer) == "a.png: 7 75.0%  1 25.0%"


def test_a_class_token_of_a_causal_model_is_refused():
    """It stands first, and would see no patch."""
    config = gmlp_config.default("image_classification", "transformer")
    config.model.update(causal=True, pool="cls")
    told = raised(ConfigError, gmlp_config.validate, config)
    assert "config.model.pool is 'cls', and the model is causal" in told


@pytest.mark.parametrize("change", [{"channels": 3}, {"patch_size": (2, 2)}])
def test_a_table_of_grey_values_needs_single_grey_pixels(change):
    config = tiny.image_config()
    config.model.update({"stem": "table", "channels": 1, "patch_size": (1, 1)})
    gmlp_config.validate(config)
    config.model.update(change)
    assert "config.model.stem is 'table'" in raised(ConfigError, gmlp_config.validate, config)
