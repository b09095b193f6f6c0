import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import pipeline
from gmlp_flax.data.text import packing
from gmlp_flax.data.text.packing import Mixture, Order, Packing, read_shares
from gmlp_flax.data.text.prepare import prepare
from gmlp_flax.errors import ConfigError, DataError
from tests.data.text.preparing import TEXTS, corpus, tokenizer
from tests.failures import raised


class Made:
    """The part of Prepared that packing uses: ids, here in memory, in shards."""

    def __init__(self, shards):
        self.tokenizer, self.dtype = tokenizer(), np.dtype(np.uint16)
        sep = self.tokenizer.sep_id
        self.shards = [
            [np.array([*ids, sep], np.uint16) for ids in documents] for documents in shards
        ]
        self.ids = np.array(
            [token for documents in self.shards for ids in documents for token in ids], np.uint16
        )
        self.tokens = len(self.ids)
        self.offsets = np.cumsum([0, *(sum(map(len, documents)) for documents in self.shards)])

    def read(self, start, stop):
        assert 0 <= start <= stop <= self.tokens
        return self.ids[start:stop]


# Ids above the special ones. Documents and shards may be empty.
SHARDS = st.lists(
    st.lists(st.lists(st.integers(5, 99), max_size=30), max_size=6), min_size=1, max_size=5
)


def expected_windows(made, length, closed=True):
    """The plain way: cut the stream, pad the last piece."""
    room, special, ids = length - 1 - closed, made.tokenizer, made.ids.tolist()
    for start in range(0, len(ids), room):
        window = [special.cls_id, *ids[start : start + room], *[special.sep_id] * closed]
        yield window + [special.pad_id] * (length - len(window))


