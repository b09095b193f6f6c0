"""The files of a report: a table's three forms, and the web page, also in a real browser if there is one."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess

import pytest

from gmlp_flax.analysis import drawing
from gmlp_flax.reports.report import Table, page
from tests.reports.test_language_models import gather, write_runs

TABLE = Table(("model", "params", "perplexity"), [("a|b", 1234567, 4.123456789), ("<c>", None, 10.0)])
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Clicks the second column twice, looks at what lies under the middle of a figure's point, and writes down what it saw.
VISITOR = """
<script>window.errors = []; window.onerror = message => errors.push(message);</script>
<script>addEventListener("load", () => {
  const order = () => [...document.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent).join("");
  const seen = [order()];
  for (const turn of [0, 1]) { document.querySelectorAll("th")[1].click(); seen.push(order()); }
  const point = [...document.querySelectorAll("svg g > title")].find(title => title.textContent.includes("second"));
  const box = point.parentNode.getBoundingClientRect();
  const under = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  const tip = under.closest("g:has(> title)").querySelector("title").textContent;
  const said = document.createElement("pre");
  said.id = "seen";
  said.textContent = JSON.stringify({ seen, tip, errors });
  document.body.append(said);
}); </script>
"""


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


@pytest.fixture
def text():
    figure, (axis,) = drawing.subplots(1, 1, 4.0, 3.0)
    drawing.points_with_tips(axis, [1.0, 2.0], [3.0, 4.0], ['the "first" <point>', "the second"], color="C0")
    table = Table(("model", "perplexity"), [("a", 10.0), ("b", 9.5), ("c", None), ("d", 100.0)])
    return page("A <title>", ["a & b"], table, [drawing.svg(figure)])


def test_page_needs_no_network_and_escapes(text):
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "<title>A &lt;title&gt;</title>" in text and "<li>a &amp; b</li>" in text
    assert "<title>the &quot;first&quot; &lt;point&gt;</title>" in text
    assert text.count("<svg") == 1 and "<?xml" not in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
def test_a_browser_sorts_and_shows_tips_without_errors(text, tmp_path):
    (tmp_path / "index.html").write_text(text.replace("</head>", f"{VISITOR}</head>"))
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
            "--virtual-time-budget=2000", "--window-size=1200,2000", "--enable-logging=stderr", "--dump-dom",
            f"file://{tmp_path}/index.html",
        ],
        capture_output=True, text=True, timeout=120,
    )
    found = json.loads(re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)[1])
    # Numbers by size, not by letters; the empty cell last in either order.
    assert found == {"seen": ["abcd", "badc", "dabc"], "tip": "the second", "errors": []}
    assert "CONSOLE" not in done.stderr


def test_files_of_a_report(tmp_path):
    write_runs(tmp_path / "runs")
    made = gather("table3", tmp_path / "runs")
    assert made.write(str(tmp_path / "table3")) == str(tmp_path / "table3" / "index.html")
    files = {path.name: path for path in (tmp_path / "table3").iterdir()}
    assert set(files) == {"table.md", "table.csv", "curves.png", "curves.svg", "index.html"}
    assert files["curves.png"].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.reader(files["table.csv"].read_text().splitlines()))
    assert rows[0][0] == "model" and len(rows) == 10
    assert "| sgu | 0.65864 | 31 | 30 | 32 | 2 | 4.35 | 26.65 | 0.008 |" in files["table.md"].read_text()
    assert "<title>multiplicative: 36 after 1,843,200 tokens</title>" in files["index.html"].read_text()
    before = {name: path.read_bytes() for name, path in files.items() if not name.endswith("png")}
    gather("table3", tmp_path / "runs").write(str(tmp_path / "table3"))
    assert before == {name: files[name].read_bytes() for name in before}
