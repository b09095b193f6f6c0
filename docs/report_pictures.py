"""Takes the pictures of a report's page, docs/report-light.png and docs/report-dark.png, with
Chromium (Debian and Ubuntu: apt-get install chromium chromium-driver).

python -m docs.report_pictures
"""

import tempfile
from pathlib import Path

from gmlp_flax.paper.tables import TABLES
from gmlp_flax.reports import sizes
from gmlp_flax.reports.web import page
from tests.docs.browser import Browser, browser

FOLDER = Path(__file__).parent
TABLE = "figure2"  # needs no runs
WIDTH = 1240  # pixels
SCHEMES = ("light", "dark")


def take(folder: Path) -> None:
    """Writes report-light.png and report-dark.png, the whole page, to a folder."""
    report = sizes.counts(TABLES[TABLE])
    with tempfile.TemporaryDirectory() as scratch:
        path = page.write(report, f"{scratch}/report")
        with browser(f"{scratch}/profile") as window:
            for scheme in SCHEMES:
                picture = _picture(window, path, scheme)
                (folder / f"report-{scheme}.png").write_bytes(picture)


def _picture(window: Browser, path: str, scheme: str) -> bytes:
    """A page from its top to its bottom, a PNG file."""
    window.resize(WIDTH)
    window.prefer(scheme)
    window.open(f"file://{path}")
    window.run("document.documentElement.style.overflow = 'hidden'")  # no scrollbar
    height = window.run("return document.documentElement.scrollHeight")
    window.resize(WIDTH, height)
    return window.picture()


if __name__ == "__main__":
    take(FOLDER)