@given(SHARDS, st.integers(3, 20), st.integers(1, 200), st.booleans())
def test_windows_are_the_corpus(shards, length, group_tokens, closed):
    """Windows that are not closed have no [SEP] but those of the documents: what follows [CLS] is
    the stream of ids."""
    made = Made(shards)
    expected = list(expected_windows(made, length, closed))
    if made.tokens < length - 1 - closed:
        with pytest.raises(
            DataError, match=f"has {made.tokens} tokens, a sequence of length {length} needs"
        ):
            Packing(made, length, closed)
        return
    windows = Packing(made, length, closed)
    windows.group = max(1, group_tokens // length)
    items = [windows[index] for index in range(len(windows))]
    assert [item["tokens"].tolist() for item in items] == expected
    assert [int(item["index"]) for item in items] == list(range(len(expected)))
    assert {item["tokens"].dtype.name for item in items} == {"int32"}
    # No token is lost or doubled.
    words = [token for row in expected for token in row if token >= 5]
    assert words == [token for token in made.ids.tolist() if token >= 5]
    if not closed:
        assert [
            t for row in expected for t in row[1:] if t != made.tokenizer.pad_id
        ] == made.ids.tolist()
    assert pickle.loads(pickle.dumps(windows)).closed is closed


@given(
    SHARDS,
    st.integers(3, 12),
    st.integers(1, 40),
    st.integers(1, 200),
    st.integers(0, 2**40),
    st.data(),
)
def test_each_window_once_per_epoch(shards, length, group_tokens, pool_tokens, seed, data):
    made = Made([*shards, [[7] * 40]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "GROUP_TOKENS", group_tokens)
        patch.setattr(packing, "POOL_TOKENS", pool_tokens)
        windows = Packing(made, length)
        order, again = Mixture([windows], [1.0], seed), Mixture([windows], [1.0], seed)
    count, expected = len(windows), list(expected_windows(made, length))
    batch_size = data.draw(st.integers(1, 2 * count))
    steps = -(-3 * count // batch_size)
    batches = [order.batch(step, batch_size) for step in range(steps)]
    index = np.concatenate([batch["index"] for batch in batches])
    tokens = np.concatenate([batch["tokens"] for batch in batches])
    assert (
        index.dtype == np.int32
        and tokens.dtype == np.int32
        and tokens.shape == (steps * batch_size, length)
    )
    for epoch in range(3):
        assert sorted(index[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert tokens.tolist() == [expected[number] for number in index]
    # Hosts share each batch; any step is found at once, also in a copy.
    step = data.draw(st.integers(0, steps - 1))
    hosts = data.draw(
        st.sampled_from([hosts for hosts in range(1, batch_size + 1) if batch_size % hosts == 0])
    )
    parts = [again.batch(step, batch_size, host, hosts) for host in range(hosts)]
    for name, values in batches[step].items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)


def test_pools_are_of_equal_size_and_mix_groups():
    made = Made([[[5 + i % 90] * 7 for i in range(1000)]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "GROUP_TOKENS", 20)
        patch.setattr(packing, "POOL_TOKENS", 1000)
        order = Mixture([Packing(made, 10)], [1.0], 3)
    assert order.packings[0].group == 2 and len(order.packings[0]) == 1000
    index = order.batch(0, 1000)["index"]
    first = set(index[:100].tolist())
    assert {number ^ 1 for number in first} == first  # whole groups of two
    neighbours = np.abs(np.diff(index[:100]))
    assert 0 < (neighbours == 1).sum() < 20 and max(first) - min(first) > 800
    others = [
        order.batch(1, 1000)["index"],
        Mixture(order.packings, [1.0], 4).batch(0, 1000)["index"],
    ]
    assert all((other != index).mean() > 0.9 for other in others)


def test_each_group_is_read_once_also_by_threads(monkeypatch):
    monkeypatch.setattr(packing, "GROUP_TOKENS", 50)
    monkeypatch.setattr(packing, "POOL_TOKENS", 250)
    packed = Packing(Made([[[5] * 50] * 40]), 10)
    reads, windows, steps = [], packed.windows, range(len(packed) // 5)
    monkeypatch.setattr(packed, "windows", lambda *ends: reads.append(ends) or windows(*ends))
    single = Mixture([packed], [1.0], 0)
    expected = [single.batch(step, 5)["index"].tolist() for step in steps]
    assert sorted(sum(expected, [])) == list(range(len(packed)))
    assert len(reads) == len(set(reads)) == 51
    order = Mixture([packed], [1.0], 0)
    with ThreadPoolExecutor(2) as threads:
        assert [
            batch["index"].tolist()
            for batch in threads.map(lambda step: order.batch(step, 5), steps)
        ] == expected


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    return prepare(corpus(3), tokenizer(), folder, shard_bytes=1, workers=1)


def test_of_files(files):
    expected = list(expected_windows(Made([[tokenizer().encode(text) for text in TEXTS]]), 16))
    windows = Packing(files, 16)
    assert [windows[i]["tokens"].tolist() for i in range(len(windows))] == expected
    assert len(pickle.dumps((windows, Mixture([windows], [1.0], 0)))) < 1000
    assert pickle.loads(pickle.dumps(windows))[5]["tokens"].tolist() == expected[5]


@pytest.mark.parametrize(("workers", "start", "host"), [(0, 0, 0), (0, 70, 1), (1, 70, 1)])
def test_train_batches(files, workers, start, host):
    windows = Packing(files, 16)
    order, options = (
        Mixture([windows], [1.0], 5),
        {"start": start, "batch_size": 6, "host": host, "hosts": 2},
    )
    with pipeline.read_ahead(order.batch, workers=workers, **options) as batches:
        for step in range(start, start + 5):
            np.testing.assert_equal(next(batches), order.batch(step, 6, host, 2))


@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=4),
    st.integers(0, 300),
    st.sampled_from([1, 2, 4]),
)
def test_a_mixture_shares_out_the_examples(weights, step, hosts):
    """Each corpus in its own order, each with its share to within an example a corpus; hosts' parts
    are the batch, and a later batch, or a copy, is the same."""
    packings = [
        Packing(Made([[[5 + number] * size] * 4]), 6) for number, size in enumerate((9, 3, 30, 12))
    ][: len(weights)]
    shares = [weight / sum(weights) for weight in weights]
    mixture = Mixture(packings, shares, 3)
    batches = [mixture.batch(number, 8) for number in range(step, step + 3)]
    parts = [
        pickle.loads(pickle.dumps(mixture)).batch(step, 8, host, hosts) for host in range(hosts)
    ]
    for name, values in batches[0].items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    tokens, index = mixture.batch(0, 8 * (step + 1)).values()
    of = np.searchsorted(np.cumsum([len(packing) for packing in packings]), index, "right")
    assert [set(row[row >= 5].tolist()) for row in tokens] == [{5 + number} for number in of]
    counts = np.stack([np.cumsum(of == number) for number in range(len(weights))])
    exact = np.outer(shares, np.arange(1, len(of) + 1))
    assert np.abs(counts - exact).max() < len(weights)
    before = 0
    for number, windows in enumerate(packings):
        own = index[of == number] - before
        np.testing.assert_array_equal(own, Order(windows, 3 + number).take(0, len(own))["index"])
        before += len(windows)
    np.testing.assert_array_equal(batches[0]["index"], index[8 * step :])


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (("a.txt",), "'a.txt': expected PATH=SHARE"),
        (("a.txt=0",), "'a.txt=0': expected PATH=SHARE"),
        (("a.txt=0.1", "a.txt=0.2"), "each path once"),
        (("a.txt=0.5", "b/=0.5"), "'b/=0.5': expected"),
        (("=0.5",), "'=0.5': expected"),
        (("a.txt=nan",), "'a.txt=nan': expected"),
    ],
)
def test_shares_that_make_no_sense(lines, named):
    assert named in raised(ConfigError, read_shares, lines)


def test_shares():
    assert read_shares(("s3://b/a=b.txt=0.25", "wiki/=0.5")) == {
        "s3://b/a=b.txt": 0.25,
        "wiki/": 0.5,
    }


def test_errors(files):
    for length in (0, 2):
        assert f"length={length} leaves no room" in raised(DataError, Packing, files, length)
    too_long = files.tokens + 3
    with pytest.raises(
        DataError, match=f"has {files.tokens} tokens, .* lower the length to {files.tokens + 2}"
    ):
        Packing(files, too_long)
    windows = Packing(files, 16)
    with pytest.raises(IndexError, match=f"window {len(windows)} of {len(windows)}"):
        windows[len(windows)]
    with pytest.raises(DataError, match="batch_size=3 counts examples over all hosts"):
        Mixture([windows], [1.0], 0).batch(0, batch_size=3, hosts=2)
