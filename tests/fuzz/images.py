"""Image files: JPEG, PNG, TIFF and others, whole in every kind that Pillow writes, then damaged."""

import io
import itertools

import numpy as np
from PIL import Image

from gmlp_flax.data.images import decoding, views
from gmlp_flax.data.images.views import Pixels
from tests.fuzz.damage import damaged

KINDS = (
    ("JPEG", {}),
    ("PNG", {}),
    ("TIFF", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("WEBP", {}),
    ("PPM", {}),
    ("JPEG2000", {}),
    ("TGA", {}),
    ("PCX", {}),
    ("ICO", {}),
    ("AVIF", {}),
    ("DDS", {}),
    ("SGI", {}),
    ("JPEG", {"progressive": True}),
    ("WEBP", {"lossless": True}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "jpeg"}),
)
ORIENTED = (("JPEG", 6), ("PNG", 3), ("TIFF", 8))
MODES = ("L", "RGB", "RGBA", "CMYK", "P", "1", "I;16", "I", "F", "LA", "YCbCr", "LAB")
SIZES = ((40, 33), (1, 1), (3, 90))  # height and width


def make(folder):
    files = list(whole_files())

    def check(rng):
        data = damaged(rng.choice(files), rng)
        pixels = Pixels(rng.choice((1, 3)), rng.choice((65_535, 4095, 1)))
        if rng.random() < 0.5:
            size = 8, 6
            image = decoding.decode(data, "x", pixels.channels, pixels.max_value)
            transform = rng.choice(sorted(views.TRANSFORMS))
            view = views.TRANSFORMS[transform](image, size, 0.875)
        else:
            side = rng.choice((2, 8, 64))
            size = side, side
            numbers = np.random.default_rng(rng.randrange(2**32))
            view = views.training_view(data, size, numbers, "x", pixels)
        assert view.shape == (*size, pixels.channels)
        assert view.dtype == np.uint8

    return check


def whole_files():
    """Files of every kind, size and mode that Pillow writes."""
    rng = np.random.default_rng(0)
    kinds = list(KINDS)
    for kind, orientation in ORIENTED:
        kinds.append((kind, {"exif": _exif(orientation)}))
    for size, mode in itertools.product(SIZES, MODES):
        image = _image(rng, size, mode)
        for kind, options in kinds:
            file = io.BytesIO()
            try:
                image.save(file, kind, **options)
            except (OSError, ValueError, KeyError, SystemError):  # a kind that has no such pixels
                continue
            yield file.getvalue()


def _image(rng, size, mode):
    """An image of noise."""
    if mode == "I;16":
        levels = rng.integers(0, 65536, size, np.uint16)
        return Image.fromarray(levels)
    if mode == "LAB":  # to which Pillow has no way
        bands = []
        for _ in range(3):
            levels = rng.integers(0, 256, size, np.uint8)
            bands.append(Image.fromarray(levels))
        return Image.merge("LAB", bands)
    colours = rng.integers(0, 256, (*size, 3), np.uint8)
    return Image.fromarray(colours).convert(mode)


def _exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
