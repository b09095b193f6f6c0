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
    for index in range(len(windows)):
        batch = {"tokens": windows[index]["tokens"][None], "index": np.array([index], np.int32)}
        masked = task.fixed_mask(batch, task.config.eval.seed)
        for target, weight in zip(np.asarray(masked.targets[0]), np.asarray(masked.weights[0]), strict=True):
            if weight:
                nats -= math.log((counts[int(target)] + 1) / total)
                predictions += 1
    assert unigram.perplexity(task) == pytest.approx(math.exp(nats / predictions), rel=1e-6)
