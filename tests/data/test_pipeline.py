import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.pipeline import evaluation_batches, read_ahead, train_batches, usable_cores
from gmlp_flax.errors import DataError
from tests.data.number_source import Numbers, broken, noisy, square
from tests.failures import raised


def taken(count, source, **options):
    with train_batches(
        source, transform=noisy, **{"seed": 0, "start": 0, "batch_size": 4, **options}
    ) as batches:
        return list(itertools.islice(batches, count))


def pairs(batch):
    return sorted(zip(batch["x"].tolist(), batch["noise"].tolist(), strict=True))


@given(st.integers(1, 30), st.integers(1, 7), st.integers(0, 3))
@settings(max_examples=12)
def test_each_epoch_is_a_permutation(size, batch_size, seed):
    batches = taken(-(-2 * size // batch_size), Numbers(size), batch_size=batch_size, seed=seed)
    numbers = np.concatenate([batch["x"] for batch in batches])[: 2 * size]
    assert sorted(numbers[:size]) == sorted(numbers[size:]) == list(range(size))


def test_order_and_noise_change_with_epoch_and_seed():
    batches = taken(6, Numbers(12))
    first, second = (np.concatenate([b["x"] for b in batches[i : i + 3]]) for i in (0, 3))
    assert not np.array_equal(first, second)
    assert len({noise for batch in batches for noise in batch["noise"]}) == 24
    others = np.concatenate([b["x"] for b in taken(3, Numbers(12), seed=1)])
    assert not np.array_equal(first, others) and not np.array_equal(second, others)


@pytest.mark.parametrize("start", [0, 7, 10**12])
def test_resume_is_a_seek(start):
    before = taken(8, Numbers(10), start=start)
    for skipped in (1, 4, 7):
        after = taken(8 - skipped, Numbers(10), start=start + skipped)
        assert list(map(pairs, after)) == list(map(pairs, before[skipped:]))


@pytest.mark.parametrize(
    ("hosts", "repeats", "start"), [(2, 1, 0), (4, 1, 3), (2, 3, 2), (4, 3, 0)]
)
def test_hosts_share_the_same_batches(hosts, repeats, start):
    options = {"batch_size": 8, "repeats": repeats}
    alone = taken(5 + start, Numbers(11), **options)[start:]
    together = [
        taken(5, Numbers(11), start=start, host=host, hosts=hosts, **options)
        for host in range(hosts)
    ]
    for step, batch in enumerate(alone):
        for name, values in batch.items():
            parts = [batches[step][name] for batches in together]
            assert {len(part) for part in parts} == {8 // hosts}
            np.testing.assert_array_equal(np.concatenate(parts), values)


@given(st.integers(1, 40), st.sampled_from([1, 2, 3, 4]), st.integers(1, 24))
@settings(max_examples=20)
def test_repeats(size, repeats, batch_size):
    """Stretches of the order without repeats, each repeated, every time with new noise."""
    stretch = max(1, batch_size // (2 * repeats))
    groups = 3
    batches = -(-groups * stretch * repeats // batch_size)
    found = taken(batches, Numbers(size), batch_size=batch_size, repeats=repeats)
    once = taken(batches, Numbers(size), batch_size=batch_size)
    numbers, order = (np.concatenate([batch["x"] for batch in b]) for b in (found, once))
    expected = np.concatenate(
        [np.tile(order[stretch * i : stretch * (i + 1)], repeats) for i in range(groups)]
    )
    np.testing.assert_array_equal(numbers[: len(expected)], expected)
    noise = np.concatenate([batch["noise"] for batch in found])
    assert len(set(noise)) == len(noise)


@pytest.mark.parametrize("repeats", [2, 3])
def test_copies_are_never_half_a_batch_apart(repeats):
    """Mixing pairs examples half a batch apart, counted in the batch of all hosts."""
    for batch in taken(12, Numbers(1000), batch_size=24, repeats=repeats):
        assert not (batch["x"] == np.roll(batch["x"], 12)).any()
        assert len(set(batch["x"])) <= 24 // repeats + 24 // (2 * repeats)


def test_without_transform():
    batches = train_batches(Numbers(5), seed=0, start=0, batch_size=5)
    assert sorted(next(batches)["x"]) == list(range(5))
    batches.close()
    batches.close()
    assert "these batches are closed" in raised(ValueError, next, batches)


@given(st.integers(1, 40), st.sampled_from([1, 2, 3]), st.integers(1, 5))
@settings(max_examples=12)
def test_evaluation_counts_every_example_once(size, hosts, per_host):
    counted, source, batch_size = [], Numbers(size), hosts * per_host
    for host in range(hosts):
        with evaluation_batches(source, batch_size=batch_size, host=host, hosts=hosts) as batches:
            batches = list(batches)
        assert len(batches) == -(-size // batch_size)
        for batch in batches:
            assert (
                batch["x"].shape == batch["weight"].shape == (per_host,)
                and batch["weight"].dtype == np.float32
            )
            assert set(batch["weight"]) <= {0, 1}
            counted += batch["x"][batch["weight"] == 1].tolist()
    assert sorted(counted) == list(range(size))


def test_evaluation_order():
    with evaluation_batches(Numbers(3), batch_size=2) as batches:
        assert [(b["x"].tolist(), b["weight"].tolist()) for b in batches] == [
            ([0, 1], [1, 1]),
            ([2, 2], [1, 0]),
        ]


@pytest.mark.parametrize(
    ("size", "batch_size", "message"),
    [
        (9, 6, "batch_size=6 .*use 4"),
        (9, 0, "batch_size=0 .*use 4"),
        (0, 4, "there are no examples"),
    ],
)
def test_batches_that_cannot_be_made(size, batch_size, message):
    for make in (functools.partial(train_batches, seed=0, start=0), evaluation_batches):
        with pytest.raises(DataError, match=message):
            make(Numbers(size), batch_size=batch_size, hosts=4)


def test_errors_reach_the_caller():
    options = {"seed": 0, "start": 0, "batch_size": 2, "transform": broken}
    with train_batches(Numbers(9), **options) as batches, pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) in {f"example {i} is broken" for i in range(9)}


WORKERS_SCRIPT = """
import itertools
import numpy as np
from gmlp_flax.data.pipeline import evaluation_batches, read_ahead, train_batches, usable_cores
from gmlp_flax.errors import DataError
from tests.data.number_source import Broken, Numbers, noisy, square

def taken(workers):
    options = dict(seed=3, start=5, batch_size=4, transform=noisy, workers=workers)
    with train_batches(Numbers(11), **options) as batches:
        train = list(itertools.islice(batches, 7))
    with evaluation_batches(Numbers(11), batch_size=4, workers=min(1, workers)) as batches:
        return train, list(batches)

if __name__ == "__main__":
    kept = taken(2)  # to the end of the interpreter: not in memory that Python would warn of
    np.testing.assert_equal(kept, taken(0))
    with evaluation_batches(Broken(11), batch_size=4, workers=1) as batches:
        try:
            next(batches)
        except DataError as error:
            assert str(error) == "example 0 is broken", error
        else:
            raise AssertionError("no error")
    forgotten = read_ahead(square, start=2**30, workers=1)
    assert [next(forgotten)["x"].item() for _ in range(7)] == [step * step for step in range(2**30, 2**30 + 7)]
    print("done")
"""


def test_worker_processes(tmp_path):
    """In a separate script, because spawned workers import the script that started them."""
    script = tmp_path / "script.py"
    script.write_text(WORKERS_SCRIPT)
    command = [sys.executable, "-W", "error", str(script)]
    environment = {"PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize("start", [0, 2**30])
def test_read_ahead(start):
    """With a worker process: above."""
    with read_ahead(square, start=start) as batches:
        found = [batch["x"].item() for batch in itertools.islice(batches, 7)]
    assert found == [step * step for step in range(start, start + 7)]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_cores_that_a_process_may_use():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from gmlp_flax.data.pipeline import *; print(usable_cores())"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"
    )
    assert usable_cores() == len(os.sched_getaffinity(0))
