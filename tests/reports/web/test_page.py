"""The pages: their contents, and what they do in a real browser without a network."""

import csv
import html
import io
import re

import pytest
from PIL import Image

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.looks import looks, on_dark
from gmlp_flax.reports.claims import HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.table import Spread, Table
from gmlp_flax.reports.web import page
from tests.docs.browser import BROWSER, DRIVER, browser, wait_for
from tests.reports.test_language_models import gather, write_runs

WITH_BROWSER = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH"
)
SGU, LINEAR, BERT = looks(["gMLP", "gMLP", "Transformer"])
TOKENS = [1e5, 1e6, 2e6]
POINTS = {"labels": ["18", "36"], "joined": False, "fit": [80.0, 60.0]}
PANELS = [
    Panel(
        "linear ends lowest",
        Scale("tokens"),
        Scale("perplexity", log=True),
        [
            Series(
                "sgu", SGU, TOKENS, [400.0, 80.0, 57.0], [390.0, 78.0, 55.0], [410.0, 82.0, 59.0]
            ),
            Series("linear <co>", LINEAR, TOKENS, [300.0, 20.0, 9.5]),
            Series("bert", BERT, TOKENS, [500.0, 150.0, float("nan")]),
        ],
        [("none", 300.0)],
    ),
    Panel(
        "falls",
        Scale("M parameters", log=True, backwards=True),
        Scale("perplexity", log=True),
        [
            Series("gMLP", SGU, [0.5, 1.0], [80.0, 60.0], [79.0, 58.0], [82.0, 61.0], **POINTS),
        ],
    ),
]


def report():
    """A report with all parts: claims, notes, a chart of two panels."""
    rows = [
        ("sgu", Spread(57.08, (55.0, 59.16)), 0.5, "a remark"),
        ("linear & <co>", Spread(9.5, (9.5,)), None, None),
        ("bert", Spread(100.0, (99.0, 101.0)), 2.0, None),
    ]
    costs = [("sgu", Spread.median((2.5, 3.0, 3.5)))]
    return Report(
        "A <title>",
        Table(("model", "perplexity", "rate", "note"), rows),
        [Claim("a < b", HOLDS, "since 3"), Claim("b < c", REVERSED), Claim("c < d", OPEN)],
        "Scale cpu. Scaled down for sgu: steps 9 (paper: 100).",
        ["a & b"],
        {"curves": Chart(PANELS, "Bands are seeds.")},
        {"what it costs": Table(("model", "ms"), costs, over="repeats")},
    )


@pytest.fixture(scope="module")
def text():
    return page.html(report())


def test_page_loads_nothing_external_and_escapes_text(text):
    links = re.findall(r'(?:src|href)="((?!data:|#)[^"]*)"', text)
    figures = ["curves.png", "curves.svg", "curves.pdf", "curves.csv"]
    assert links == ["table.csv", "table-what-it-costs.csv", *figures]
    for part in ("<title>A &lt;title&gt;<", "<li>a &amp; b</li>", "linear &amp; &lt;co&gt;"):
        assert part in text
    assert text.count("<svg ") == 2
    assert "<co>" not in text
    assert "src=" not in text
    assert "@import" not in text
    assert "xmlns" not in text


def test_claims_and_settings_are_above_the_table(text):
    rows = '<li class="holds">a &lt; b', '<li class="reversed">', '<li class="open">'
    order = [text.index(part) for part in (*rows, '<table class="sortable"')]
    assert order == sorted(order)
    assert "<p>Scale cpu. Scaled down for sgu: steps 9 (paper: 100).</p>" in text


def test_cells_and_the_note_on_their_spread(text):
    assert '<td data-key="57.08" title="seeds: 55.0, 59.2">57.1 ± 2.9</td>' in text
    assert '<td data-key=""></td>' in text
    assert '<td class="words" data-key="a remark">a remark</td>' in text
    first, second = text.split("<h2>What it costs</h2>")
    assert "is the mean over the seeds" in first
    assert "is the median over the repeats" in second


def test_page_without_figures():
    plain = page.html(Report("A", Table(("a",), [("b",)])))
    assert "<figure" not in plain
    assert "<svg" not in plain


