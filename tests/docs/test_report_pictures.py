"""The pictures of a report's page, as they stand in docs/ and as they are taken."""

import pytest
from PIL import Image

from docs import report_pictures
from tests.docs.browser import BROWSER, DRIVER


@pytest.mark.nightly
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH")
def test_pictures_of_a_light_and_a_dark_page(tmp_path):
    """Of the width of those in docs/; heights differ with a machine's fonts."""
    report_pictures.take(tmp_path)
    for scheme in report_pictures.SCHEMES:
        name = f"report-{scheme}.png"
        with Image.open(tmp_path / name) as taken, Image.open(f"docs/{name}") as shown:
            assert taken.width == shown.width == report_pictures.WIDTH
            assert taken.height == pytest.approx(shown.height, rel=0.1)
            corners = [picture.convert("L").getpixel((0, 0)) for picture in (taken, shown)]
        for corner in corners:
            assert (corner > 250) if scheme == "light" else (corner < 30)
