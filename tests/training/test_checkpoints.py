"""Which checkpoint of a run is the best, and which metrics decide it."""

import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.training import checkpoints
from tests.failures import raised


@pytest.fixture
def changed(text_task):
    """Copies of a task's config with another metric and EMA, because tests share the task."""

    def change(metric, ema):
        config = gmlp_config.mutable_copy(text_task.config)
        config.checkpoint.metric = metric
        config.optimizer.ema = ema
        return config

    return change


@pytest.mark.parametrize(
    ("metric", "ema"),
    [("", 0.0), ("loss", 0.0), ("accuracy", 0.9), ("ema_perplexity", 0.9)],
)
def test_accepted_metrics(changed, text_task, metric, ema):
    checkpoints.check_metric(changed(metric, ema), text_task)


@pytest.mark.parametrize("metric", ["ema_perplexity", "perplexty", "top1"])
def test_unknown_metrics_are_refused(changed, text_task, metric):
    message = raised(RunError, checkpoints.check_metric, changed(metric, 0.0), text_task)
    assert f"config.checkpoint.metric is '{metric}'" in message
    assert message.endswith(" perplexity, accuracy, loss")


@pytest.mark.parametrize(
    ("task", "metric", "ema", "best"),
    [
        ("masked_lm", "", 0.0, ("perplexity", "min")),
        ("image_classification", "", 0.9, ("ema_top1", "max")),  # of the parameters that predict
        ("image_classification", "top1", 0.9, ("top1", "max")),
        ("masked_lm", "ema_perplexity", 0.9, ("ema_perplexity", "min")),
        ("masked_lm", "loss", 0.0, ("loss", "min")),
        ("masked_lm", "accuracy", 0.9, ("accuracy", "max")),
    ],
)
def test_default_metric_of_the_best_checkpoint(task, metric, ema, best):
    config = gmlp_config.default(task=task)
    config.checkpoint.metric = metric
    config.optimizer.ema = ema
    assert checkpoints.best_metric(config) == best


def test_checkpoints_are_in_the_run_folder(text_run):
    config = gmlp_config.load(str(text_run / "config.json"))
    opened = checkpoints.open_checkpoints(config, str(text_run), read_only=True)
    assert opened.folder == f"{text_run}/checkpoints"
    assert opened.steps() == [6, 12]
    opened.close()
