"""The documentation site: built strictly, and looked at in a browser that has no network."""

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.docs.browser import BROWSER, DRIVER, browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed (extra: docs)"
    ),
]
NEEDS_BROWSER = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH"
)
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
    """Serves a folder, and logs nothing."""

    def log_message(self, *_):
        """Logs nothing."""


@pytest.fixture(scope="module")
def address(site):
    """The address at which the site is served."""
    handler = functools.partial(Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
    addresses = []
    for path in site.rglob("index.html"):
        folder = path.parent.relative_to(site)
        addresses.append(f"{folder}/")
    return sorted(addresses)


def test_every_page_and_notebook_is_built(site):
    built = pages(site)
    assert {"first-run/", "first-run-notebook/", "keys/", "python/", "results/"} <= set(built)
    sources = [*Path("docs").rglob("*.md"), *Path("docs").rglob("*.ipynb")]
    assert len(built) == len(sources)


@NEEDS_BROWSER
@pytest.mark.parametrize("name", MAIN)
def test_pages_have_no_errors_and_use_no_other_host(page, address, name):
    page.console()
    page.open(address + name)
    urls = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    external = [url for url in urls if not url.startswith((address, "data:", "blob:"))]
    assert external == []
    assert page.console() == []


@NEEDS_BROWSER
@pytest.mark.nightly
@pytest.mark.parametrize("width", [400, 805, 1400])
def test_no_page_is_wider_than_the_window(page, site, address, width):
    page.resize(width)
    wide = []
    for name in pages(site):
        page.open(address + name)
        page_width, window_width = page.run(
            "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
        )
        if page_width > window_width:
            wide.append((name, page_width))
    assert wide == []


@NEEDS_BROWSER
def test_focused_points_of_a_figure_show_their_tip(page, address):
    """The figure of the other mode is hidden."""
    page.open(address + "results/which-mixer/")
    assert width_of(page, ".figure-light") > 100
    assert width_of(page, ".figure-dark") == 0
    page.run("document.querySelector('.figure-light .tip').focus()")
    tip = page.run("return document.querySelector('.tip-box').innerText")
    assert "gmlp train --config=c4_ablation:" in tip


def width_of(page, selector):
    """The width in pixels of the first such element."""
    return page.run(f"return document.querySelector('{selector}').getBoundingClientRect().width")


def test_numbers_and_flags_do_not_wrap_but_long_names_may():
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


@NEEDS_BROWSER
def test_code_of_the_notebook_is_fully_visible_on_a_narrow_screen(page, address):
    page.resize(400)
    page.open(address + "first-run-notebook/")
    overflows = page.run(
        "const boxes = [...document.querySelectorAll('.highlight-ipynb')];"
        "return boxes.map(box => box.scrollWidth - box.clientWidth)"
    )
    assert overflows
    assert set(overflows) == {0}
