"""The pages: what is in them, and what they do in a real browser that has no network."""

from __future__ import annotations

import json
import re

import plotly.graph_objects as plotly
import pytest

from gmlp_flax.analysis.charts import Chart, Panel, Scale, Series
from gmlp_flax.analysis.drawing import looks
from gmlp_flax.reports import files, page
from gmlp_flax.reports.claims import HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Setting
from gmlp_flax.reports.table import Spread, Table
from tests.docs.browser import BROWSER, DRIVER, browser, wait_for

SEEN = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH")
SGU, LINEAR, BERT = looks(["gMLP", "gMLP", "Transformer"])


def report():
    """A report with everything: claims, a fold, footnotes, a chart of two panels."""
    table = Table(
        ("model", "perplexity", "rate"),
        [
            ("sgu", Spread(57.08, (55.0, 59.16)), 0.5),
            ("linear & <co>", Spread(9.5, (9.5,)), None),
            ("bert", Spread(100.0, (99.0, 101.0)), 2.0),
        ],
        {"sgu": ["an aside"]},
    )
    tokens = [1e5, 1e6, 2e6]
    series = [
        Series("sgu", SGU, tokens, [400.0, 80.0, 57.0], [390.0, 78.0, 55.0], [410.0, 82.0, 59.0]),
        Series("linear", LINEAR, tokens, [300.0, 20.0, 9.5]),
        Series("bert", BERT, tokens, [500.0, 150.0, 100.0]),
    ]
    sizes = [
        Series(
            "gMLP",
            SGU,
            [0.5, 1.0],
            [80.0, 60.0],
            [79.0, 58.0],
            [81.0, 62.0],
            ["18", "36"],
            joined=False,
            band=False,
            fit=[80.0, 60.0],
        )
    ]
    chart = Chart(
        [
            Panel("linear ends lowest", Scale("tokens"), Scale("perplexity", log=True), series, [("none", 300.0)]),
            Panel("falls", Scale("M parameters", log=True), Scale("perplexity", log=True), sizes),
        ],
        "Bands are seeds.",
    )
    claims = [Claim("a < b", HOLDS, "since 3"), Claim("b < c", REVERSED), Claim("c < d", OPEN)]
    return Report(
        "A <title>",
        table,
        claims,
        [Claim("a < d", HOLDS)],
        Setting("cpu", "sgu", [("steps", "9", "100")]),
        ["a & b"],
        {"curves": chart},
        {"what it costs": Table(("model", "ms"), [("sgu", Spread(3.0, (2.5, 3.0, 3.5)))], over="repeats")},
    )


@pytest.fixture
def text():
    return page.of_report(report(), page.LIBRARY)


def test_no_network_and_everything_escaped(text):
    assert re.findall(r'(?:src|href)="((?!data:|#)[^"]*)"', text) == [
        "curves.svg",
        "curves.png",
        "curves.svg",
        "curves.pdf",
        "curves.csv",
        "plotly.min.js",
    ]
    assert all(part in text for part in ("<title>A &lt;title&gt;<", "<li>a &amp; b</li>", "linear &amp; &lt;co&gt;"))
    assert "<\\" not in text and text.count("</script>") == 5


def test_claims_are_coloured_rows_above_the_table(text):
    rows = '<li class="holds">a &lt; b', '<li class="reversed">', '<li class="open">'
    order = (*rows, "The other 1 orderings", "<table")
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert "Scale cpu: 1 settings are smaller than the paper" in text and "<td>steps</td><td>9</td><td>100</td>" in text


def test_cells_and_footnotes(text):
    assert '<td data-key="57.08" title="seeds: 55.0, 59.2">57.1 ± 2.9</td>' in text and '<td data-key=""></td>' in text
    assert '<sup><a href="#note-1">1</a></sup>' in text and '<li id="note-1">an aside</li>' in text


def test_a_page_without_charts_needs_no_library():
    plain = page.of_report(Report("A", Table(("a",), [("b",)])), page.LIBRARY)
    assert "plotly" not in re.findall(r'src="([^"]*)"', plain) and "<figure" not in plain


