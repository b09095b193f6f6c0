"""Images as examples: unreadable images are replaced, counted, and limited."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gmlp_flax.data import pipeline
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images.examples import ListedImages
from gmlp_flax.data.images.readable import UNREAD, ReadableExamples
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.failures import failure


class Numbers:
    """Examples 0, 1, ...; those in `damaged` raise BadRecord, and those in `wrong` do not
    decode."""

    def __init__(self, count, damaged=(), wrong=()):
        self.count = count
        self.damaged = damaged
        self.wrong = wrong

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.damaged:
            raise BadRecord(f"item {index} is damaged")
        value = -1 if index in self.wrong else index
        return {"x": value, "name": f"item {index}"}


def decoded(record, *rng):
    """A transform, with a random generator only for training."""
    if record["x"] < 0:
        raise DataError(f"{record['name']} does not decode")
    label = record.get("label", np.int32(0))
    noise = rng[0].random() if rng else 0.0
    return {"x": record["x"], "label": label, "noise": noise}


def readable(numbers, limit=100, path="numbers", labels=None):
    dataset = Dataset(path, "numbers", numbers, labels=labels)
    return ReadableExamples(dataset, decoded, BadRecords(limit))


def test_examples_end():
    """A loop over them ends, as over a list, whether or not the last one can be read."""
    examples = readable(Numbers(3, damaged=(2,)))
    values = [example["x"] for example in examples]
    assert values == [0, 1, 0]
    assert examples[-2]["x"] == 1
    with pytest.raises(IndexError):
        examples[3]


def train(numbers, limit=100, count=6, path="numbers", start=0, host=0, hosts=1):
    """The first batches of four."""
    examples = readable(numbers, limit, path)
    reading = pipeline.Reading(4, host, hosts)
    positions = range(len(examples))
    order = pipeline.Shuffled(positions, 0, transform=examples.train, batch_size=4)
    with pipeline.train_batches(order, reading, start) as batches:
        return list(itertools.islice(batches, count))


def next_readable(start, count, bad):
    """The first readable position from `start` on, continued from 0 after the end."""
    for position in [*range(start, count), *range(start)]:
        if position not in bad:
            return position
    return None


POSITIONS = st.integers(0, 11)


@given(st.integers(1, 12), st.sets(POSITIONS), st.sets(POSITIONS), POSITIONS)
@settings(max_examples=60)
def test_unreadable_examples_are_replaced_by_the_next_readable_one(count, damaged, wrong, start):
    """The replacement does not depend on what was read before, and draws the random numbers of the
    position."""
    start %= count
    bad = {position % count for position in damaged | wrong}
    unreadable = {position % count for position in damaged}
    numbers = Numbers(count, unreadable, bad)
    expected = next_readable(start, count, bad)
    if expected is None:
        message = failure(readable(numbers).__getitem__, start)
        assert f"{count} images" in message
        return
    fresh = readable(numbers)
    used = readable(numbers)
    for position in range(count):
        used[position]
    noise = np.random.default_rng(7).random()
    for examples in (fresh, used):
        example = examples[start]
        assert example["x"] == expected
        assert example["label"] == (UNREAD if start in bad else 0)
        rng = np.random.default_rng(7)
        example = examples.train(start, rng)
        assert example == {"x": expected, "label": 0, "noise": noise}


def test_labels_of_the_data_set_replace_those_of_the_records():
    labels = np.array([4, 5, 6], np.int32)
    examples = readable(Numbers(3, {1}), labels=labels)
    for index, expected in enumerate([4, UNREAD, 6]):
        label = examples[index]["label"]
        assert label == expected
        assert label.dtype == np.int32
    rng = np.random.default_rng(0)
    replacement = examples.train(1, rng)
    assert replacement["label"] == 6
    assert examples.record(2) == {"x": 2, "name": "item 2", "label": 6}


def test_records_of_unlabelled_data_sets_are_unchanged():
    examples = readable(Numbers(3))
    assert examples.record(2) == {"x": 2, "name": "item 2"}


def test_batches_with_bad_records_resume():
    numbers = Numbers(13, {2, 3}, {7})
    whole = train(numbers)
    numbers_seen = [batch["x"] for batch in whole]
    seen = set(np.concatenate(numbers_seen))
    assert not seen & {2, 3, 7}
    assert {4, 8} <= seen
    resumed = train(numbers, start=4, count=2)
    rest = whole[4:]
    for batch, expected in zip(resumed, rest, strict=True):
        assert_array_equal(batch["x"], expected["x"])
        assert_array_equal(batch["noise"], expected["noise"])


def test_batches_with_bad_records_do_not_depend_on_hosts():
    numbers = Numbers(13, {2, 3}, {7})
    whole = train(numbers)
    of_first = train(numbers, host=0, hosts=2)
    of_second = train(numbers, host=1, hosts=2)
    for batch, first, second in zip(whole, of_first, of_second, strict=True):
        for name in ("x", "noise"):
            joined = [*first[name], *second[name]]
            expected = sorted(joined)
            assert sorted(batch[name]) == expected


def test_each_bad_record_is_reported_once(capfd):
    train(Numbers(10, {1}, {5}), limit=2, count=20, path="limited")
    # Threads of another test's closed batches may still be reading.
    lines = capfd.readouterr().err.splitlines()
    reported = [line for line in lines if "limited" in line]
    assert len(reported) == 2
    first, second = sorted(reported)
    assert first.endswith("item 1 is damaged")
    assert second.endswith("item 5 does not decode")


@pytest.mark.parametrize("limit", [0, 1])
def test_too_many_bad_records_are_refused(limit):
    numbers = Numbers(10, {1}, {5})
    message = failure(train, numbers, limit=limit, count=20, path="limited")
    assert message.startswith("limited: item ")
    assert f"{limit} bad records skipped before" in message
    assert f"max_bad_records={limit}" in message


def test_other_errors_stop_at_once():
    class Broken(Numbers):
        def __getitem__(self, index):
            raise DataError("the disk is gone")

    assert failure(readable(Broken(3)).__getitem__, 0) == "the disk is gone"


def test_records_beyond_the_limit_are_always_refused():
    """Also if several threads meet bad records, if they are met again, and in a copy."""
    bad = BadRecords(2)
    for message in ("first", "first", "second"):
        bad.skip(message)
    for message in ("third", "fourth", "first"):
        found = failure(bad.skip, message)
        assert found.startswith(f"{message} (2 bad records skipped before")
    copy = pickle.loads(pickle.dumps(bad))
    assert "fifth" in failure(copy.skip, "fifth")


def test_readable_examples_survive_pickle():
    """Worker processes get pickled examples."""
    images = ListedImages(["a"], [b"1"])
    labels = np.array([3], np.int32)
    dataset = Dataset("x", "a list", images, labels=labels)
    original = ReadableExamples(dataset, decoded, BadRecords(1))
    examples = pickle.loads(pickle.dumps(original))
    assert examples.record(0) == {"image": b"1", "name": "a", "label": 3}
    assert examples.path == "x"
