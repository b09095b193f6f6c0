import collections
import io
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageEnhance, ImageOps

from gmlp_flax.data.images import auto_augment
from gmlp_flax.data.images.auto_augment import IMAGENET_POLICY, OPERATIONS, POLICIES, RANDAUGMENT, V0_POLICY
from tests.timm_modules import timm_module

FILL = (124, 116, 104)


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


def enhancement(kind, offset=0):
    return lambda image, factor: kind(image).enhance(factor + offset)


# Each operation on levels, by Pillow, with the operation's argument.
PILLOW = {
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
    **dict.fromkeys(("Posterize", "PosterizeV0", "PosterizeIncreasing"), ImageOps.posterize),
    **dict.fromkeys(("Solarize", "SolarizeIncreasing"), ImageOps.solarize),
    "SolarizeAdd": lambda image, added: image.point(lambda level: min(255, level + added) if level < 128 else level),
    **{name: enhancement(getattr(ImageEnhance, name)) for name in ("Color", "Contrast", "Sharpness")},
    **{
        f"{name}Increasing": enhancement(getattr(ImageEnhance, name), 1)
        for name in ("Color", "Contrast", "Brightness", "Sharpness")
    },
}
# Their arguments at magnitudes 0, 5 and 10, with a positive sign.
ARGUMENTS = {
    "Posterize": (4, 6, 8),
    "PosterizeV0": (0, 2, 4),
    "PosterizeIncreasing": (4, 2, 0),
    "Solarize": (0, 128, 256),
    "SolarizeIncreasing": (256, 128, 0),
    "SolarizeAdd": (0, 55, 110),
    **dict.fromkeys(("Color", "Contrast", "Sharpness"), (0.1, 1.0, 1.9)),
    **{f"{name}Increasing": (0.0, 0.45, 0.9) for name in ("Color", "Contrast", "Brightness", "Sharpness")},
}


def test_arguments():
    moving = {"Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"}
    assert PILLOW.keys() | moving == OPERATIONS.keys() and not PILLOW.keys() & moving
    for name in PILLOW:
        argument = OPERATIONS[name].argument
        found = argument and tuple(map(argument, (0, 0.5, 1)))
        assert found == (pytest.approx(ARGUMENTS[name]) if name in ARGUMENTS else None), name


def by_pillow(name, image, magnitude):
    """Black if no bits are kept, which Pillow refuses."""
    argument = OPERATIONS[name].argument
    value = argument and argument(magnitude / 10)
    return Image.new(image.mode, image.size) if "Posterize" in name and not value else PILLOW[name](image, value)


IMAGES = st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3])).flatmap(
    # Few colours fill most of the image: some levels hardly occur, some channels have one level.
    lambda shape: hnp.arrays(np.uint8, shape, elements=st.integers(0, 255), fill=st.sampled_from([0, 7, 200, 255]))
)


@pytest.mark.parametrize("name", PILLOW)
@given(pixels=IMAGES, magnitude=st.floats(0, 10))
@settings(deadline=None, max_examples=40)
def test_pixels_are_pillows(name, pixels, magnitude):
    found = auto_augment.apply(name, pixels, magnitude, Coin(False), ())
    expected = by_pillow(name, as_image(pixels), magnitude)
    np.testing.assert_array_equal(found, np.asarray(expected).reshape(pixels.shape))


def test_signs():
    pixels = smooth_image()
    brighter, darker = (
        auto_augment.apply("BrightnessIncreasing", pixels, 5, Coin(negative), FILL) for negative in (0, 1)
    )
    np.testing.assert_allclose(darker, 0.55 * pixels, atol=1)
    np.testing.assert_allclose(brighter, (1.45 * pixels).clip(0, 255), atol=1)


@pytest.mark.parametrize("channels", [1, 3])
def test_translations(channels):
    """Magnitude 10 moves by 0.45 of the side: 18 of 40 columns, and 9 of 20 rows."""
    fill, pixels = FILL[:channels], smooth_image(channels, 20, 40)
    for name, shift, axis in (("TranslateX", 18, 1), ("TranslateY", 9, 0)):
        for negative in (False, True):
            found = auto_augment.apply(name, pixels, 10, Coin(negative), fill)
            moved = np.roll(pixels, shift if negative else -shift, axis)
            new = np.arange(pixels.shape[axis]) < shift
            new = new if negative else new[::-1]
            expected = np.where(np.expand_dims(new, (1 - axis, 2)), fill, moved)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name, axis", [("ShearX", 1), ("ShearY", 0)])