def test_the_index():
    entries = [page.Entry("table3", "T < 3", report().claims, "curves"), page.Entry("b", "B", (), "")]
    text = page.of_site("All", entries, {"c": "no"})
    assert '<a href="table3/index.html">T &lt; 3</a>' in text and 'src="table3/curves.svg"' in text
    assert "1 hold<" in text and "1 reversed<" in text and "<b>c</b>: no" in text


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A browser on the report's page, opened from disk; downloads go to the second folder."""
    folder, downloads = tmp_path_factory.mktemp("report"), tmp_path_factory.mktemp("downloads")
    path = files.write(report(), str(folder))
    with browser(str(tmp_path_factory.mktemp("profile"))) as made:
        made.resize(1400)
        made.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        made.open(f"file://{path}")
        wait_for(lambda: made.run("return document.querySelectorAll('.plot .annotation-text').length >= 4"))
        yield made, downloads
        assert made.console() == []


def names(made):
    """The first cell of each row of the first table that is shown."""
    rows = "[...document.querySelector('section.table').querySelectorAll('tbody tr')].filter(row => !row.hidden)"
    return made.run(f"return {rows}.map(row => row.cells[0].dataset.key)")


def press(made, text, place=0):
    """Clicks a button of a panel."""
    made.run(
        f"[...document.querySelectorAll('.panel')[{place}].querySelectorAll('button')]"
        f".find(button => button.textContent === '{text}').click()"
    )


def visible(made):
    """Names of the lines that are drawn in the first panel."""
    drawn = "document.querySelector('.plot').data.filter(trace => trace.name && trace.visible !== false)"
    return made.run(f"return {drawn}.map(trace => trace.name)")


def labels(made):
    """Words at the ends of lines in the first panel."""
    words = "[...document.querySelector('.plot').querySelectorAll('.annotation-text')]"
    return made.run(f"return {words}.map(text => text.textContent)")


def downloaded(downloads, name):
    """The content of a file once it is there."""
    return wait_for(lambda: (downloads / name).exists() and (downloads / name).read_bytes())


@SEEN
def test_a_click_sorts_by_all_digits(opened):
    made, _ = opened
    head = "document.querySelectorAll('th')[3 + {}].firstChild.click()"  # three columns of the settings come first
    made.run(head.format(1))
    assert names(made) == ["linear & <co>", "sgu", "bert"]
    made.run(head.format(1))
    assert names(made) == ["bert", "sgu", "linear & <co>"]
    for _ in range(2):  # the empty cell last in either order
        made.run(head.format(2))
        assert names(made)[-1] == "linear & <co>"


@SEEN
def test_words_filter_rows(opened):
    made, downloads = opened
    made.type("section.table input", "SG 57")
    assert names(made) == ["sgu"]
    made.run("""
        const input = document.querySelector('section.table input');
        input.value = '';
        input.dispatchEvent(new Event('input'));""")
    assert len(names(made)) == 3
    made.run("document.querySelector('section.table .csv').click()")
    assert downloaded(downloads, "table.csv").decode() == report().table.csv()


@SEEN
def test_a_second_table_is_a_file_of_its_own(opened):
    made, downloads = opened
    made.run("document.querySelectorAll('section.table .csv')[1].click()")
    found = downloaded(downloads, "table-what-it-costs.csv").decode()
    assert found == "model,ms,ms deviation,ms lowest,ms highest,ms repeats\nsgu,3.0,0.5,2.5,3.5,3\n"


def test_tables_have_headings_and_say_what_their_spread_is_over(text):
    first, second = text.split("<h2>What it costs</h2>")
    assert "\u00b1 is the standard deviation between seeds; the number" in first
    assert (
        "\u00b1 is the standard deviation between repeats; the number" in second
        and 'title="repeats: 2.50, 3.00, 3.50"' in second
    )


@SEEN
def test_a_point_tells_its_values_under_the_mouse(opened):
    made, _ = opened
    x, y = made.run("""
        const plot = document.querySelector('.plot');
        plot.scrollIntoView({ block: 'center' });
        const sgu = plot.querySelector('.scatterlayer .trace:has(.point)');
        const box = sgu.querySelectorAll('.point')[1].getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];""")
    for step in (5, 0):
        made.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)
    told = wait_for(lambda: made.run("return document.querySelector('.plot .hoverlayer').textContent"))
    assert told == "sgu80.0 (78.0 to 82.0)1 M tokens"


