"""A table's three forms."""

from __future__ import annotations

import csv
import io

from gmlp_flax.analysis.tables import Table

TABLE = Table(("model", "params", "perplexity"), [("a|b", 1234567, 4.123456789), ("<c>", None, 10.0)])


def test_markdown_rounds_and_keeps_its_columns():
    assert TABLE.markdown().splitlines() == [
        "| model | params | perplexity |", "| --- | --- | --- |", "| a\\|b | 1,234,567 | 4.1235 |", "| <c> |  | 10 |",
    ]


def test_csv_keeps_all_digits():
    assert list(csv.reader(io.StringIO(TABLE.csv()))) == [
        ["model", "params", "perplexity"], ["a|b", "1234567", "4.123456789"], ["<c>", "", "10.0"],
    ]


def test_html_sorts_by_all_digits_and_escapes():
    text = TABLE.html()
    assert '<td data-key="4.123456789">4.1235</td>' in text
    assert '<td data-key="&lt;c&gt;">&lt;c&gt;</td>' in text and '<td data-key=""></td>' in text
