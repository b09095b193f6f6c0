"""The pictures of a report's page in docs/, compared with new ones."""

import pytest
from PIL import Image

from docs import report_pictures
from tests.docs.browser import BROWSER, DRIVER


@pytest.mark.nightly
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver on PATH")
def test_pictures_of_a_light_and_a_dark_page(tmp_path):
    """Heights differ with a machine's fonts."""
    report_pictures.take(tmp_path)
    for scheme in report_pictures.SCHEMES:
        name = f"report-{scheme}.png"
        new = Image.open(tmp_path / name).convert("L")
        documented = Image.open(f"docs/{name}").convert("L")
        assert new.width == documented.width == report_pictures.WIDTH
        assert new.height == pytest.approx(documented.height, rel=0.1)
        for picture in (new, documented):
            corner = picture.getpixel((0, 0))
            if scheme == "light":
                assert corner > 250
            else:
                assert corner < 30
