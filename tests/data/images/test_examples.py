import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gmlp_flax.data import pipeline
from gmlp_flax.data.images import views
from gmlp_flax.data.images.sources import UNREAD, ReadableExamples
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.data.images.image_files import encoded, noise
from tests.failures import raised

PIXELS = noise(6, 8, 3)
PNG = encoded(Image.fromarray(PIXELS))


@pytest.mark.parametrize("image", [PNG, PIXELS])
def test_an_image_of_the_models_size_is_read_as_it_is(image):
    record = {"image": image, "label": 3, "name": "a.png"}
    found = views.evaluation_example(record, size=(6, 8), channels=3, eval_crop=1.0)
    np.testing.assert_array_equal(found["image"], PIXELS)
    assert found["label"] == 3


def test_without_crop_training_sees_the_image_or_its_mirror_image():
    square = noise(8, 8, 3)
    record, size = (
        {"image": square, "label": 1, "name": "a.png"},
        {"size": (8, 8), "channels": 3, "min_scale": 1.0},
    )
    mirrored = 0
    for seed in range(20):
        plain, flipped = (
            views.training_example(record, np.random.default_rng(seed), flip=flip, **size)["image"]
            for flip in (False, True)
        )
        np.testing.assert_array_equal(plain, square)
        changed = not np.array_equal(flipped, square)
        np.testing.assert_array_equal(flipped, square[:, ::-1] if changed else square)
        mirrored += changed
    assert 3 < mirrored < 17


def test_what_a_user_gives(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    assert views.record_of(path, 3) == {"image": PNG, "name": str(path), "label": 0}
    np.testing.assert_array_equal(views.record_of(PIXELS, 3)["image"], PIXELS)
    for wrong in (PIXELS.astype(np.int32) - 300, PIXELS[None], PIXELS[0, 0]):
        with pytest.raises(DataError):
            views.record_of(wrong, 3)


class Numbers:
    """Items 0, 1, ...; the places in `damaged` raise BadRecord, the records in `wrong` do not
    decode."""

    classes, path = ("a",), "numbers"

    def __init__(self, count, damaged=(), wrong=()):
        self.count, self.damaged, self.wrong = count, damaged, wrong

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.damaged:
            raise BadRecord(f"item {index} is damaged")
        return {
            "x": -1 if index in self.wrong else index,
            "name": f"item {index}",
            "extra": 10 * index,
        }


def decoded(record, *rng):
    noise = rng[0].random() if rng else 0.0
    if record["x"] < 0:
        raise DataError(f"{record['name']} does not decode")
    return {"x": record["x"], "label": np.int32(0), "noise": noise}


def readable(source, limit=100, **options):
    return ReadableExamples(source, decoded, BadRecords(limit), **options)


def train(source, limit=100, count=6, **options):
    found = readable(source, limit)
    options = {"seed": 0, "start": 0, "batch_size": 4, **options}
    with pipeline.train_batches(range(len(found)), transform=found.train, **options) as batches:
        return list(itertools.islice(batches, count))


@given(
    st.integers(1, 12), st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)), st.integers(0, 11)
)
@settings(max_examples=60)
def test_the_next_readable_one_stands_in(count, damaged, wrong, start):
    """The replacement does not depend on what was read before, and draws the random numbers of the
    place."""
    start %= count
    bad = {place % count for place in damaged | wrong}
    source = Numbers(count, {place % count for place in damaged}, bad)
    if len(bad) == count:
        with pytest.raises(DataError, match=f"not one of {count} images can be read"):
            readable(source)[start]
        return
    expected = next(
        place % count for place in range(start, start + count) if place % count not in bad
    )
    fresh, used = readable(source), readable(source)
    for place in range(count):
        used[place]
    noise = np.random.default_rng(7).random()
    for found in (fresh, used):
        example = found[start]
        assert (example["x"], example["label"]) == (expected, UNREAD if start in bad else 0)
        example = found.train(start, np.random.default_rng(7))
        assert (example["x"], example["label"], example["noise"]) == (expected, 0, noise)


def test_batches_with_bad_records_resume_and_do_not_depend_on_hosts():
    source = Numbers(13, {2, 3}, {7})
    whole = train(source)
    seen = {int(x) for batch in whole for x in batch["x"]}
    assert not seen & {2, 3, 7} and {4, 8} <= seen
    for name in ("x", "noise"):
        resumed = train(source, start=4, count=2)
        assert [b[name].tolist() for b in resumed] == [b[name].tolist() for b in whole[4:]]
        halves = [train(source, host=host, hosts=2, count=6) for host in range(2)]
        for batch, first, second in zip(whole, *halves, strict=True):
            assert sorted(batch[name]) == sorted([*first[name], *second[name]])


def test_limit_is_of_different_records(capfd):
    source = Numbers(10, {1}, {5})
    # threads of another test's batches, which are closed, may still be reading
    source.path = "limited"
    train(source, limit=2, count=20)
    said = sorted(line for line in capfd.readouterr().err.splitlines() if "limited" in line)
    assert (
        len(said) == 2
        and said[0].endswith("item 1 is damaged")
        and said[1].endswith("item 5 does not decode")
    )
    with pytest.raises(
        DataError, match=r"^limited: item [15] .*1 bad records skipped before; max_bad_records=1:"
    ):
        train(source, limit=1, count=20)
    assert "0 bad records skipped before; max_bad_records=0:" in raised(
        DataError, train, source, limit=0, count=20
    )


def test_errors_of_the_whole_source_stop_at_once():
    class Broken(Numbers):
        def __getitem__(self, index):
            raise DataError("the disk is gone")

    with pytest.raises(DataError, match="^the disk is gone$"):
        readable(Broken(3))[0]


def test_more_than_the_limit_is_always_refused():
    """By threads that meet them at the same time, and again when they are met again; as a copy has
    them."""
    bad = BadRecords(2)
    for message in ("one", "one", "two"):
        bad.skip(message)
    for message in ("three", "four", "one"):
        with pytest.raises(DataError, match=rf"^{message} \(2 bad records skipped before; .*=2: "):
            bad.skip(message)
    with pytest.raises(DataError):
        pickle.loads(pickle.dumps(bad)).skip("five")
