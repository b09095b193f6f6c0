"""From logits to tokens, compared with loops."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.errors import RunError
from gmlp_flax.tasks.sampling import Sampling, draw, probabilities


def by_loops(logits, temperature, top_k, top_p):
    """The definition, token by token."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k or None]
    weights = {i: math.exp((logits[i] - logits[order[0]]) / temperature) for i in order}
    total, kept, reached = sum(weights.values()), {}, 0.0
    for i in order:
        if reached >= top_p:
            break
        kept[i] = weights[i]
        reached += weights[i] / total
    return [kept.get(i, 0.0) / sum(kept.values()) for i in range(len(logits))]


LOGITS = st.lists(st.floats(-20, 20) | st.just(-math.inf), min_size=1, max_size=12).filter(lambda x: max(x) > -math.inf)


@given(LOGITS, st.floats(0.05, 5), st.integers(0, 14), st.floats(0.01, 1))
def test_shares_against_loops(logits, temperature, top_k, top_p):
    found = probabilities(np.array(logits), Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    np.testing.assert_allclose(found, by_loops(logits, temperature, top_k, top_p), atol=1e-8)
    assert found.sum() == pytest.approx(1) and (found[np.isinf(logits)] == 0).all()


def test_temperature_0_takes_the_first_of_the_likeliest():
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    np.testing.assert_array_equal(probabilities(logits, Sampling(temperature=0.0)), [0, 1, 0, 0])
    np.testing.assert_array_equal(probabilities(np.zeros(3), Sampling(temperature=0.0)), [1, 0, 0])


def test_draws_follow_the_shares():
    found, random = np.array([0.1, 0.0, 0.6, 0.3]), np.random.default_rng(0)
    counts = np.bincount([draw(found, random) for _ in range(4000)], minlength=4) / 4000
    assert counts[1] == 0 and np.abs(counts - found).max() < 5 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0}, "^top_p is 0.0: expected a probability above 0 and at most 1$"),
        ({"top_k": -1}, "^top_k is -1: expected at least 0"),
        ({"tokens": 0}, "^tokens is 0: expected"),
        ({"temperature": math.nan}, "^temperature is nan: expected"),
    ],
)
def test_values_that_make_no_sense(options, message):
    with pytest.raises(RunError, match=message):
        Sampling(**options)
