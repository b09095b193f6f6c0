"""The examples and the order of batches, on any number of hosts, threads and workers."""

import itertools
import math
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal, assert_equal

from gmlp_flax.data.pipeline import (
    Reading,
    Shuffled,
    Spread,
    evaluation_batches,
    stack,
    train_batches,
    usable_cores,
)
from tests.data.number_source import Broken, Numbers, broken, doubled, noisy
from tests.failures import failure, raised


def take(size, steps, *, start=0, batch_size=4, host=0, hosts=1, seed=0, repeats=1):
    """Batches of numbers below `size`, each with noise."""
    numbers = Numbers(size)
    order = Shuffled(numbers, seed, noisy, repeats, batch_size)
    reading = Reading(batch_size, host, hosts)
    with train_batches(order, reading, start) as batches:
        first = itertools.islice(batches, steps)
        return list(first)


def in_order(size, count, *, seed=0, repeats=1, batch_size=4):
    """The first `count` of the numbers below `size` in the order of training, and their noise."""
    numbers = Numbers(size)
    order = Shuffled(numbers, seed, noisy, repeats, batch_size)
    batch = order.batch(range(count))
    return batch["x"], batch["noise"]


@given(st.integers(1, 30), st.integers(0, 3))
@settings(max_examples=12)
def test_each_epoch_is_a_permutation(size, seed):
    count = 2 * size
    numbers, _ = in_order(size, count, seed=seed)
    for epoch in numbers.reshape(2, size):
        assert sorted(epoch) == list(range(size))


def test_order_and_noise_change_with_epoch_and_seed():
    numbers, noise = in_order(12, 24)
    other_seed, _ = in_order(12, 12, seed=1)
    first_epoch = numbers[:12]
    second_epoch = numbers[12:]
    assert not np.array_equal(first_epoch, second_epoch)
    assert not np.array_equal(other_seed, numbers[:12])
    assert not np.array_equal(other_seed, numbers[12:])
    assert len(set(noise)) == 24


def test_batches_are_consecutive_examples_of_the_order():
    numbers, noise = in_order(10, 24)
    batches = take(10, 4, start=2)
    for step, batch in enumerate(batches, start=2):
        first = 4 * step
        positions = slice(first, first + 4)
        assert_array_equal(batch["x"], numbers[positions])
        assert_array_equal(batch["noise"], noise[positions])


# Golden values: a run that resumes under a new version must see the same examples.
GOLDEN = {
    (0, 1, 0): ([5, 8, 9, 7, 4, 2], 0.2511087522523515),
    (3, 1, 5): ([10, 2, 8, 5, 0, 10], 0.5163800355832265),
    (3, 3, 5): ([6, 6, 6, 5, 5, 5], 0.5163800355832265),
    (0, 1, 10**12): ([0, 4, 6, 8, 5, 4], 0.3114418045863825),
}


@pytest.mark.parametrize(("seed", "repeats", "start"), GOLDEN)
def test_the_order_of_a_seed_stays_the_same(seed, repeats, start):
    numbers, noise = GOLDEN[seed, repeats, start]
    first, second = take(11, 2, batch_size=6, start=start, seed=seed, repeats=repeats)
    assert first["x"].tolist() == numbers
    found_noise = second["noise"]
    assert found_noise[2] == noise


@pytest.mark.parametrize("start", [0, 7, 10**12])
def test_resume_is_a_seek(start):
    before = take(10, 8, start=start)
    for skipped in (1, 4, 7):
        left = 8 - skipped
        after = take(10, left, start=start + skipped)
        assert_equal(after, before[skipped:])


@pytest.mark.parametrize(
    ("hosts", "repeats", "start"),
    [(2, 1, 0), (4, 1, 3), (2, 3, 2), (4, 3, 0)],
)
def test_hosts_share_the_batches_of_a_single_host(hosts, repeats, start):
    options = {"start": start, "batch_size": 8, "repeats": repeats}
    single = take(11, 5, **options)
    by_host = []
    for host in range(hosts):
        by_host.append(take(11, 5, host=host, hosts=hosts, **options))
    for step, batch in enumerate(single):
        for name, values in batch.items():
            parts = []
            for batches in by_host:
                parts.append(batches[step][name])
            for part in parts:
                assert len(part) == 8 // hosts
            assert_array_equal(np.concatenate(parts), values)


