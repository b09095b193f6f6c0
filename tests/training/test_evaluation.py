"""An evaluation counts every example once, or says so."""

from __future__ import annotations

import pytest

from gmlp_flax.training import evaluation, folder, partition


def test_batch_size_changes_nothing(text_run):
    trained = folder.load(str(text_run))
    expected = evaluation.Evaluator(trained.task, trained.mesh)(trained.params)
    trained.config.eval.batch_size = 7
    found = evaluation.Evaluator(trained.task, trained.mesh)(trained.params)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_a_lost_example_is_noticed(text_run, monkeypatch):
    trained = folder.load(str(text_run))
    monkeypatch.setattr(trained.task, "evaluation_examples", lambda: 1)
    with pytest.raises(AssertionError, match=r"evaluation counted \d+ examples of 1"):
        evaluation.Evaluator(trained.task, trained.mesh)(trained.params)


def test_ema_names(image_run):
    trained = folder.load(str(image_run))
    metrics = evaluation.Evaluator(trained.task, partition.make_mesh())(trained.params, trained.params)
    assert all(metrics[f"ema_{name}"] == metrics[name] for name in ("top1", "top5", "loss", "examples"))
