"""Notes for the user on a sample of the images."""

import numpy as np
from PIL import Image

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images import sampling
from gmlp_flax.data.images.examples import ListedImages
from tests.data.images.image_files import encoded, file_of, png


def sampled(images) -> sampling.Sampled:
    names = [f"image {number}" for number in range(len(images))]
    dataset = Dataset("x", "a list", ListedImages(names, images))
    return sampling.sample(dataset)


def frames(kind: str, count: int) -> bytes:
    """A file of frames, each of one grey."""
    images = []
    for number in range(count):
        image = Image.new("L", (4, 4), 50 * number)
        images.append(image)
    first, *others = images
    return encoded(first, kind, save_all=True, append_images=others)


def wide(*pixels: int, kind: str = "PNG") -> bytes:
    """A grey image of 16 bits."""
    row = np.array([pixels], np.uint16)
    return file_of(row, kind)


def test_images_with_several_frames_are_noted():
    images = [
        frames("TIFF", 3),
        png(1),
        frames("GIF", 2),
        frames("TIFF", 1),
        frames("MPO", 2),
    ]
    found = sampled(images)
    assert found.looked_at == 5
    assert found.animated == ("image 0", "image 2")
    (line,) = sampling.notes(found, 65_535)
    assert "2 of 5" in line
    assert "'image 0'" in line


def test_the_brightest_16_bit_pixel_is_noted():
    found = sampled([wide(0, 300), wide(4000, 17, kind="TIFF"), png(1)])
    assert found.brightest == (300, 4000)
    (line,) = sampling.notes(found, 4095)
    assert "max_value=4,095" in line
    assert "4,000" in line


def test_other_images_need_no_note():
    """Images of 8 bits, unreadable images, which training counts, and 16 bits in PGM, whose header
    says what is white."""
    portable = b"P5 2 1 4095\n" + np.array([5, 4000], ">u2").tobytes()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 60_000, 500)
    damaged = wide(*pixels.tolist())[:800]
    found = sampled([png(1), b"", b"no image", portable, damaged])
    assert found == (5, (), ())
    assert sampling.notes(found, 65_535) == []


def test_pixels_in_memory_need_no_note():
    digits = embedded_digits("train")
    assert sampling.sample(digits) == (64, (), ())


def test_only_a_sample_of_many_images_is_opened():
    found = sampled([png(1)] * 1000)
    assert found.looked_at == 64
