"""The table of AR hits on which-mixer.md."""

import math

import pytest

from docs import generate
from docs.results import slices
from gmlp_flax.paper.alternatives import ROWS


def test_the_share_is_that_of_zoology():
    """The gap on AR hits, counted, over the gap on all tokens."""
    scores = {line["row"]: line for line in generate.read("alternatives-slices")}
    shares = {}
    for line in slices.section().splitlines()[2:]:
        _, row, _, recall, other, share, _ = (cell.strip() for cell in line.split("|"))
        name = row.strip("`")
        shares[name] = share
        assert float(recall) == pytest.approx(float(scores[name]["recall_perplexity"]), abs=0.05)
        assert float(other) == pytest.approx(float(scores[name]["other_perplexity"]), abs=0.05)
    assert set(shares) <= set(ROWS)
    assert shares["bert_rel"] == ""
    gaps = {}
    for kind in ("recall_", "other_"):
        count = int(scores["sgu"][f"{kind}predictions"])
        model, reference = (
            math.log(float(scores[row][f"{kind}perplexity"])) for row in ("sgu", "bert_rel")
        )
        gaps[kind] = count * (model - reference)
    expected = 100 * gaps["recall_"] / (gaps["recall_"] + gaps["other_"])
    assert float(shares["sgu"]) == pytest.approx(expected, abs=0.6)


def test_the_slices_are_all_predicted_tokens():
    for line in generate.read("alternatives-slices"):
        parts = int(line["recall_predictions"]) + int(line["other_predictions"])
        assert parts == int(line["predictions"])
        total = float(line["loss"]) * parts
        by_slice = sum(
            int(line[f"{kind}predictions"]) * math.log(float(line[f"{kind}perplexity"]))
            for kind in ("recall_", "other_")
        )
        assert total == pytest.approx(by_slice, rel=1e-3)
