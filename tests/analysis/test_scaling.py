"""Figures 5, 7 and 8: where a model's points stand."""

from __future__ import annotations

import pytest

from gmlp_flax.analysis import scaling
from gmlp_flax.analysis.scaling import Point

SERIES = {
    "gMLP": [Point("gmlp_18", 50, 6.0, {"SST-2": 90.0}), Point("gmlp_36", 100, 3.0, {"SST-2": 92.0})],
    "aMLP": [Point("amlp_18", 60, 5.0, {})],
}


def points(axis):
    """The points of an axis that tell their values, by what they tell."""
    marks = (line for line in axis.lines if (line.get_gid() or "").startswith("tip:"))
    return {line.get_gid()[4:]: (line.get_xdata()[0], line.get_ydata()[0]) for line in marks}


def test_a_panel_of_perplexities_and_one_of_each_score():
    figure, notes = scaling.draw_scaling(SERIES)
    perplexities, accuracies = figure.axes
    assert points(perplexities) == {
        "gmlp_18: 6 with 50 M parameters": (50, 6), "gmlp_36: 3 with 100 M parameters": (100, 3),
        "amlp_18: 5 with 60 M parameters": (60, 5),
    }
    assert points(accuracies) == {"gmlp_18: 90 %": (50, 90), "gmlp_36: 92 %": (100, 92)}
    assert accuracies.get_xscale() == "log" and accuracies.get_ylabel() == "SST-2 (%)"
    assert notes == ["gMLP: perplexity goes as parameters to the -1.000 (two points, no interval; R squared 1.000)."]


def test_scores_over_negative_perplexity():
    figure = scaling.draw_transfer(SERIES)
    (axis,) = figure.axes
    assert points(axis) == {"gmlp_18: 90 %": (-6, 90), "gmlp_36: 92 %": (-3, 92)}
    line = next(line for line in axis.lines if not line.get_gid())
    assert list(line.get_xdata()) == sorted(line.get_xdata())


def test_without_scores_there_is_no_figure_of_them():
    bare = {"aMLP": SERIES["aMLP"]}
    assert scaling.draw_transfer(bare) is None and len(scaling.draw_scaling(bare)[0].axes) == 1


def test_the_papers_own_laws():
    [note] = scaling.papers_laws({"Transformer": ("transformer_6", "transformer_12"), "aMLP": ("amlp_18", "amlp_36")})
    assert note.startswith("Transformer in the paper: perplexity goes as parameters to the ")
    exponent = float(note.split(" to the ")[1].split()[0])
    # ln(4.26 / 4.91) / ln(110 / 67)
    assert exponent == pytest.approx(-0.286, abs=1e-3)
