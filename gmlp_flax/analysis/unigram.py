"""The simplest baseline of a masked language model: token frequencies, without any context."""

from __future__ import annotations

import math

import jax
import numpy as np

from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling

CHUNK = 1 << 24  # tokens counted at a time


def perplexity(task: MaskedLanguageModeling) -> float:
    """Held-out perplexity of the training text's token frequencies, with one added to each count.

    It is scored on the tokens that the task's own evaluation masks, so the two numbers can be compared.
    """
    size, tokens = task.config.model.vocab_size, task.windows("train").prepared
    counts = np.ones(size)
    for start in range(0, tokens.tokens, CHUNK):
        counts += np.bincount(tokens.read(start, min(start + CHUNK, tokens.tokens)), minlength=size)
    counts[list(task.tokenizer.special_ids)] = 0
    log_share = np.log(np.maximum(counts, 1e-300) / counts.sum())
    fixed_mask = jax.jit(lambda batch: task.fixed_mask(batch, task.config.eval.seed))
    nats = predictions = 0.0
    with task.evaluation_batches(0, 1) as batches:
        for batch in batches:
            masked = fixed_mask(batch)
            weights = np.asarray(masked.weights) * batch["weight"][:, None]
            nats -= (log_share[np.asarray(masked.targets)] * weights).sum()
            predictions += weights.sum()
    return math.exp(nats / predictions)
