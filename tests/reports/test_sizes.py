"""Sizes that are counted, against the paper's figures."""

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
        pairs = zip(made.table.columns, row, strict=True)
        cells = dict(pairs)
        model = published.PUBLISHED[cells["model"]]
        _, millions, paper_millions, difference, gflops, paper_gflops, flops_difference, *_ = row
        millions_of_params = published.param_count(model) / 1e6
        assert cells["M parameters"] == millions_of_params
        assert paper_millions == model.params_m
        assert difference == pytest.approx(millions - paper_millions)
        assert abs(difference) < 1.2
        assert paper_gflops == model.flops_g
        assert flops_difference == pytest.approx(gflops - paper_gflops)
        assert cells.get("note") == (model.note or None)


@pytest.mark.slow
def test_classifiers():
    made = counts("figure2")
    table = TABLES["figure2"]
    rows = {}
    for row in made.table.rows:
        pairs = zip(made.table.columns, row, strict=True)
        cells = dict(pairs)
        rows[cells["model"]] = cells
    for name in table.rows:
        top1 = published.PUBLISHED[name].top1
        assert rows[name]["top-1 (%)"] == top1
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


@pytest.mark.slow
def test_each_classifier_is_drawn_and_named():
    """Also those above 100 M parameters, where the paper's axis ends."""
    made = counts("figure2")
    [panel] = made.figures["accuracies"].panels
    series = {}
    for each in panel.series:
        series[each.name] = each
    points = 0
    for each in panel.series:
        points += len(each.x)
    assert points == len(made.table.rows)
    gmlp = series["gMLP"]
    assert list(gmlp.y) == [72.3, 79.6, 81.6]
    assert list(gmlp.labels) == ["ti", "s", "b"]
    assert max(series["ViT"].x) > 300
    assert max(series["Mixer"].x) > 200
    assert panel.x.log
    labels = list(series["EfficientNet"].labels)
    assert labels == ["B0", "B3", "B7"]
    trained_mixer = series["Mixer (gMLP's training)"]
    assert list(trained_mixer.y) == [77.3]
    assert series["Mixer"].look.marker != trained_mixer.look.marker
    looks = {each.look for each in panel.series}
    assert len(looks) == len(panel.series)


@pytest.mark.slow
def test_each_table_without_training_is_counted():
    counted = {}
    for name, table in TABLES.items():
        if not table.trained:
            counted[name] = table
    assert set(counted) == {"table1", "table2", "table5", "figure2"}
    drawn = set(learned_weights.FIGURES)
    assert not drawn & set(counted)
    for name, table in counted.items():
        report = counts(name)
        names = []
        for row_name, *_ in report.table.rows:
            names.append(row_name)
        quoted = [row.name for row in table.quoted]
        expected = [*table.rows, *quoted]
        assert names == expected
        has_accuracies = "accuracies" in report.figures
        assert has_accuracies == (name in ("table2", "figure2"))
