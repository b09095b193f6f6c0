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


# The slices of a language model.


def test_slices_need_a_language_model(image_run, text_run):
    image_config = config_lib.mutable_copy(config_lib.load(str(image_run / "config.json")))
    message = raised(ConfigError, scoring.add_slices, image_config)
    assert "image_classification" in message
    text_config = config_lib.mutable_copy(config_lib.load(str(text_run / "config.json")))
    scoring.add_slices(text_config)
    assert text_config.eval.recall_slices


def test_slices_add_up_to_all_predictions(text_run):
    config = config_lib.mutable_copy(config_lib.load(str(text_run / "config.json")))
    scoring.add_slices(config)
    metrics = scoring.evaluate_checkpoint(text_run, config=config).metrics
    result = json.loads((text_run / "result.json").read_text())["eval"]
    got = {name: metrics[name] for name in result}
    assert got == pytest.approx(result, rel=1e-6)
    recalled = metrics["recall_predictions"]
    others = metrics["other_predictions"]
    assert recalled > 20
    assert recalled + others == metrics["predictions"]
    recall_loss = recalled * math.log(metrics["recall_perplexity"])
    other_loss = others * math.log(metrics["other_perplexity"])
    assert recall_loss + other_loss == pytest.approx(metrics["predictions"] * metrics["loss"])
    hits = recalled * metrics["recall_accuracy"] + others * metrics["other_accuracy"]
    assert hits == pytest.approx(metrics["predictions"] * metrics["accuracy"])
