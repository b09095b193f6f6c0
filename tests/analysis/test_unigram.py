"""The unigram baseline against a count done by hand."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from gmlp_flax.analysis import unigram
from gmlp_flax.training import run_folder


def test_perplexity_equals_a_count_by_hand(text_run):
    task = run_folder.load(str(text_run)).task
    special, vocabulary = set(task.tokenizer.special_ids), task.config.model.vocab_size
    prepared = task.windows("train").prepared
    counts = collections.Counter(token for token in prepared.read(0, prepared.tokens).tolist() if token not in special)
    total = sum(counts.values()) + vocabulary - len(special)
    windows, nats, predictions = task.windows("heldout"), 0.0, 0
    tokens = np.stack([windows[index]["tokens"] for index in range(len(windows))])
    masked = task.fixed_mask({"tokens": tokens, "index": np.arange(len(windows), dtype=np.int32)}, task.config.eval.seed)
    for target, weight in zip(np.ravel(masked.targets), np.ravel(masked.weights), strict=True):
        if weight:
            nats -= math.log((counts[int(target)] + 1) / total)
            predictions += 1
    assert unigram.perplexity(task) == pytest.approx(math.exp(nats / predictions), rel=1e-6)