def test_shears(name, axis):
    """Magnitude 10/3 shears by a tenth: line i, with its middle at i + 1/2, moves by (i + 1/2) / 10."""
    ramp = np.broadcast_to(np.arange(0, 200, 5, dtype=np.uint8), (40, 40))
    ramp = ramp if axis == 1 else ramp.T
    found = auto_augment.apply(name, ramp[..., None], 10 / 3, Coin(False), (0,))[..., 0].astype(float)
    found = found if axis == 1 else found.T
    lines, places = np.mgrid[:40, :40]
    inside = places + (lines + 0.5) / 10 < 37
    np.testing.assert_allclose(found[inside], (5 * (places + (lines + 0.5) / 10))[inside], atol=1.5)


def test_rotation():
    """Magnitude 10 rotates by 30 degrees, counterclockwise: pixels right of the middle move up."""
    pixels = np.full((61, 61), 50, np.uint8)
    pixels[28:33, 48:53] = 250
    found = auto_augment.apply("Rotate", pixels[..., None], 10, Coin(False), (7,))[..., 0]
    rows, columns = np.nonzero(found > 150)
    angle = np.deg2rad(30)
    assert rows.mean() == pytest.approx(30 - 20 * np.sin(angle), abs=0.3)
    assert columns.mean() == pytest.approx(30 + 20 * np.cos(angle), abs=0.3)
    assert found[0, 0] == found[-1, -1] == 7 and found[30, 30] == 50


def timm_name(name):
    others = {
        "Posterize": "PosterizeOriginal",
        "PosterizeV0": "Posterize",
        "TranslateX": "TranslateXRel",
        "TranslateY": "TranslateYRel",
    }
    return others.get(name, name)


@pytest.fixture
def timm():
    return timm_module("data.auto_augment")


