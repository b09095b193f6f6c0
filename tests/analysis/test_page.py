"""The HTML of a report, also in a real browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.page import page
from gmlp_flax.analysis.tables import Table

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