def test_chart_shows_its_panels_with_captions(text):
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles == ["linear ends lowest", "falls"]
    [caption] = re.findall(r"<figcaption>(.*?)<span", html.unescape(text))
    assert "Bands are seeds." in caption
    assert "1 of bert's 3 points" in caption


def test_failed_figure_loses_nothing_else(tmp_path, capsys, monkeypatch):
    broken, _ = drawing.subplots(1, 1, 3, 1)

    def fail(renderer):
        raise ValueError("no font")

    monkeypatch.setattr(broken, "draw", fail)
    table = Table(("a",), [("b",)])
    chart = Chart(PANELS[1:])
    figures = {"broken": broken, "whole": chart}
    failing = Report("A", table, figures=figures)
    path = page.write(failing, str(tmp_path))
    [line] = capsys.readouterr().err.splitlines()
    assert "broken" in line
    assert "no font" in line
    names = {file.name for file in tmp_path.iterdir()}
    whole = {f"whole.{kind}" for kind in ("csv", "png", "svg", "pdf")}
    assert names == {"index.html", "table.md", "table.csv"} | whole
    with open(path) as file:
        content = file.read()
    assert content.count("<svg ") == 1
    assert "broken was not drawn (no font)" in content


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A browser on the report's page, opened from disk."""
    folder = str(tmp_path_factory.mktemp("report"))
    path = page.write(report(), folder)
    with browser(str(tmp_path_factory.mktemp("profile"))) as window:
        window.resize(1400)
        window.open(f"file://{path}")
        yield window
        assert window.console() == []


def row_names(window):
    """The first cell of each row of the first table."""
    rows = "[...document.querySelectorAll('.sortable')[0].tBodies[0].rows]"
    return window.run(f"return {rows}.map(row => row.cells[0].dataset.key)")


@pytest.mark.slow
@WITH_BROWSER
def test_click_sorts_by_all_digits(opened):
    click = "document.querySelectorAll('.sortable th button')[{}].click()"
    orders = []
    for column in (1, 1, 2, 2):
        opened.run(click.format(column))
        orders.append(row_names(opened))
    first, second, third, fourth = orders
    assert first == ["linear & <co>", "sgu", "bert"]
    assert second == ["bert", "sgu", "linear & <co>"]
    # the empty cell is last in either order
    assert third[-1] == "linear & <co>"
    assert fourth[-1] == "linear & <co>"


@WITH_BROWSER
@pytest.mark.parametrize("width", [400, 1400])
def test_page_is_as_wide_as_the_window(opened, width):
    opened.resize(width)
    measure = "const root = document.documentElement; return root.scrollWidth <= root.clientWidth"
    wait_for(lambda: opened.run(measure))


LONG_NAME = "my_research_package.mixers_of_tokens:GatedAveragingMixerWithAName"
LONG_PATH = f"/home/somebody/experiments/runs/reproduce/finetuned/{LONG_NAME}"


@pytest.fixture
def wide_page(tmp_path):
    """The page of a report with many columns, a row with a long name, and paths in sentences."""
    columns = []
    for number in range(16):
        columns.append(f"score of the task {number} (%)")
    score = Spread.mean([80.0, 81.0])
    cells = [score] * 16
    rows = [(LONG_NAME, *cells), ("sgu", *cells)]
    table = Table(("model", *columns), rows)
    claim = Claim(f"{LONG_NAME} < sgu", HOLDS, LONG_PATH)
    report_of_paths = Report(LONG_NAME, table, [claim], LONG_PATH, [LONG_PATH])
    return page.write(report_of_paths, str(tmp_path))


@pytest.mark.slow
@WITH_BROWSER
@pytest.mark.parametrize("width", [320, 400])
def test_wide_table_scrolls_in_its_box(tmp_path, wide_page, width):
    """The page itself does not scroll, and the names of the rows leave room for the numbers."""
    with browser(str(tmp_path / "profile")) as window:
        window.resize(width)
        window.open(f"file://{wide_page}")
        needed, available = window.run(
            "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
        )
        assert needed <= available
        box, table, name = window.run(
            "const box = document.querySelector('.wide');"
            "return [box.clientWidth, box.scrollWidth, box.querySelector('td').offsetWidth]"
        )
        assert box < width < table
        assert name < box / 2