@pytest.fixture
def photographs(shared_data):
    with tarfile.open(shared_data("images/imagenet_sample_100.tar")) as tar:
        members = [member for member in tar if member.isfile()][:6]
        images = [Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB") for member in members]
    return [image.resize((224, 160)) for image in images]


def assert_as_timm(timm, monkeypatch, images):
    """To the bit, except for geometry: one grey level, or more at the fill's border, which OpenCV blends."""
    hparams = {"img_mean": FILL, "interpolation": Image.Resampling.BILINEAR}
    for name in OPERATIONS:
        for place, magnitude in enumerate((0, 2, 4.7, 8, 9, 9.9)):
            negative = place % 2 == 1
            monkeypatch.setattr(timm.random, "random", lambda negative=negative: 0.9 if negative else 0.1)
            theirs = timm.AugmentOp(timm_name(name), prob=1.0, magnitude=magnitude, hparams=hparams)
            image = images[place % len(images)]
            found = auto_augment.apply(name, np.asarray(image), magnitude, Coin(negative), FILL)
            if name == "PosterizeV0" and magnitude < 2.5:  # keeps no bits, which Pillow refuses
                assert not found.any()
                continue
            differences = np.abs(found.astype(int) - np.asarray(theirs(image), int))
            if name.startswith(("Rotate", "Shear", "Translate")):
                assert np.mean(differences <= 1) > 0.9 and differences.mean() < 2, f"{name} {magnitude}"
            else:
                assert not differences.any(), f"{name} {magnitude}"


def test_operations_as_timm(timm, monkeypatch, photographs):
    assert_as_timm(timm, monkeypatch, [*photographs, as_image(smooth_image(height=57, width=31))])


def test_policy():
    assert len(IMAGENET_POLICY) == 25 and all(len(pair) == 2 for pair in IMAGENET_POLICY)
    flat = [entry for pair in IMAGENET_POLICY for entry in pair]
    assert collections.Counter(name for name, *_ in flat) == {
        "Equalize": 17,
        "Solarize": 7,
        "Color": 6,
        "Rotate": 6,
        "Posterize": 5,
        "Invert": 3,
        "AutoContrast": 2,
        "Contrast": 2,
        "Sharpness": 1,
        "ShearX": 1,
    }
    assert len(RANDAUGMENT) == len(set(RANDAUGMENT)) == 15 and set(RANDAUGMENT) <= OPERATIONS.keys()


def test_policy_v0():
    """Three rows by hand, and how often each operation occurs; the magnitudes are those of levels 0 to 10."""
    assert len(V0_POLICY) == 25 and all(len(pair) == 2 for pair in V0_POLICY)
    assert V0_POLICY[0] == (("Equalize", 0.8, 1), ("ShearY", 0.8, 4))
    assert V0_POLICY[15] == (("Rotate", 1.0, 7), ("TranslateY", 0.8, 9))
    assert V0_POLICY[22] == (("PosterizeV0", 0.8, 2), ("Solarize", 0.6, 10))
    flat = [entry for pair in V0_POLICY for entry in pair]
    assert collections.Counter(name for name, *_ in flat) == {
        "Equalize": 12,
        "Color": 9,
        "Solarize": 8,
        "Rotate": 7,
        "ShearY": 4,
        "ShearX": 2,
        "SolarizeAdd": 2,
        "PosterizeV0": 2,
        "AutoContrast": 2,
        "Invert": 1,
        "TranslateY": 1,
    }
    assert {name for name, *_ in flat} <= OPERATIONS.keys()


@pytest.mark.parametrize(("theirs", "ours"), [("original", "autoaugment"), ("v0", "autoaugment_v0")])
def test_policies_are_timms(timm, theirs, ours):
    policy = timm.auto_augment_policy(theirs, timm._HPARAMS_DEFAULT)
    rows = [[(op.name, op.prob, op.magnitude) for op in pair] for pair in policy]
    assert [[(timm_name(name), *rest) for name, *rest in pair] for pair in POLICIES[ours]] == rows


def test_operations_of_randaugment_are_timms(timm):
    rand = timm.rand_augment_transform("rand-m9-n2-mstd0.5-inc1", dict(timm._HPARAMS_DEFAULT))
    assert [timm_name(name) for name in RANDAUGMENT] == [op.name for op in rand.ops]
    assert rand.num_layers == 2
    assert {(op.prob, op.magnitude, op.magnitude_std) for op in rand.ops} == {(auto_augment.LAYER_PROBABILITY, 9, 0.5)}


@pytest.fixture
def applied(monkeypatch):
    """Records (name, magnitude) of each call of `auto_augment.apply`."""
    seen = []

    def record(name, pixels, magnitude, rng, fill):
        seen.append((name, magnitude))
        return pixels

    monkeypatch.setattr(auto_augment, "apply", record)
    return seen


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_frequencies_of_auto_augment(applied, policy):
    draws, rng = 20_000, np.random.default_rng(0)
    for _ in range(draws):
        auto_augment.auto_augment(None, rng, FILL, policy)
    expected = collections.Counter()
    for pair in policy:
        for name, probability, magnitude in pair:
            expected[name, magnitude] += probability / 25 * draws
    found = collections.Counter(applied)
    assert {entry for entry, count in expected.items() if count} == found.keys()
    for entry, count in expected.items():
        assert abs(found[entry] - count) < 5 * max(count, 1) ** 0.5, entry


def test_frequencies_and_severities_of_rand_augment(applied):
    draws, rng = 20_000, np.random.default_rng(0)
    for _ in range(draws):
        auto_augment.rand_augment(None, rng, FILL, layers=2, magnitude=9, std=0.5)
    names, severities = zip(*applied, strict=True)
    for name in RANDAUGMENT:
        assert abs(names.count(name) - draws / 15) < 5 * (draws / 15) ** 0.5
    # N(9, 1/2) clipped at 10, two standard deviations above.
    severities = np.array(severities)
    assert np.median(severities) == pytest.approx(9, abs=0.02) and severities.max() == 10
    assert (severities == 10).mean() == pytest.approx(0.02275, abs=0.004)
    assert (severities < 8.5).mean() == pytest.approx(0.1587, abs=0.01)
