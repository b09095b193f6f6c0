import collections
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from gmlp_flax.data.images import augment
from gmlp_flax.data.images.augment import IMAGENET_POLICY, OPERATIONS, RANDAUGMENT
from tests.timm_modules import timm_module

FILL = (124, 116, 104)
MOVING = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}


class Coin:
    """A generator with a known coin: below 0.5, the sign is negated."""

    def __init__(self, negative):
        self.negative = negative

    def random(self):
        return 0.1 if self.negative else 0.9


def smooth_image(channels=3, height=32, width=40):
    """Smooth, and dark on the left: every operation changes it."""
    small = np.random.default_rng(0).integers(0, 256, (5, 6, channels), dtype=np.uint8)
    image = as_image(small).resize((width, height), Image.Resampling.BICUBIC)
    ramp = np.linspace(0.1, 0.9, width)[:, None]
    return (np.asarray(image).reshape(height, width, channels) * ramp).astype(np.uint8)


def as_image(pixels):
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def timm_name(name):
    return name + {"Posterize": "Original", "TranslateX": "Rel", "TranslateY": "Rel"}.get(name, "")


@pytest.fixture(scope="module")
def timm():
    return timm_module("data.auto_augment")


def by_timm(timm, name, image, magnitude, negative):
    hparams = {"img_mean": FILL, "interpolation": Image.Resampling.BILINEAR}
    operation = timm.AugmentOp(timm_name(name), prob=1.0, magnitude=magnitude, hparams=hparams)
    with mock.patch.object(timm.random, "random", return_value=0.9 if negative else 0.1):
        return np.asarray(operation(image))


IMAGES = st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3])).flatmap(
    # Few colours fill most of the image: some levels hardly occur, some channels have one level.
    lambda shape: hnp.arrays(
        np.uint8, shape, elements=st.integers(0, 255), fill=st.sampled_from([0, 7, 200, 255])
    )
)


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - MOVING))
@given(pixels=IMAGES, magnitude=st.sampled_from([0, 2, 4.7, 5, 8, 9, 9.9]), negative=st.booleans())
@settings(max_examples=60)
def test_levels_are_timms(timm, name, pixels, magnitude, negative):
    found = augment.apply(name, pixels, magnitude, Coin(negative), ())
    expected = by_timm(timm, name, as_image(pixels), magnitude, negative)
    np.testing.assert_array_equal(found, expected.reshape(pixels.shape))


@pytest.mark.parametrize("name", sorted(MOVING))
@pytest.mark.parametrize(
    ("magnitude", "negative"), [(2, False), (4.7, True), (9, False), (9.9, True)]
)
def test_moves_are_near_timms(timm, name, magnitude, negative):
    """Within one grey level, or more at the fill's border, which OpenCV blends."""
    pixels = smooth_image(height=160, width=224)
    found = augment.apply(name, pixels, magnitude, Coin(negative), FILL).astype(int)
    differences = np.abs(found - by_timm(timm, name, as_image(pixels), magnitude, negative))
    assert np.mean(differences <= 1) > 0.9 and differences.mean() < 2


def test_the_policy_is_timms(timm):
    policy = timm.auto_augment_policy("original", timm._HPARAMS_DEFAULT)
    rows = [[(op.name, op.prob, op.magnitude) for op in pair] for pair in policy]
    assert [[(timm_name(name), *rest) for name, *rest in pair] for pair in IMAGENET_POLICY] == rows


def test_operations_of_randaugment_are_timms(timm):
    rand = timm.rand_augment_transform("rand-m9-n2-mstd0.5-inc1", dict(timm._HPARAMS_DEFAULT))
    assert [timm_name(name) for name in RANDAUGMENT] == [op.name for op in rand.ops]
    assert rand.num_layers == 2
    assert {(op.prob, op.magnitude, op.magnitude_std) for op in rand.ops} == {
        (augment.LAYER_PROBABILITY, 9, 0.5)
    }


@pytest.fixture
def applied(monkeypatch):
    """Records (name, magnitude) of each call of `augment.apply`."""
    seen = []

    def record(name, pixels, magnitude, rng, fill):
        seen.append((name, magnitude))
        return pixels

    monkeypatch.setattr(augment, "apply", record)
    return seen


def test_frequencies_of_auto_augment(applied):
    draws, rng = 20_000, np.random.default_rng(0)
    for _ in range(draws):
        augment.auto_augment(None, rng, FILL)
    expected = collections.Counter()
    for pair in IMAGENET_POLICY:
        for name, probability, magnitude in pair:
            expected[name, magnitude] += probability / 25 * draws
    found = collections.Counter(applied)
    assert {entry for entry, count in expected.items() if count} == found.keys()
    for entry, count in expected.items():
        assert abs(found[entry] - count) < 5 * max(count, 1) ** 0.5, entry


def test_frequencies_and_severities_of_rand_augment(applied):
    draws, rng = 20_000, np.random.default_rng(0)
    for _ in range(draws):
        augment.rand_augment(None, rng, FILL, augment.Augmentation())
    names, severities = zip(*applied, strict=True)
    for name in RANDAUGMENT:
        assert abs(names.count(name) - draws / 15) < 5 * (draws / 15) ** 0.5
    # N(9, 1/2) clipped at 10, two standard deviations above.
    severities = np.array(severities)
    assert np.median(severities) == pytest.approx(9, abs=0.02) and severities.max() == 10
    assert (severities == 10).mean() == pytest.approx(0.02275, abs=0.004)
    assert (severities < 8.5).mean() == pytest.approx(0.1587, abs=0.01)
