"""An evaluation counts every example once, or fails."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.tasks.base import weighted_sum
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.training import evaluation, pretrained
from tests.training import tiny


def data_of(trained):
    """The data of a trained model's run, with a config that may be changed."""
    config = gmlp_config.mutable_copy(trained.config)
    return trained.task.Data(config, RunFiles(trained.folder))


@pytest.mark.slow
def test_batch_size_does_not_change_the_metrics(text_run):
    """It is at most the number of held-out examples, rounded up so that devices have even shares: a
    million rows of padding would need memory and minutes."""
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
    for shares in (1, 8):
        size = shares * math.ceil(examples / shares)
        assert data.evaluation_batch_size(shares) == size
        with data.evaluation_batches(0, 1, shares) as batches:
            [batch] = batches
        assert len(batch["weight"]) == size
        assert batch["weight"].sum() == examples


@pytest.mark.slow
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
    """Seven examples whose index gives their order."""

    def examples(self, role):
        examples = []
        for position in range(7):
            x = np.float32(3 * position % 7)
            examples.append({"x": x, "index": np.int32(6 - position)})
        return examples

    def evaluation_batch_size(self, shares):
        return 4


class Echo(tiny.Line):
    """A task whose outputs are its inputs."""

    Data = SevenNumbers

    def evaluate(self, params, batch):
        ones = jnp.ones_like(batch["weight"])
        sums = {"examples": weighted_sum(ones, batch["weight"])}
        pairs = jnp.stack([batch["x"], 2 * batch["x"]], 1)
        return sums, {"pair": pairs}

    def summarize(self, sums, outputs, data):
        return {"rows": len(outputs["pair"])}


def evaluator_of(kind, config, partition):
    """The evaluation of a task on its own numbers."""
    task = kind(config)
    return evaluation.Evaluator(task, kind.Data(config), partition)


def test_outputs_follow_the_order_of_examples_without_padding(config, partition):
    evaluator = evaluator_of(Echo, config, partition)
    metrics, outputs = evaluator({})
    assert evaluator.step._cache_size() == 1
    assert metrics == {"rows": 7}
    assert_array_equal(outputs["index"], np.arange(7))
    positions = 6 - np.arange(7)
    x = (3 * positions % 7).astype(np.float32)
    expected = np.stack([x, 2 * x], 1)
    assert_array_equal(outputs["pair"], expected)


def test_counts_beyond_float32_precision(config, partition):
    """2^24 + 1, as if a step had counted 2^24 and another one a single example."""

    class ManyNumbers(SevenNumbers):
        def evaluation_examples(self):
            return 2**24 + 1

    class Many(Echo):
        Data = ManyNumbers

        def evaluate(self, params, batch):
            is_full = batch["weight"].sum() == 4
            count = jnp.where(is_full, 2.0**24, 1.0)
            return {"examples": (count, count)}, {}

        def summarize(self, sums, outputs, data):
            _, count = sums["examples"]
            return {"examples": count}

    metrics, _ = evaluator_of(Many, config, partition)({})
    assert metrics == {"examples": 2**24 + 1}


def test_outputs_are_fetched_while_the_next_batch_runs(config, partition, monkeypatch):
    """The device always has work, and batches do not pile up on it."""
    evaluator = evaluator_of(Echo, config, partition)
    order = []
    step = evaluator.step
    device_get = jax.device_get

    def recorded_step(*arguments):
        order.append("run")
        return step(*arguments)

    def recorded_get(tree):
        order.append("read")
        return device_get(tree)

    monkeypatch.setattr(evaluator, "step", recorded_step)
    monkeypatch.setattr(jax, "device_get", recorded_get)
    evaluator({}, after_batch=lambda _: order.append("after"))
    assert order[:6] == ["run", "after", "run", "read", "after", "read"]
