"""Which report a table becomes."""

from __future__ import annotations

from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import catalogue


def test_every_table_is_either_counted_or_trained():
    trained = {name for name, table in TABLES.items() if table.trained}
    assert trained == {
        "table3", "table4", "table6", "appendix_b",
        "figure3", "figure4", "figure5", "figure7", "figure8", "figure9", "figure10",
    }
    assert set(catalogue.RUNS) <= trained
    assert set(catalogue.SIZES) <= set(TABLES) - trained == {"table1", "table2", "table5", "figure2"}


def test_titles_of_counted_tables():
    assert catalogue.of_sizes("table1").title == TABLES["table1"].title
    assert "accuracies" in catalogue.of_sizes("table2").figures
