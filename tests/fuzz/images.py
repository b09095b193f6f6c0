"""Image files: JPEG, PNG, TIFF and others, whole in every kind that Pillow writes, then damaged."""

import io
import itertools

import numpy as np
from PIL import Image

from gmlp_flax.data.images import views
from tests.fuzz.damage import damaged


def make(folder):
    files = list(whole_files())

    def check(rng):
        data, channels = damaged(rng.choice(files), rng), rng.choice((1, 3))
        if rng.random() < 0.5:
            views.evaluation_view(views.decode(data, "x", channels), (8, 6))
        else:
            size = (rng.choice((2, 8, 64)),) * 2
            numbers = np.random.default_rng(rng.randrange(2**32))
            view = views.training_view(data, size, numbers, name="x", channels=channels)
            assert view.shape == (*size, channels) and view.dtype == np.uint8

    return check


def whole_files():
    rng = np.random.default_rng(0)
    kinds = [
        (kind, {})
        for kind in "JPEG PNG TIFF GIF BMP WEBP PPM JPEG2000 TGA PCX ICO AVIF DDS SGI".split()
    ]
    kinds += [("JPEG", {"progressive": True}), ("WEBP", {"lossless": True})]
    kinds += [("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"compression": "jpeg"})]
    kinds += [
        ("JPEG", {"exif": _exif(6)}),
        ("PNG", {"exif": _exif(3)}),
        ("TIFF", {"exif": _exif(8)}),
    ]
    modes = "L RGB RGBA CMYK P 1 I;16 I F LA YCbCr LAB".split()
    for size, mode in itertools.product(((40, 33), (1, 1), (3, 90)), modes):
        pixels = Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8))
        wide = Image.fromarray(rng.integers(0, 65536, size, np.uint16))
        image = wide if mode == "I;16" else pixels.convert("L" if mode == "LAB" else mode)
        for kind, options in kinds:
            file = io.BytesIO()
            try:
                image.save(file, kind, **options)
            except (OSError, ValueError, KeyError, SystemError):  # a kind that has no such pixels
                continue
            yield file.getvalue()


def _exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
