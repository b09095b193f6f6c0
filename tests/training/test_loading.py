import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.training import loading
from tests.failures import raised


def test_load_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match=f"{tmp_path} is no run folder: .*config.json"):
        loading.load(str(tmp_path))


def test_load_without_a_checkpoint(tmp_path, text_task):
    (tmp_path / "config.json").write_text(gmlp_config.to_json(text_task.config))
    for _ in range(2):
        assert f"no checkpoint in {tmp_path}" in raised(RunError, loading.load, str(tmp_path))
        (tmp_path / "checkpoints").mkdir(exist_ok=True)


def test_source_of_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "checkpoints" / "3"):
        assert f"config.init_from is {path}: " in raised(RunError, loading.open_source, str(path))


def test_source_of_one_checkpoint(text_run):
    assert loading.open_source(f"{text_run}/checkpoints/6").where == f"{text_run}/checkpoints/6"


def test_metric_that_evaluations_do_not_find(text_task):
    config = text_task.config.copy_and_resolve_references()  # other tests share the task
    for metric, ema in (("", 0.0), ("loss", 0.0), ("accuracy", 0.9), ("ema_perplexity", 0.9)):
        config.checkpoint.metric, config.optimizer.ema = metric, ema
        loading.check_metric(config, text_task)
    for metric in ("ema_perplexity", "perplexty", "top1"):
        config.checkpoint.metric, config.optimizer.ema = metric, 0.0
        with pytest.raises(
            RunError,
            match=f"config.checkpoint.metric is '{metric}': .* perplexity, accuracy, loss$",
        ):
            loading.check_metric(config, text_task)


@pytest.mark.parametrize(
    ("task", "metric", "ema", "best"),
    [
        ("masked_lm", "", 0.0, ("perplexity", "min")),
        ("image_classification", "", 0.9, ("ema_top1", "max")),  # of the parameters that predict
        ("masked_lm", "ema_perplexity", 0.9, ("ema_perplexity", "min")),
        ("masked_lm", "accuracy", 0.9, ("accuracy", "max")),
    ],
)
def test_metric_that_says_which_is_best(task, metric, ema, best):
    config = gmlp_config.default(task=task)
    config.checkpoint.metric, config.optimizer.ema = metric, ema
    assert loading.best_metric(config) == best
