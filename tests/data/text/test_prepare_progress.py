import io
import pickle

import numpy as np
import pytest

from gmlp_flax.data.text import prepare_progress
from gmlp_flax.data.text.prepare_progress import ProgressBar, SharedCounts, Stopped


class Terminal(io.StringIO):
    def isatty(self):
        return True


def batches(*sizes):
    return [(np.zeros(size, np.int32), [size], 10 * size) for size in sizes]


def test_counts_are_shared_and_stop_workers(tmp_path):
    counts = SharedCounts.create(tmp_path / "counts", 2)
    worker = pickle.loads(pickle.dumps(counts))
    passed = list(worker.count(1, batches(3, 4)))
    assert [(len(ids), lengths) for ids, lengths in passed] == [(3, [3]), (4, [4])]
    assert counts.table.tolist() == [[0, 0], [70, 7], [0, 0]]
    counts.stop()
    with pytest.raises(Stopped):
        next(worker.count(0, batches(1)))


def test_bar(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_progress, "_DELAY", 0)
    terminal = Terminal()
    monkeypatch.setattr(prepare_progress.sys, "stderr", terminal)
    counts = SharedCounts.create(tmp_path / "counts", 3)
    with ProgressBar(counts, [100, 100, 200], [1, 2], "a.jsonl.gz") as progress:
        assert progress._bar.n == 100
        list(counts.count(1, batches(13)))
        progress.update()
        assert progress._bar.n == 150  # 130 characters at 2.6 a byte, the guess for .gz
        list(counts.count(1, batches(7)))
        progress.finished(1)
        list(counts.count(2, batches(10)))
        progress.update()
        assert progress._bar.n == 250  # at 2 a byte, as measured
        progress.finished(2)
        progress.update()
        assert progress._bar.n == 400
    assert "tokens/s" in terminal.getvalue() and "preparing" in terminal.getvalue()