@WITH_BROWSER
@pytest.mark.parametrize(("width", "columns"), [(400, 1), (1400, 2)])
def test_panels_are_arranged_in_rows_or_a_column(opened, width, columns):
    """The panels fill their columns."""
    opened.resize(width)
    measure = (
        "return [...document.querySelectorAll('.panel svg')].map(svg =>"
        " [svg.getBoundingClientRect().left, svg.getBoundingClientRect().width])"
    )

    def is_arranged() -> bool:
        left_edges = {left for left, _ in opened.run(measure)}
        return len(left_edges) == columns

    wait_for(is_arranged)
    for _, drawn in opened.run(measure):
        assert 0.8 * width / columns < drawn + 100
        assert drawn < width / columns


@WITH_BROWSER
def test_text_stays_inside_the_chart(opened):
    """It uses the page's font instead of the one for which it was laid out."""
    opened.resize(1400)
    outside = (
        "return [...document.querySelectorAll('.panel')].flatMap(panel => {"
        " const svg = panel.querySelector('svg').getBoundingClientRect();"
        " return [...panel.querySelectorAll('svg text')].filter(text => {"
        "  const box = text.getBoundingClientRect();"
        "  return box.left < svg.left - 1 || box.right > svg.right + 1; }) }).length"
    )
    assert opened.run(outside) == 0


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_follow_the_color_scheme_of_the_page(opened, scheme):
    """Most of the page has the background's color, and the text of a chart the page's text color."""
    opened.resize(1400)
    opened.prefer(scheme)
    opened.run("document.querySelector('.panels').scrollIntoView()")
    screenshot = io.BytesIO(opened.picture())
    with Image.open(screenshot) as picture:
        histogram = picture.convert("L").histogram()  # the charts fill the window
    most_frequent = max(range(256), key=histogram.__getitem__)
    background = histogram[:64] if scheme == "dark" else histogram[192:]
    assert sum(background) / sum(histogram) > 0.8
    assert (most_frequent < 64) == (scheme == "dark")
    ink = "return getComputedStyle(document.querySelector('svg text')).fill"
    assert opened.run(ink) == opened.run("return getComputedStyle(document.body).color")
    opened.prefer("light")


@WITH_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_have_the_color_of_their_family(opened, scheme):
    opened.prefer(scheme)
    stroke = (
        "return [...document.querySelectorAll('.panel:first-child svg path')]"
        ".map(path => getComputedStyle(path).stroke)"
    )
    expected = SGU.colour if scheme == "light" else on_dark(SGU.colour)
    red, green, blue = bytes.fromhex(expected[1:])
    assert f"rgb({red}, {green}, {blue})" in opened.run(stroke)
    opened.prefer("light")


@pytest.mark.slow
def test_files_of_a_report(tmp_path):
    write_runs(tmp_path / "runs")
    made = gather("table3", tmp_path / "runs")
    folder = tmp_path / "table3"
    path = page.write(made, str(folder))
    assert path == str(tmp_path / "table3" / "index.html")
    found = {path.name: path for path in (tmp_path / "table3").iterdir()}
    figures = set()
    for kind in ("png", "svg", "pdf", "csv"):
        figures |= {f"curves.{kind}", f"places.{kind}"}
    assert set(found) == figures | {"table.md", "table.csv", "index.html"}
    # the width of a column of a paper at 200 dpi
    header = found["curves.png"].read_bytes()
    assert header[16:20] == (650).to_bytes(4, "big")
    lines = found["table.csv"].read_text().splitlines()
    rows = list(csv.reader(lines))
    assert rows[0][0] == "model"
    assert len(rows) == 5
    row = "| sgu | 0.659 | 31.0 ± 1.4 | 2 | 4.35 | +26.6 | 0.004 |"
    assert row in found["table.md"].read_text()
    curve_lines = found["curves.csv"].read_text().splitlines()
    _, first, *_ = curve_lines
    assert first.startswith("mixer,,921600,70.0")
    before = {name: path.read_bytes() for name, path in found.items()}
    again = gather("table3", tmp_path / "runs")
    page.write(again, str(tmp_path / "table3"))
    after = {name: path.read_bytes() for name, path in found.items()}
    assert after == before
