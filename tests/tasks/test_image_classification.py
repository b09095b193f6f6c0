import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import evaluation
from gmlp_flax.training.partition import Partition
from tests.training import tiny


@pytest.fixture(scope="module")
def params(image_task):
    """Fresh ones, but for a head that is not zero."""
    params = jax.jit(image_task.init)(jax.random.key(0))
    kernel = params["head"]["kernel"]
    params["head"]["kernel"] = jax.random.normal(jax.random.key(1), kernel.shape)
    return params


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.smoke
def test_loss_with_label_smoothing(image_task, params):
    """0.9 on the label and 0.1 spread over all ten classes."""
    with image_task.train_batches(0, 0, 1) as batches:
        batch = next(batches)
    logits = np.array(image_task.apply(params, jnp.asarray(batch["image"])), np.float64)
    assert logits.shape == (8, 10)
    targets = 0.9 * np.eye(10)[batch["label"]] + 0.01
    total, sums = image_task.loss(params, batch | {"key": jax.random.split(jax.random.key(0), 8)})
    assert (
        float(total)
        == float(sums["loss"][0])
        == pytest.approx(-(targets * log_softmax(logits)).sum(), rel=1e-5)
    )
    assert float(sums["accuracy"][0]) == (logits.argmax(-1) == batch["label"]).sum()
    assert float(sums["loss"][1]) == float(sums["accuracy"][1]) == 8


def test_evaluation_against_numpy(image_task, params):
    """382 images in batches of 100: the last one holds 82. The loss has no label smoothing."""
    image_task.config.eval.batch_size = 100
    metrics, _ = evaluation.Evaluator(image_task, Partition.make())(params, params)
    with image_task.evaluation_batches(0, 1) as batches:
        batches = list(batches)
    images, labels, weight = (
        np.concatenate([b[name] for b in batches]) for name in ("image", "label", "weight")
    )
    images, labels = images[weight == 1], labels[weight == 1]
    logits = np.array(jax.jit(image_task.apply)(params, images), np.float64)
    ranks = (logits > logits[np.arange(382), labels][:, None]).sum(1)
    expected = {
        "top1": (ranks < 1).mean(),
        "top5": (ranks < 5).mean(),
        "loss": -log_softmax(logits)[np.arange(382), labels].mean(),
        "examples": 382,
    }
    for name, value in expected.items():
        assert metrics[name] == metrics[f"ema_{name}"] == pytest.approx(value, rel=1e-5)
    assert 0 < expected["top1"] < expected["top5"] < 1


def test_views_are_what_the_config_says(tmp_path):
    config = tiny.image_config()
    config.data.update(flip=False, min_scale=1.0, eval_crop=1.0)
    task = ImageClassification(config, str(tmp_path))
    with task.evaluation_batches(0, 1) as batches:
        batch = next(batches)
    from gmlp_flax.data.embedded import embedded_digits

    source = embedded_digits("heldout")
    np.testing.assert_array_equal(batch["image"], np.stack([source[i]["image"] for i in range(8)]))
    with task.train_batches(0, 0, 1) as batches:
        trained = {image.tobytes() for image in next(batches)["image"]}
    assert trained <= {image.tobytes() for image in embedded_digits("train").images}


def test_a_class_token_of_a_causal_model_is_refused():
    """It stands first, and would see no patch."""
    options = config.default("image_classification", "transformer")
    options.model.update(causal=True, pool="cls")
    with pytest.raises(
        ConfigError, match="config.model.pool is 'cls', and the model is causal: it sees no patch"
    ):
        config.validate(options)
