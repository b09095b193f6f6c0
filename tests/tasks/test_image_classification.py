"""The loss and the metrics of an image classifier against NumPy, its classes, and the arrays that
it reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.inference.prediction import Answer, Settings
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import failure, raised
from tests.tasks import by_hand
from tests.training import tiny


@pytest.fixture(scope="module")
def params(digits):
    """Initial parameters, except for a head that is not zero."""
    task, _ = digits
    key = jax.random.key(0)
    params = jax.jit(task.init)(key)
    head = params["head"]
    shape = head["kernel"].shape
    kernel_key = jax.random.key(1)
    head["kernel"] = jax.random.normal(kernel_key, shape)
    return params


@pytest.mark.slow
@pytest.mark.smoke
def test_loss_with_label_smoothing(digits, params):
    """0.9 on the label and 0.1 spread over all ten classes."""
    task, data = digits
    batch = by_hand.first_batch(data)
    images = jnp.asarray(batch["image"])
    logits = task.apply(params, images)
    assert logits.shape == (8, 10)
    one_hot = np.eye(10)[batch["label"]]
    targets = 0.9 * one_hot + 0.01
    batch["key"] = by_hand.keys(8)
    total, sums = task.loss(params, batch)
    losses = -targets * by_hand.log_softmax(logits)
    hits = by_hand.are_hits(logits, batch["label"])
    expected = pytest.approx(losses.sum(), rel=1e-5)
    assert float(total) == expected
    assert by_hand.total(sums, "loss") == expected
    assert by_hand.total(sums, "accuracy") == hits.sum()
    assert by_hand.weight(sums, "loss") == 8
    assert by_hand.weight(sums, "accuracy") == 8


def heldout_arrays(data) -> tuple[np.ndarray, np.ndarray]:
    """All held-out images and their labels."""
    images = []
    labels = []
    with data.evaluation_batches(0, 1) as batches:
        for batch in batches:
            is_real = batch["weight"] == 1
            images.append(batch["image"][is_real])
            labels.append(batch["label"][is_real])
    all_images = np.concatenate(images)
    return all_images, np.concatenate(labels)


def test_evaluation_against_numpy(digits, params):
    """382 images in batches of 100, of which the last holds 82. The loss has no label smoothing."""
    task, data = digits
    data.config.eval.batch_size = 100
    evaluator = Evaluator(task, data, Partition.make())
    metrics, _ = evaluator(params, params)
    images, labels = heldout_arrays(data)
    assert len(images) == 382
    apply = jax.jit(task.apply)
    logits = np.array(apply(params, images))
    label_column = labels[:, None]
    label_logits = np.take_along_axis(logits, label_column, 1)
    ranks = (logits > label_logits).sum(1)
    expected = {
        "top1": (ranks < 1).mean(),
        "top5": (ranks < 5).mean(),
        "loss": by_hand.cross_entropies(logits, labels).mean(),
        "examples": 382,
    }
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5)
        ema = metrics[f"ema_{name}"]
        assert ema == metrics[name]
    assert 0 < expected["top1"] < expected["top5"] < 1


def test_baseline_is_the_most_frequent_class(digits, params):
    task, data = digits
    data.config.eval.batch_size = 100
    evaluator = Evaluator(task, data, Partition.make())
    evaluator(params, params)
    [baseline] = evaluator.baselines()
    _, labels = heldout_arrays(data)
    counts = np.bincount(labels)
    share = counts.max() / 382
    assert baseline.metrics == {"top1": pytest.approx(share)}


def classes_of_head(task) -> int:
    head = task.shapes()["head"]
    _, classes = head["kernel"].shape
    return classes


def test_classes_without_files_are_imagenet_numbers():
    task = ImageClassification(tiny.image_config())
    assert task.class_names == tuple(str(number) for number in range(1000))
    assert classes_of_head(task) == 1000
    assert task.names == task.classes


def test_classes_and_words_of_the_files():
    files = {"classes.json": b'["n1", "n0"]', "names.json": b'["cat", "dog"]'}
    task = ImageClassification(tiny.image_config(), files)
    assert task.class_names == ("n1", "n0")
    assert task.predictor.names == ("cat", "dog")
    assert classes_of_head(task) == 2


def test_run_on_other_classes_starts_with_a_new_head():
    """The architecture comes from the config."""
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
def test_damaged_class_names_are_refused_with_their_file(name, content):
    def names():
        return ImageClassification(tiny.image_config(), {name: content}).names

    assert name in failure(names)


def test_words_for_other_classes_are_refused():
    files = {"classes.json": b'["n1", "n0"]', "names.json": b'["cat"]'}
    task = ImageClassification(tiny.image_config(), files)
    message = failure(lambda: task.names)
    assert "names.json has 1 names for 2 classes" in message


def test_real_labels_without_any_label_are_refused():
    config = tiny.image_config()
    config.eval.real_labels = "real.json"
    task = ImageClassification(config)
    assert task.eval_metrics == ("top1", "top5", "loss", "real")
    sums = dict.fromkeys(("loss", "top1", "top5"), (3.0, 4.0))
    nothing = {**sums, "examples": (4, 4), "real": (0.0, 0.0)}
    assert "real.json" in failure(task.summarize, nothing, {}, None)


def sums_with_unread(unread: int) -> dict[str, tuple[float, float]]:
    """The sums of an evaluation of 26 images."""
    score = (3.0, 4.0)
    return {
        "loss": score,
        "top1": score,
        "top5": score,
        "examples": (26 - unread, 26),
    }


@pytest.fixture
def lenient():
    """A task that allows one image that cannot be read."""
    config = tiny.image_config()
    config.data.max_bad_records = 1
    return ImageClassification(config)


def test_unreadable_images_are_counted(lenient):
    metrics = lenient.summarize(sums_with_unread(1), {}, None)
    assert metrics == {
        "loss": 0.75,
        "top1": 0.75,
        "top5": 0.75,
        "examples": 26,
        "unread": 1,
    }
    metrics = lenient.summarize(sums_with_unread(0), {}, None)
    assert set(metrics) == {*lenient.eval_metrics, "examples"}


def test_too_many_unreadable_images_are_refused(lenient):
    """The limit holds for all hosts together."""
    message = failure(lenient.summarize, sums_with_unread(2), {}, None)
    assert "2 of 26" in message
    assert "config.data.max_bad_records=1" in message


@pytest.mark.slow
def test_unreadable_images_and_images_without_a_real_label_are_not_scored():
    task = ImageClassification(tiny.image_config(), {"classes.json": b'["a", "b", "c"]'})
    params = tiny.random_params(task.shapes())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 8, 8, 1), np.uint8)
    scores = task.apply(params, images)
    logits = np.asarray(scores)
    best = logits.argmax(-1)
    wrong = (best + 1) % 3
    unreadable = 2
    labels = best.copy()
    labels[unreadable] = -1
    labels[3] = wrong[3]
    real = np.full((5, 2), -1)
    real[:3, 1] = [best[0], wrong[1], best[2]]
    weights = np.float32([1, 1, 1, 1, 0])
    batch = {"image": images, "label": labels, "weight": weights, "real": real}
    sums, outputs = task.evaluate(params, batch)
    assert outputs == {}
    expected_sums = {"top1": (2, 3), "real": (1, 2), "examples": (3, 4)}
    for name, (total, weight) in expected_sums.items():
        assert by_hand.total(sums, name) == total
        assert by_hand.weight(sums, name) == weight
    class_counts, count = sums["classes"]
    assert float(count) == 3
    scored = labels[[0, 1, 3]]
    expected_counts = np.bincount(scored, minlength=3)
    assert_array_equal(class_counts, expected_counts)


def test_arrays_of_uint8_and_of_floats_are_inputs():
    task = ImageClassification(tiny.image_config())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2, 8, 8, 1))
    assert task.as_inputs(images) is images
    scaled = task.as_inputs(images / 255)
    assert scaled.dtype == np.float32
    assert_allclose(scaled, images, rtol=1e-6)


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
def test_other_arrays_are_refused(array):
    task = ImageClassification(tiny.image_config())
    assert "'batch', 8, 8, 1" in failure(task.as_inputs, array)


def test_images_are_prepared_as_in_evaluation(digits):
    """Arrays and Pillow images."""
    task, data = digits
    example = data.dataset(HELDOUT).examples[0]
    pixels = example["image"]
    expected = data.labelled(HELDOUT)[0]["image"]
    predictor = task.predictor
    assert_array_equal(predictor.transform(pixels), expected)
    image = Image.fromarray(pixels[..., 0])
    encoded = predictor.encode([image, pixels])
    assert_array_equal(encoded, [expected, expected])


def test_answers_rank_the_classes(digits, params):
    task, data = digits
    example = data.dataset(HELDOUT).examples[0]
    settings = Settings(top=3)
    [predictions] = task.predictor.predict(params, [example["image"]], settings)
    [candidates] = predictions
    labelled = data.labelled(HELDOUT)[0]
    view = labelled["image"]
    logits = task.apply(params, view[None])
    [shares] = by_hand.softmax(logits)
    best = by_hand.largest(shares, 3)
    expected = [task.classes[index] for index in best]
    assert by_hand.names_of(candidates) == expected
    best_shares = shares[best]
    assert by_hand.shares_of(candidates) == pytest.approx(best_shares, rel=1e-4)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((8, 8), 1),
        ((8, 8, 1), 1),
        ((4, 8, 8, 1), 4),
    ],
)
def test_array_of_two_or_three_axes_is_one_image(digits, shape, count):
    task, _ = digits
    images = np.zeros(shape, np.uint8)
    listed = task.predictor.listed(images)
    assert len(listed) == count


def test_path_is_one_image(digits):
    assert digits[0].predictor.listed("a.png") == ["a.png"]


@pytest.fixture
def image_folder(tmp_path):
    """Two images and a text file."""
    image = Image.fromarray(np.zeros((8, 8), np.uint8))
    image.save(tmp_path / "b.png")
    image.save(tmp_path / "a.jpg")
    (tmp_path / "notes.txt").write_text("no image")
    return tmp_path


def test_paths_of_images(digits, image_folder):
    predictor = digits[0].predictor
    first = str(image_folder / "a.jpg")
    second = str(image_folder / "b.png")
    paths = sorted(predictor.paths_in(image_folder))
    assert paths == [first, second]
    pattern = str(image_folder / "*.png")
    assert predictor.paths_in(pattern) == [second]
    assert predictor.paths_in(first) is None
    black = np.zeros((8, 8))
    assert predictor.paths_in(black) is None


def test_line_of_a_file_is_a_path(digits):
    inputs = digits[0].predictor.inputs_of_file("a.jpg", lambda path, stream: iter(()))
    assert list(inputs) == ["a.jpg"]


def test_missing_image_is_named(digits, tmp_path):
    with pytest.raises(DataError, match="none"):
        digits[0].predictor.transform(str(tmp_path / "none.png"))


def test_answer_is_one_line(digits):
    answer = Answer("a.png", [[("7", 0.75), ("1", 0.25)]])
    assert digits[0].predictor.format(answer) == "a.png: 7 75.0%  1 25.0%"


def test_causal_model_with_a_class_token_is_refused():
    """The class token comes first and would read no patch."""
    config = gmlp_config.default("image_classification", "transformer")
    config.model.update(causal=True, pool="cls")
    message = raised(ConfigError, gmlp_config.validate, config)
    assert "config.model.pool is 'cls', and the model is causal" in message


@pytest.mark.parametrize("change", [{"channels": 3}, {"patch_size": (2, 2)}])
def test_grey_value_embedding_needs_single_grey_pixels(change):
    config = tiny.image_config()
    changes = {"stem": "table", "channels": 1, "patch_size": (1, 1)}
    config.model.update(changes)
    gmlp_config.validate(config)
    config.model.update(change)
    assert "config.model.stem is 'table'" in raised(ConfigError, gmlp_config.validate, config)