@SEEN
def test_series_are_toggled(opened):
    made, _ = opened
    assert visible(made) == ["sgu", "linear", "bert"] and labels(made) == ["sgu", "linear", "bert", "none"]
    press(made, "linear")
    wait_for(lambda: visible(made) == ["sgu", "bert"] and labels(made) == ["sgu", "bert", "none"])
    press(made, "linear")
    wait_for(lambda: visible(made) == ["sgu", "linear", "bert"])
    made.run("document.querySelector('.chip').dispatchEvent(new Event('dblclick'))")
    wait_for(lambda: visible(made) == ["sgu"])
    for name in ("linear", "bert"):
        press(made, name)
    wait_for(lambda: len(labels(made)) == 4)


@SEEN
def test_axes_switch_and_zoom(opened):
    made, _ = opened
    ticks = "return [...document.querySelector('.plot').querySelectorAll('.ytick text')].map(text => text.textContent)"
    assert made.run(ticks) == ["10", "20", "50", "100", "200", "500"]
    press(made, "log y")
    wait_for(lambda: made.run("return document.querySelector('.plot').layout.yaxis.type") == "linear")
    wait_for(lambda: "400" in made.run(ticks))
    press(made, "log y")
    wait_for(lambda: made.run(ticks) == ["10", "20", "50", "100", "200", "500"])
    made.run("Plotly.relayout(document.querySelector('.plot'), { 'yaxis.range': [1.75, 1.8] })")
    wait_for(lambda: made.run(ticks) == ["58", "60", "62"])
    press(made, "whole view")
    wait_for(lambda: made.run(ticks) == ["10", "20", "50", "100", "200", "500"])


@SEEN
def test_charts_are_downloaded_as_png_and_csv(opened):
    made, downloads = opened
    press(made, "CSV")
    lines = downloaded(downloads, "curves-1.csv").decode().splitlines()
    assert lines[:2] == ["series,label,tokens,perplexity,lowest,highest", "sgu,,100000,400,390,410"]
    assert len(lines) == 10
    press(made, "PNG", 1)
    assert downloaded(downloads, "curves-2.png").startswith(b"\x89PNG")


@SEEN
def test_what_plotly_is_given_is_what_it_knows(opened):
    """plotly.py knows every property and its values."""
    made, _ = opened
    for place in range(2):
        plot = f"document.querySelectorAll('.plot')[{place}]"
        plotly.Figure(*made.run(f"return JSON.parse(JSON.stringify([{plot}.data, {plot}.layout]))"))


@SEEN
@pytest.mark.parametrize("width", [400, 1200, 1400])
def test_the_page_is_as_wide_as_the_window(opened, width):
    made, _ = opened
    made.resize(width)
    root = "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
    plot, panel = "document.querySelector('.plot').layout.width", "document.querySelector('.panel').clientWidth"
    wait_for(lambda: made.run(f"return {plot} === {panel}"))
    needed, given = made.run(root)
    assert needed <= given
    if width > 400:
        table = made.run("const wide = document.querySelector('.wide'); return [wide.scrollWidth, wide.clientWidth]")
        assert table[0] <= table[1]


@SEEN
def test_without_the_library_a_page_shows_images(tmp_path):
    path = files.write(report(), str(tmp_path / "report"))
    (tmp_path / "report" / page.LIBRARY).unlink()
    with browser(str(tmp_path / "profile")) as made:
        made.open(f"file://{path}")
        assert made.run("return document.querySelector('figure img').getBoundingClientRect().width") > 300
        assert names(made) == ["sgu", "linear & <co>", "bert"]


def test_values_of_a_chart_are_in_the_page(text):
    [found] = re.findall(r'<script type="application/json">(\[.*?)</script>', text)
    first, second = json.loads(found)
    assert first["title"] == "linear ends lowest" and first["series"][0]["low"] == [390.0, 78.0, 55.0]
    assert first["series"][0]["look"] == list(SGU[:2]) + [[]] and second["series"][0]["labels"] == ["18", "36"]
    assert first["series"][0]["ink"] == SGU.text
