"""What a look at some images tells the user."""

import numpy as np
from PIL import Image

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images import sampling
from gmlp_flax.data.images.examples import ListedImages
from tests.data.images.image_files import encoded, file_of, png


def looked_at(images) -> sampling.Sampled:
    names = [f"image {number}" for number in range(len(images))]
    dataset = Dataset("x", "a list", ListedImages(names, images))
    return sampling.sample(dataset)


def frames(kind: str, count: int) -> bytes:
    """A file of frames, each of one grey."""
    first, *others = [Image.new("L", (4, 4), 50 * number) for number in range(count)]
    return encoded(first, kind, save_all=True, append_images=others)


def wide(*pixels: int, kind: str = "PNG") -> bytes:
    """A grey image of 16 bits."""
    return file_of(np.array([pixels], np.uint16), kind)


def test_images_of_several_frames():
    images = [frames("TIFF", 3), png(1), frames("GIF", 2), frames("TIFF", 1), frames("MPO", 2)]
    found = looked_at(images)
    assert found.looked_at == 5
    assert found.animated == ("image 0", "image 2")
    (line,) = sampling.notes(found, 65_535)
    assert "2 of 5" in line
    assert "'image 0'" in line


def test_the_brightest_16_bit_pixel():
    found = looked_at([wide(0, 300), wide(4000, 17, kind="TIFF"), png(1)])
    assert found.brightest == 4000
    (line,) = sampling.notes(found, 4095)
    assert "max_value=4,095" in line
    assert "4,000" in line


def test_what_needs_no_line():
    """8 bits; images that cannot be read, which training counts; 16 bits in PGM, whose header says
    what is white."""
    portable = b"P5 2 1 4095\n" + np.array([5, 4000], ">u2").tobytes()
    pixels = np.random.default_rng(0).integers(0, 60_000, 500)
    damaged = wide(*pixels.tolist())[:800]
    found = looked_at([png(1), b"", b"no image", portable, damaged])
    assert found == (5, (), 0)
    assert sampling.notes(found, 65_535) == []


def test_pixels_in_memory_need_no_line():
    assert sampling.sample(embedded_digits("train")) == (64, (), 0)


def test_few_of_many_are_opened():
    assert looked_at([png(1)] * 1000).looked_at == 64
