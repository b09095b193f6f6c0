"""Sizes that are counted, beside the paper's figures."""

import functools

import pytest

from gmlp_flax.paper import published
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import learned_weights, sizes


@functools.cache
def counts(name):
    return sizes.counts(TABLES[name])


@pytest.mark.parametrize("name", ["table1", "table5"])
def test_tables_of_counts(name):
    made = counts(name)
    for row in made.table.rows:
        cells = dict(zip(made.table.columns, row, strict=True))
        model = published.PUBLISHED[cells["model"]]
        assert cells["M parameters"] == published.param_count(model) / 1e6
        assert row[2] == model.params_m
        assert row[3] == pytest.approx(row[1] - row[2])
        assert abs(row[3]) < 1.2
        assert row[5] == model.flops_g
        assert row[6] == pytest.approx(row[4] - row[5])
        assert cells.get("note") == (model.note or None)


def test_classifiers():
    made = counts("figure2")
    table = TABLES["figure2"]
    rows = {row[0]: dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows}
    got = {name: rows[name]["top-1 (%)"] for name in table.rows}
    expected = {name: published.PUBLISHED[name].top1 for name in table.rows}
    assert got == expected
    deit = rows["deit_s"]
    assert deit["the paper's"] == 22
    assert deit["M parameters"] == pytest.approx(22.05, abs=0.01)
    assert deit["the paper's GFLOPs"] == 2 * 4.6
    assert deit["GFLOPs"] == pytest.approx(9.2, abs=0.01)
    resnet = rows["ResNet-152"]
    assert resnet["top-1 (%)"] == 78.3
    assert resnet["the paper's"] == 60
    assert resnet["the paper's GFLOPs"] == 22.6
    assert resnet["M parameters"] is None


def test_each_classifier_is_drawn_and_named():
    """Also those above 100 M parameters, where the paper's axis ends."""
    made = counts("figure2")
    [panel] = made.figures["accuracies"].panels
    series = {each.name: each for each in panel.series}
    got = sum(len(each.x) for each in series.values())
    assert got == len(made.table.rows)
    assert list(series["gMLP"].y) == [72.3, 79.6, 81.6]
    assert list(series["gMLP"].labels) == [
        "ti",
        "s",
        "b",
    ]
    assert max(series["ViT"].x) > 300
    assert max(series["Mixer"].x) > 200
    assert panel.x.log
    assert list(series["EfficientNet"].labels) == ["B0", "B3", "B7"]
    assert list(series["Mixer (gMLP's training)"].y) == [77.3]
    assert series["Mixer"].look.marker != series["Mixer (gMLP's training)"].look.marker
    got = len({each.look for each in panel.series})
    assert got == len(panel.series)


def test_each_table_without_training_is_counted():
    counted = {name: table for name, table in TABLES.items() if not table.trained}
    assert set(counted) == {"table1", "table2", "table5", "figure2"}
    assert not set(learned_weights.FIGURES) & set(counted)
    for name, table in counted.items():
        made = counts(name)
        got = [row[0] for row in made.table.rows]
        expected = [
            *table.rows,
            *(row.name for row in table.quoted),
        ]
        assert got == expected
        assert ("accuracies" in made.figures) == (name in ("table2", "figure2"))
