"""Tables of reports: the text of cells, Markdown and CSV."""

import csv
import io
import math

import pytest

from gmlp_flax.reports.table import Difference, Printed, Spread, Table, shown, sort_key

TABLE = Table(
    ("model", "params", "perplexity", "none"),
    [("a|b", 1234567, Spread(4.123456789, (4.0, 4.246913578)), None), ("<c>", None, 10.0, None)],
)


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, ""),
        (1234567, "1,234,567"),
        (0.00073553, "0.000736"),
        (9.999, "10.0"),
        (0.0, "0.00"),
        (-3.14159, "\u22123.14"),
        (2.5e-5, "2.50e\u221205"),
        (math.inf, "not finite"),
        (Printed(1091.3), "1,091.3"),
        (Difference(26.65), "+26.6"),
        (Difference(-0.0497), "\u22120.05"),
        (Difference(0.001), "0"),
        (Spread(57.08, (55.0, 59.16)), "57.1 ± 2.9"),
        (Spread(5.0, (5.0,)), "5.00"),
        (Spread(2.0, (2.0, 2.0)), "2.00 ± 0"),
    ],
)
def test_cells_have_three_digits(cell, text):
    assert shown(cell) == text


def test_cells_sort_by_all_digits():
    cells = (None, "a", 3, 4.123456789, Spread(2.5, (2, 3)), Printed(7))
    assert [sort_key(cell) for cell in cells] == ["", "a", "3", "4.123456789", "2.5", "7.0"]


def test_markdown_rounds():
    assert TABLE.markdown().splitlines() == [
        "| model | params | perplexity | none |",
        "| --- | --- | --- | --- |",
        "| a\\|b | 1,234,567 | 4.12 ± 0.17 |  |",
        "| <c> |  | 10.0 |  |",
        "",
        TABLE.legend(),
    ]


MEAN = Spread.mean([1.0, 3.0, 8.0])
MEDIAN = Spread.median([1.0, 3.0, 8.0])
ONE_RUN = Spread.median([5.0])


def test_table_names_means_or_medians():
    assert MEAN.centre == 4.0
    assert MEDIAN.centre == 3.0
    end = "and the number after it is their standard deviation."
    assert legend(MEAN, MEAN) == f"The number before ± is the mean over the seeds, {end}"
    assert legend(MEDIAN, "x") == f"The number before ± is the median over the seeds, {end}"
    mixed = f"The number before ± is the mean over the seeds (in SST-2 (%): the median), {end}"
    assert legend(MEAN, MEDIAN) == mixed
    assert legend(MEAN, ONE_RUN) == legend(MEAN, None)
    assert legend(ONE_RUN, 2.0) == ""
    repeats = Table(("model", "ms"), [("sgu", MEDIAN)], over="repeats").legend()
    assert repeats == f"The number before ± is the median over the repeats, {end}"


def legend(perplexity, score) -> str:
    """The legend of a table of two columns, of which the second has a cell of one run, too."""
    rows = [("bert", perplexity, score), ("sgu", perplexity, ONE_RUN)]
    return Table(("model", "perplexity", "SST-2 (%)"), rows).legend()


def test_csv_keeps_all_digits():
    file = io.StringIO(TABLE.csv())
    head, first, second = csv.reader(file)
    statistics = [f"perplexity {name}" for name in ("deviation", "lowest", "highest", "seeds")]
    assert head == ["model", "params", "perplexity", *statistics, "none"]
    _, _, perplexity, *_ = TABLE.rows[0]
    deviation = str(perplexity.deviation)
    assert first == ["a|b", "1234567", "4.123456789", deviation, "4.0", "4.246913578", "2", ""]
    empty_cells = [""] * 5
    assert second == ["<c>", "", "10.0", *empty_cells]


def test_each_model_has_a_line():
    """In the order of the columns, even if the first model has no value in one; empty columns are left
    out."""
    table = Table.of_models(
        {
            "a": {"params": 1.0, "score": None, "empty": None, "note": "x"},
            "b": {"params": None, "score": 2.0, "empty": None, "note": None},
            "c": {"note": "z"},
        },
        over="repeats",
    )
    assert table.columns == ("model", "params", "score", "note")
    assert table.rows == [
        ["a", 1.0, None, "x"],
        ["b", None, 2.0, None],
        ["c", None, None, "z"],
    ]
    assert table.column(1) == [1.0, None, None]
    assert table.over == "repeats"
