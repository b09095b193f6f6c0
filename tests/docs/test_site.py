"""The documentation site: built strictly, and looked at in a browser that has no network."""

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import threading

import pytest

from tests.docs.browser import BROWSER, DRIVER, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed (extra: docs)"
    ),
]
SEEN = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH")
MAIN = (
    "",
    "gmlp-in-five-minutes/",
    "first-run/",
    "first-run-notebook/",
    "keys/",
    "python/",
    "python/models/",
    "sizes/",
    "results/",
    "results/table3/",
    "results/which-mixer/",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(site))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A browser."""
    with browser(str(tmp_path_factory.mktemp("profile"))) as opened:
        yield opened


def pages(site) -> list[str]:
    """The addresses of all pages."""
    return sorted(str(path.parent.relative_to(site)) + "/" for path in site.rglob("index.html"))


def test_pages_and_notebooks_are_all_there(site):
    built = pages(site)
    assert {
        f"{name}/" for name in ("first-run", "first-run-notebook", "keys", "python", "results")
    } <= set(built)
    expected = sum(
        path.endswith((".md", ".ipynb")) for _, _, files in os.walk("docs") for path in files
    )
    assert len(built) == expected


@SEEN
@pytest.mark.parametrize("name", MAIN)
def test_no_errors_and_no_other_host(page, address, name):
    page.console()
    page.open(address + name)
    used = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    got = [url for url in used if not url.startswith((address, "data:", "blob:"))]
    assert got == []
    assert page.console() == []


@SEEN
@pytest.mark.nightly
@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_is_wider_than_the_window(page, site, address, width):
    page.resize(width)
    wide = []
    for name in pages(site):
        page.open(address + name)
        needed, given = page.run(
            "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
        )
        if needed > given:
            wide.append((name, needed))
    assert wide == []


@SEEN
def test_a_point_of_a_figure_says_what_it_is(page, address):
    """Which it does in its own mode; the other mode's figure is not seen."""
    page.open(address + "results/which-mixer/")
    shown = "const point = document.querySelector('.figure-{}').getBoundingClientRect(); return point.width"
    assert page.run(shown.format("light")) > 100
    assert page.run(shown.format("dark")) == 0
    said = page.run(
        "document.querySelector('.figure-light .tip').focus(); return document.querySelector('.tip-box').innerText"
    )
    assert "gmlp train --config=c4_ablation:" in said


def test_numbers_and_flags_stay_whole_and_long_names_may_wrap():
    hooks = pytest.importorskip("docs.hooks")
    assert hooks.in_lines("<p>5 M, n = 1,024, or</p>") == (
        '<p><span class="flag">5 M</span>, <span class="flag">n = 1,024</span>, or</p>'
    )
    page = '<p title="9 %">9 % and 3e-07</p><code>--a.b=x_y c_d</code><pre><code class="k">9 % c_d</code></pre>'
    assert hooks.in_lines(page) == (
        '<p title="9 %"><span class="flag">9 %</span> and <span class="flag">3e-07</span></p>'
        '<code><span class="flag">--a.<wbr>b</span>=x_<wbr>y c_<wbr>d</code>'
        '<pre><code class="k">9 % c_d</code></pre>'
    )


@SEEN
def test_no_code_of_the_notebook_hides_on_a_narrow_screen(page, address):
    page.resize(400)
    page.open(address + "first-run-notebook/")
    hidden = page.run(
        "return [...document.querySelectorAll('.highlight-ipynb')].map(box => box.scrollWidth - box.clientWidth)"
    )
    assert hidden
    assert set(hidden) == {0}
