"""Figure 10: how attention is shared between two sentences. tests/runs/test_reproduce.py makes the whole report."""

from __future__ import annotations

import numpy as np
import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue, runs
from gmlp_flax.reports.attention_maps import across


def test_shares_agree_with_their_definition():
    maps, segments = np.random.default_rng(0).random((3, 5, 5)), np.array([0, 0, 0, 1, 1])
    expected = []
    for layer in maps:
        other = [[w if segments[i] != segments[j] else 0 for j, w in enumerate(row)] for i, row in enumerate(layer)]
        expected.append((np.sum(other) / 5, (np.sum(layer) - np.sum(other)) / 5, np.max(other)))
    np.testing.assert_allclose(across(maps, segments), expected, rtol=1e-12)
    # Even weights: three tokens give 2/5 to the other sentence, two give 3/5.
    assert across(np.full((1, 5, 5), 0.2), segments)[0, 0] == pytest.approx((3 * 0.4 + 2 * 0.6) / 5)


def test_a_run_that_was_not_finetuned(tmp_path):
    run = runs.Run("amlp_36", str(tmp_path), TABLES["figure10"].config("amlp_36", "cpu"), ())
    with pytest.raises(RunError, match="amlp_36 was not finetuned on mnli, .*give --finetune=mnli=DATA"):
        catalogue.of_runs("figure10", [run], "cpu", {"amlp_36": []})