@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 4]), st.integers(1, 24))
@settings(max_examples=20)
def test_repeats_are_of_consecutive_stretches(size, repeats, batch_size):
    """Each stretch of the order is repeated as a whole, every time with new noise."""
    stretch = max(1, batch_size // (2 * repeats))
    once, _ = in_order(size, 3 * stretch)
    expected = []
    for part in once.reshape(3, stretch).tolist():
        expected += repeats * part
    count = len(expected)
    numbers, noise = in_order(size, count, repeats=repeats, batch_size=batch_size)
    assert numbers.tolist() == expected
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize("repeats", [2, 3])
def test_copies_are_never_half_a_batch_apart(repeats):
    """Mixing pairs examples half a batch apart, counted in the batch of all hosts."""
    numbers, _ = in_order(1000, 24 * 12, repeats=repeats, batch_size=24)
    examples_in_batch = 24 // repeats
    cut_stretch = 24 // (2 * repeats)
    for batch in numbers.reshape(12, 24):
        partners = np.roll(batch, 12)
        assert (batch != partners).all()
        most = examples_in_batch + cut_stretch
        assert len(set(batch)) <= most


def test_a_pickled_order_gives_the_same_batches():
    order = Shuffled(Numbers(7), 3, noisy, repeats=2, batch_size=8)
    copy = pickle.loads(pickle.dumps(order))
    positions = range(5, 30)
    assert_equal(copy.batch(positions), order.batch(positions))


def test_closed_batches_raise_an_error():
    order = Shuffled(Numbers(5), 0)
    batches = train_batches(order, Reading(5))
    batch = next(batches)
    assert sorted(batch["x"]) == list(range(5))
    batches.close()
    batches.close()
    assert "closed" in raised(ValueError, next, batches)


def test_finish_changes_each_batch():
    reading = Reading(3, finish=doubled)
    order = Shuffled(Numbers(3), 0)
    with train_batches(order, reading) as batches:
        batch = next(batches)
    assert sorted(batch["x"]) == [0, 2, 4]
    with evaluation_batches(Numbers(2), reading) as batches:
        batch = next(batches)
    assert batch["x"].tolist() == [0, 2, 2]


def test_stack_gives_values_a_leading_axis():
    zeros = np.zeros((2, 3), np.float32)
    ones = np.ones((2, 3))
    examples = [{"a": zeros, "b": 1}, {"a": ones, "b": 2}]
    batch = stack(examples)
    arrays = batch["a"]
    assert arrays.shape == (2, 2, 3)
    minimums = arrays.min(axis=(1, 2))
    assert minimums.tolist() == [0, 1]
    maximums = arrays.max(axis=(1, 2))
    assert maximums.tolist() == [0, 1]
    assert batch["b"].tolist() == [1, 2]


@given(st.integers(1, 40), st.sampled_from([1, 2, 3]), st.integers(1, 5))
@settings(max_examples=12)
def test_evaluation_counts_every_example_once(size, hosts, per_host):
    counted = []
    batch_size = hosts * per_host
    steps = math.ceil(size / batch_size)
    for host in range(hosts):
        reading = Reading(batch_size, host, hosts)
        with evaluation_batches(Numbers(size), reading) as batches:
            batches_of_host = list(batches)
        assert len(batches_of_host) == steps
        for batch in batches_of_host:
            numbers = batch["x"]
            weights = batch["weight"]
            assert numbers.shape == (per_host,)
            assert weights.shape == (per_host,)
            assert weights.dtype == np.float32
            assert set(weights) <= {0, 1}
            counted += numbers[weights == 1].tolist()
    assert sorted(counted) == list(range(size))


@pytest.mark.parametrize(
    ("host", "hosts", "numbers", "weights"),
    [
        (0, 1, [[0, 1, 2, 3], [4, 4, 4, 4]], [[1, 1, 1, 1], [1, 0, 0, 0]]),
        (0, 2, [[0, 2], [4, 4]], [[1, 1], [1, 0]]),
        (1, 2, [[1, 3], [4, 4]], [[1, 1], [0, 0]]),
    ],
)
def test_evaluation_batches_by_hand(host, hosts, numbers, weights):
    reading = Reading(4, host, hosts)
    with evaluation_batches(Numbers(5), reading) as batches:
        for row in range(2):
            batch = next(batches)
            batch_numbers = batch["x"].tolist()
            assert batch_numbers == numbers[row]
            batch_weights = batch["weight"].tolist()
            assert batch_weights == weights[row]
        assert next(batches, None) is None


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, [0, 1, 2, 3, 4]),
        (2, [0, 2]),
        (3, [0, 1, 3]),
        (9, [0, 1, 2, 3, 4]),
    ],
)
def test_examples_are_spread_over_a_source(count, expected):
    sample = Spread(Numbers(5), count)
    numbers = []
    for index in range(len(sample)):
        numbers.append(int(sample[index]["x"]))
    assert numbers == expected


