"""The table of AR hits on which-mixer.md."""

import math

import pytest

from docs import generate
from docs.results import slices
from gmlp_flax.paper.alternatives import ROWS

SLICES = ("recall", "other")  # predicted tokens that repeat a pair of the text, and the others


@pytest.fixture(scope="module")
def measured():
    """The lines of the CSV file by row."""
    return {line["row"]: line for line in generate.read("alternatives-slices")}


@pytest.fixture(scope="module")
def table():
    """Row -> the cells of the table."""
    rows = {}
    for line in slices.section().splitlines()[2:]:
        cells = [cell.strip() for cell in line.split("|")]
        name = cells[1].strip("`")
        rows[name] = cells[2:-1]
    return rows


def log_loss(line, name):
    """Summed over the predictions of a slice."""
    count = int(line[f"{name}_predictions"])
    perplexity = float(line[f"{name}_perplexity"])
    return count * math.log(perplexity)


def test_the_table_has_the_measured_perplexities(table, measured):
    assert set(table) <= set(ROWS)
    for name, (_, recall, other, _) in table.items():
        line = measured[name]
        recall_perplexity = float(line["recall_perplexity"])
        other_perplexity = float(line["other_perplexity"])
        assert float(recall) == pytest.approx(recall_perplexity, abs=0.05)
        assert float(other) == pytest.approx(other_perplexity, abs=0.05)


def test_the_share_is_that_of_zoology(table, measured):
    """The gap in the loss of AR hits, over the gap in that of all tokens."""
    gaps = {}
    for name in SLICES:
        sgu = log_loss(measured["sgu"], name)
        transformer = log_loss(measured["bert_rel"], name)
        gaps[name] = sgu - transformer
    expected = 100 * gaps["recall"] / (gaps["recall"] + gaps["other"])
    *_, share_of_sgu = table["sgu"]
    *_, share_of_transformer = table["bert_rel"]
    assert float(share_of_sgu) == pytest.approx(expected, abs=0.6)
    assert share_of_transformer == ""


def test_the_slices_are_all_predicted_tokens(measured):
    for line in measured.values():
        count = int(line["recall_predictions"]) + int(line["other_predictions"])
        assert count == int(line["predictions"])
        total = float(line["loss"]) * count
        by_slice = sum(log_loss(line, name) for name in SLICES)
        assert total == pytest.approx(by_slice, rel=1e-3)
