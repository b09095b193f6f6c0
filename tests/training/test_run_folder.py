import json

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.training import run_folder


def test_folder_is_made_and_left_clean(tmp_path):
    run_folder.make(str(tmp_path / "a" / "run"))
    assert [entry.name for entry in (tmp_path / "a" / "run").iterdir()] == ["figures"]
    run_folder.make(str(tmp_path / "a" / "run"))


def test_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=f"^--workdir={workdir} cannot be written to .*: give another folder$"):
            run_folder.make(str(workdir))


def test_load_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is no run folder: it has no config.json; give the --workdir of a training run"):
        run_folder.load(str(tmp_path))


def test_load_without_a_checkpoint(tmp_path, text_task):
    (tmp_path / "config.json").write_text(gmlp_config.to_json(text_task.config))
    with pytest.raises(RunError, match=f"^there is no checkpoint in {tmp_path} yet: wait for the first one, or train it$"):
        run_folder.load(str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(RunError, match="^there is no checkpoint in"):
        run_folder.load(str(tmp_path))


def test_parameter_source_of_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "checkpoints" / "3"):
        with pytest.raises(RunError, match=f"^config.init_from is {path}: expected a run folder or RUN/checkpoints/STEP$"):
            run_folder.parameter_source(str(path))


def test_metric_that_evaluations_do_not_find(text_task):
    config = text_task.config.copy_and_resolve_references()  # other tests share the task
    for metric, ema in (("", 0.0), ("loss", 0.0), ("accuracy", 0.9), ("ema_perplexity", 0.9)):
        config.checkpoint.metric, config.optimizer.ema = metric, ema
        run_folder.check_metric(config, text_task)
    for metric in ("ema_perplexity", "perplexty", "top1"):
        config.checkpoint.metric, config.optimizer.ema = metric, 0.0
        message = f"^config.checkpoint.metric is '{metric}': expected one of perplexity, accuracy, loss$"
        with pytest.raises(RunError, match=message):
            run_folder.check_metric(config, text_task)


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
    checkpoints = run_folder.open_checkpoints(config, str(tmp_path))
    worse, better = map(checkpoints._rank, ranks)
    assert checkpoints._rank({}) < worse < better
    checkpoints.close()


def test_files_are_written_whole(tmp_path):
    path = tmp_path / "result.json"
    run_folder.write_json(str(path), {"step": 3})
    assert json.loads(path.read_text()) == {"step": 3} and [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    with pytest.raises(TypeError):
        run_folder.write_json(str(path), {"step": object()})
    assert json.loads(path.read_text()) == {"step": 3}


def test_environment():
    found = run_folder.environment()
    assert set(found["packages"]) == set(run_folder.PACKAGES) and found["packages"]["jax"] == jax.__version__
    assert found["devices"]["count"] == jax.device_count()