@pytest.mark.parametrize(("batch_size", "nearest"), [(6, 4), (0, 4), (11, 8)])
def test_batch_sizes_must_be_divisible_by_hosts(batch_size, nearest):
    message = failure(Reading, batch_size, hosts=4)
    assert f"batch_size={batch_size}" in message
    assert f"use {nearest}" in message


def test_empty_sources_are_refused():
    assert "no examples" in failure(Shuffled, Numbers(0), 0)
    assert "no examples" in failure(evaluation_batches, Numbers(0), Reading(4))


def test_errors_reach_the_caller():
    """Their message is one line, although Grain adds lines to it."""
    order = Shuffled(Numbers(9), 0, broken)
    with train_batches(order, Reading(2)) as batches:
        message = failure(next, batches)
    assert re.fullmatch("example [0-8] is broken", message)
    with evaluation_batches(Broken(9), Reading(2)) as batches:
        assert failure(next, batches) == "example 0 is broken"


WORKERS_SCRIPT = """
import itertools
import numpy as np
from gmlp_flax.data.pipeline import Reading, Shuffled, evaluation_batches, train_batches
from gmlp_flax.errors import DataError
from tests.data.number_source import Broken, Numbers, noisy

def take(workers):
    order = Shuffled(Numbers(11), 3, noisy, repeats=2, batch_size=4)
    with train_batches(order, Reading(4, workers=workers), start=5) as batches:
        train = list(itertools.islice(batches, 7))
    with evaluation_batches(Numbers(11), Reading(4, workers=min(1, workers))) as batches:
        return train, list(batches)

if __name__ == "__main__":
    kept = take(2)  # to the end of the interpreter: not in memory that Python would warn of
    np.testing.assert_equal(kept, take(0))
    with evaluation_batches(Broken(11), Reading(4, workers=1)) as batches:
        try:
            next(batches)
        except DataError as error:
            assert str(error) == "example 0 is broken", error
        else:
            raise AssertionError("no error")
    forgotten = train_batches(Shuffled(Numbers(11), 3), Reading(4, workers=1))
    next(forgotten)
    print("done")
"""


@pytest.mark.slow
def test_worker_processes_give_the_same_batches(tmp_path):
    """This runs a script, because spawned workers import the script that started them."""
    script = tmp_path / "script.py"
    script.write_text(WORKERS_SCRIPT)
    command = [sys.executable, "-W", "error", str(script)]
    paths = os.pathsep.join([os.getcwd(), *sys.path])
    environment = {"PYTHONPATH": paths}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "done\n"
    assert result.stderr == ""


CORES_SCRIPT = """
import os
from gmlp_flax.data.pipeline import usable_cores
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
print(usable_cores())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_usable_cores_respect_the_affinity():
    command = [sys.executable, "-c", CORES_SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == "1\n"
    assert usable_cores() == len(os.sched_getaffinity(0))
