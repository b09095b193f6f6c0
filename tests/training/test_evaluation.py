"""An evaluation counts every example once, or fails."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.tasks.base import weighted_sum
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.training import evaluation, pretrained
from tests.training import tiny


def data_of(trained):
    """The data of a trained model's run, whose config may be changed."""
    run_files = RunFiles(trained.folder)
    return trained.task.Data(gmlp_config.mutable_copy(trained.config), run_files)


def test_batch_size_does_not_change_the_metrics(text_run):
    """It is at most what is held out, rounded up to even shares of devices: a million rows of
    padding would take the memory, and minutes."""
    trained = pretrained.load(str(text_run))
    data = data_of(trained)
    examples = data.evaluation_examples()
    evaluator = evaluation.Evaluator(trained.task, data, trained.partition)
    expected, _ = evaluator(trained.params)
    for size in (7, 2**20):
        data.config.eval.batch_size = size
        found, outputs = evaluator(trained.params)
        assert outputs == {}
        assert found == pytest.approx(expected, rel=1e-5)
    sizes = []
    for shares in (1, 8):
        sizes.append(data.evaluation_batch_size(shares))
        with data.evaluation_batches(0, 1, shares) as batches:
            (batch,) = batches
        assert len(batch["weight"]) == sizes[-1]
        assert batch["weight"].sum() == examples
    assert sizes == [examples, -(-examples // 8) * 8]


def test_lost_example_is_detected(text_run, monkeypatch):
    trained = pretrained.load(str(text_run))
    data = data_of(trained)
    evaluator = evaluation.Evaluator(trained.task, data, trained.partition)
    monkeypatch.setattr(data, "evaluation_examples", lambda: 1)
    with pytest.raises(AssertionError, match=r"evaluation counted \d+ examples of 1"):
        evaluator(trained.params)


def test_ema_names(image_run):
    trained = pretrained.load(str(image_run))
    evaluator = evaluation.Evaluator(trained.task, data_of(trained), trained.partition)
    metrics, _ = evaluator(trained.params, trained.params)
    for name in ("top1", "top5", "loss", "examples"):
        assert metrics[f"ema_{name}"] == metrics[name]


class SevenNumbers(TaskData):
    """Seven examples, in an order that their index tells."""

    def examples(self, role):
        return [
            {"x": np.float32(3 * index % 7), "index": np.int32(6 - index)} for index in range(7)
        ]

    def evaluation_batch_size(self, shares):
        return 4


class Echo(tiny.Line):
    """A task whose outputs are its inputs."""

    Data = SevenNumbers

    def evaluate(self, params, batch):
        sums = {"examples": weighted_sum(jnp.ones_like(batch["weight"]), batch["weight"])}
        return sums, {"pair": jnp.stack([batch["x"], 2 * batch["x"]], 1)}

    def summarize(self, sums, outputs, data):
        return {"rows": len(outputs["pair"])}


def evaluator_of(kind, config, partition):
    """Of a task that scores its own numbers."""
    return evaluation.Evaluator(kind(config), kind.Data(config), partition)


def test_outputs_follow_the_order_of_examples_without_padding(config, partition):
    evaluator = evaluator_of(Echo, config, partition)
    metrics, outputs = evaluator({})
    assert evaluator.step._cache_size() == 1
    assert metrics == {"rows": 7}
    np.testing.assert_array_equal(outputs["index"], np.arange(7))
    x = np.array([3 * (6 - index) % 7 for index in range(7)], np.float32)
    expected = np.stack([x, 2 * x], 1)
    np.testing.assert_array_equal(outputs["pair"], expected)


def test_counts_beyond_float32_precision(config, partition):
    """2^24 + 1, as if in a step of 2^24 and one of a single example."""

    class ManyNumbers(SevenNumbers):
        def evaluation_examples(self):
            return 2**24 + 1

    class Many(Echo):
        Data = ManyNumbers

        def evaluate(self, params, batch):
            share = jnp.where(batch["weight"].sum() == 4, 2.0**24, 1.0)
            return {"examples": (share, share)}, {}

        def summarize(self, sums, outputs, data):
            return {"examples": sums["examples"][1]}

    metrics, _ = evaluator_of(Many, config, partition)({})
    assert metrics == {"examples": 2**24 + 1}


def test_outputs_are_fetched_while_the_next_batch_runs(config, partition, monkeypatch):
    """So the device has work, and batches do not pile up on it."""
    evaluator = evaluator_of(Echo, config, partition)
    order = []
    run = evaluator.step
    read = jax.device_get
    monkeypatch.setattr(evaluator, "step", lambda *given: order.append("run") or run(*given))
    monkeypatch.setattr(jax, "device_get", lambda tree: order.append("read") or read(tree))
    evaluator({}, after_batch=lambda _: order.append("after"))
    assert order[:6] == ["run", "after", "run", "read", "after", "read"]
