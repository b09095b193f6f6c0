"""Sizes that are counted, beside the paper's figures."""

from __future__ import annotations

import pytest

from gmlp_flax.paper import published
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue

# The paper's Table 2, ImageNet-1K without extra data.
TOP1 = {
    "vit_b16_384": 77.9, "vit_l16_384": 76.5, "deit_ti": 72.2, "deit_s": 79.8, "deit_b": 81.8, "mixer_b16": 76.4,
    "mixer_l16": 71.8, "resmlp_s12": 76.6, "resmlp_s24": 79.4, "resmlp_s36": 79.7, "gmlp_ti_cls": 72.3,
    "gmlp_s_cls": 79.6, "gmlp_b_cls": 81.6,
}


@pytest.mark.parametrize("name", ["table1", "table5"])
def test_tables_of_counts(name):
    made = catalogue.of_sizes(name)
    assert [row[0] for row in made.table.rows] == list(TABLES[name].rows)
    for row in made.table.rows:
        cells = dict(zip(made.table.columns, row, strict=True))
        model = published.PUBLISHED[cells["model"]]
        assert cells["M parameters"] == published.param_count(model) / 1e6
        assert row[2] == model.params_m and row[3] == pytest.approx(row[1] - row[2]) and abs(row[3]) < 1.2
        assert row[5] == model.flops_g and row[6] == pytest.approx(row[4] - row[5])


def test_classifiers():
    made = catalogue.of_sizes("figure2")
    assert {row[0]: row[1] for row in made.table.rows} == TOP1
    rows = {row[0]: dict(zip(made.table.columns, row, strict=True)) for row in made.table.rows}
    deit = rows["deit_s"]
    assert deit["paper's M parameters"] == 22 and deit["M parameters"] == pytest.approx(22.05, abs=0.01)
    assert deit["paper's GFLOPs"] == 2 * 4.6 and deit["GFLOPs"] == pytest.approx(9.2, abs=0.01)
    [axis] = made.figures["accuracies"].axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axis.lines if len(line.get_xdata()) > 1}
    assert [top1 for _, top1 in drawn["gmlp"]] == [72.3, 79.6, 81.6] and set(drawn) == {"deit", "resmlp", "gmlp"}
    alone = [line for line in axis.lines if line.get_label() in ("vit", "mixer")]
    assert [len(line.get_xdata()) for line in alone] == [1, 1]  # the other of each has more than 100 M
