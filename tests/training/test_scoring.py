"""A trained model is scored on held-out data, as `gmlp evaluate` does."""

import json
import math

import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, RunError, UserError
from gmlp_flax.training import scoring
from tests.failures import raised


def test_scores_of_a_checkpoint_equal_those_of_its_run(image_run):
    scores = scoring.evaluate_checkpoint(image_run)
    result = json.loads((image_run / "result.json").read_text())
    assert scores.metrics == result["eval"]
    assert scores.step == 12
    assert scores.checkpoint == f"{image_run}/checkpoints/12"
    assert scores.predictions == {}
    assert scores.metrics["ema_loss"] != scores.metrics["loss"]


def test_task_without_token_predictions_is_refused(image_run):
    message = raised(RunError, scoring.evaluate_checkpoint, image_run, predictions=True)
    assert "image_classification" in message


def test_indivisible_batch_is_refused(image_run):
    config = config_lib.load(str(image_run / "config.json"))
    config.eval.batch_size = -3
    message = raised(UserError, scoring.evaluate_checkpoint, image_run, config=config)
    assert "eval.batch_size" in message


def config_of(run):
    """The config of a run, which may be changed."""
    config = config_lib.load(str(run / "config.json"))
    return config_lib.mutable_copy(config)


# The slices of a language model.


def test_slices_need_a_language_model(image_run, text_run):
    image_config = config_of(image_run)
    message = raised(ConfigError, scoring.add_slices, image_config)
    assert "image_classification" in message
    text_config = config_of(text_run)
    scoring.add_slices(text_config)
    assert text_config.eval.recall_slices


def test_slices_add_up_to_all_predictions(text_run):
    config = config_of(text_run)
    scoring.add_slices(config)
    metrics = scoring.evaluate_checkpoint(text_run, config=config).metrics
    result = json.loads((text_run / "result.json").read_text())
    expected = result["eval"]
    unsliced = {name: metrics[name] for name in expected}
    assert unsliced == pytest.approx(expected, rel=1e-6)
    recalled = metrics["recall_predictions"]
    others = metrics["other_predictions"]
    predictions = metrics["predictions"]
    assert recalled > 20
    assert recalled + others == predictions
    recall_loss = recalled * math.log(metrics["recall_perplexity"])
    other_loss = others * math.log(metrics["other_perplexity"])
    loss = (recall_loss + other_loss) / predictions
    assert loss == pytest.approx(metrics["loss"])
    recall_hits = recalled * metrics["recall_accuracy"]
    other_hits = others * metrics["other_accuracy"]
    accuracy = (recall_hits + other_hits) / predictions
    assert accuracy == pytest.approx(metrics["accuracy"])
