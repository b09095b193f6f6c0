"""The files of a report."""

from __future__ import annotations

import csv

from gmlp_flax.reports import files
from tests.reports.test_language_models import gather, write_runs


def test_files_of_a_report(tmp_path):
    write_runs(tmp_path / "runs")
    made = gather("table3", tmp_path / "runs")
    assert files.write(made, str(tmp_path / "table3")) == str(tmp_path / "table3" / "index.html")
    found = {path.name: path for path in (tmp_path / "table3").iterdir()}
    figures = {f"{name}.{kind}" for name in ("curves", "correlation") for kind in ("png", "svg", "pdf", "csv")}
    assert set(found) == figures | {"table.md", "table.csv", "index.html", "plotly.min.js"}
    assert found["curves.png"].read_bytes()[16:20] == (650).to_bytes(4, "big")  # a paper's column, 200 dpi
    rows = list(csv.reader(found["table.csv"].read_text().splitlines()))
    assert rows[0][0] == "model" and len(rows) == 5
    assert "| sgu | 0.659 | 31.0 ± 1.4 | 2 | 4.35 | +26.6 | 0.004 |" in found["table.md"].read_text()
    assert found["curves.csv"].read_text().splitlines()[1].startswith("mixer,,921600,70.0")
    before = {name: path.read_bytes() for name, path in found.items()}
    files.write(gather("table3", tmp_path / "runs"), str(tmp_path / "table3"))
    assert before == {name: found[name].read_bytes() for name in before}


def test_the_charts_library_can_be_elsewhere(tmp_path):
    write_runs(tmp_path / "runs")
    files.write(gather("table3", tmp_path / "runs"), str(tmp_path / "site" / "table3"), library="../plotly.min.js")
    assert not (tmp_path / "site" / "table3" / "plotly.min.js").exists()
    assert '<script src="../plotly.min.js">' in (tmp_path / "site" / "table3" / "index.html").read_text()
