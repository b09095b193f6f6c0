"""Submitted rows in the report: which rows are compared, their cells, notes and figure."""

import dataclasses

from gmlp_flax.reports.alternatives import submitted_rows
from gmlp_flax.reports.table import Spread
from tests.reports.alternatives.test_submissions import ROW

SETTING = ROW.setting
OTHER_SCALE = dataclasses.replace(ROW, row="larger", scale="gpu")
OTHER_SETTING = dataclasses.replace(ROW, row="elsewhere", setting="0" * 12)


def test_rows_with_the_same_scale_and_setting_are_compared():
    everything = [ROW, OTHER_SCALE, OTHER_SETTING]
    assert submitted_rows.comparable(everything, "cpu", SETTING) == [ROW]
    assert submitted_rows.comparable(everything, "gpu", SETTING) == [OTHER_SCALE]
    assert submitted_rows.comparable(everything, "paper", SETTING) == []


def test_cells_show_the_source_of_a_row():
    changed = dataclasses.replace(ROW, row="dirty", commit="4" * 40 + "-changed")
    cells = submitted_rows.cells_of([ROW, changed])
    assert list(cells) == ["my_mixer (submitted)", "dirty (submitted)"]
    mine = cells["my_mixer (submitted)"]
    assert mine["M parameters"] == 0.4
    assert mine[submitted_rows.COLUMN.title] == Spread.mean((60.25, 61.5, 60.0))
    assert mine["submitted"] == (
        "version 0.3.0.dev0, commit 33333333, config 0123456789ab, rates tried: 3, median 60.25"
    )
    assert "commit 44444444 with changes," in cells["dirty (submitted)"]["submitted"]


def test_notes_name_the_incomparable_rows():
    assert list(submitted_rows.notes([], [])) == []
    [shown_as_submitted] = submitted_rows.notes([ROW], [ROW])
    assert "not checked here" in shown_as_submitted
    _, left_out = submitted_rows.notes([ROW, OTHER_SCALE, OTHER_SETTING], [ROW])
    assert left_out.endswith("those of the rows here: larger, elsewhere.")


def test_figure_orders_all_rows_by_perplexity():
    scores = {"bert": Spread.mean([70.0]), "sgu": Spread.mean([50.0])}
    assert submitted_rows.chart(scores, []) is None
    [panel] = submitted_rows.chart(scores, [ROW]).panels
    places = {series.name: (series.x, series.labels) for series in panel.series}
    assert places == {
        "gMLP": ([1], ["sgu"]),
        "submitted": ([2], ["my_mixer"]),
        "Transformer": ([3], ["bert"]),
    }
