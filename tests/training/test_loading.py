import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.training import loading


def test_load_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is no run folder: it has no config.json; give the --workdir of a training run"):
        loading.load(str(tmp_path))


def test_load_without_a_checkpoint(tmp_path, text_task):
    (tmp_path / "config.json").write_text(gmlp_config.to_json(text_task.config))
    with pytest.raises(
        RunError, match=f"^there is no checkpoint in {tmp_path} yet: wait for the first one, or train it$"
    ):
        loading.load(str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="^there is no checkpoint in"):
        loading.load(str(tmp_path))


def test_parameter_source_of_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "checkpoints" / "3"):
        with pytest.raises(
            RunError, match=f"^config.init_from is {path}: expected a run folder or RUN/checkpoints/STEP$"
        ):
            loading.parameter_source(str(path))


def test_metric_that_evaluations_do_not_find(text_task):
    config = text_task.config.copy_and_resolve_references()  # other tests share the task
    for metric, ema in (("", 0.0), ("loss", 0.0), ("accuracy", 0.9), ("ema_perplexity", 0.9)):
        config.checkpoint.metric, config.optimizer.ema = metric, ema
        loading.check_metric(config, text_task)
    for metric in ("ema_perplexity", "perplexty", "top1"):
        config.checkpoint.metric, config.optimizer.ema = metric, 0.0
        message = f"^config.checkpoint.metric is '{metric}': expected one of perplexity, accuracy, loss$"
        with pytest.raises(RunError, match=message):
            loading.check_metric(config, text_task)


def test_the_best_is_that_of_the_parameters_that_predict(tmp_path):
    config = gmlp_config.default(task="image_classification")
    config.optimizer.ema = 0.9
    checkpoints = loading.open_checkpoints(config, str(tmp_path))
    rank = checkpoints._retention.rank
    assert rank({"top1": 0.9, "ema_top1": 0.1}) < rank({"top1": 0.1, "ema_top1": 0.2})
    checkpoints.close()


@pytest.mark.parametrize(
    ("task", "metric", "ranks"),
    [
        ("masked_lm", "", [{"perplexity": 9.0}, {"perplexity": 3.0}]),
        ("image_classification", "", [{"top1": 0.1}, {"top1": 0.9}]),
        ("image_classification", "loss", [{"loss": 2.0}, {"loss": 1.0}]),
        ("masked_lm", "ema_perplexity", [{"ema_perplexity": 9.0}, {"ema_perplexity": 3.0}]),
        ("masked_lm", "accuracy", [{"accuracy": 0.1}, {"accuracy": 0.2}]),
    ],
)
def test_metric_that_says_which_is_best(tmp_path, task, metric, ranks):
    """The worse metrics come first."""
    config = gmlp_config.default(task=task)
    config.checkpoint.metric = metric
    checkpoints = loading.open_checkpoints(config, str(tmp_path))
    worse, better = map(checkpoints._retention.rank, ranks)
    assert checkpoints._retention.rank({}) < worse < better
    checkpoints.close()
