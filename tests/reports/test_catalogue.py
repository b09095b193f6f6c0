"""Which report a table becomes."""

from __future__ import annotations

from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue


def test_every_table_is_either_counted_or_trained():
    trained = {name for name, table in TABLES.items() if table.trained}
    assert trained == {
        "table3",
        "table4",
        "table6",
        "appendix_b",
        "figure3",
        "figure4",
        "figure5",
        "figure7",
        "figure8",
        "figure9",
        "figure10",
        "alternatives",
    }
    assert set(catalogue.RUNS) <= trained
    assert set(catalogue.SIZES) <= set(TABLES) - trained == {"table1", "table2", "table5", "figure2"}


def test_counted_tables_have_their_rows():
    for name in ("table1", "table2", "table5", "figure2"):
        made = catalogue.of_sizes(name)
        quoted = [row.name for row in TABLES[name].quoted]
        assert [row[0] for row in made.table.rows] == [*TABLES[name].rows, *quoted]
        assert ("accuracies" in made.figures) == (name in catalogue.SIZES)
