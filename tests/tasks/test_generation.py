"""From logits to tokens, compared with loops; texts continued with and without what is kept of
earlier tokens."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.generation import Sampling, TextGenerator, draw, probabilities
from tests.models.reference import in_float64
from tests.tasks.test_causal_lm import KINDS, causal_config
from tests.training import tiny

N = 16
BYTES = Tokenizer.load("bytes")


def made(folder, kind, dtype="float32"):
    """A task on bytes and random parameters: what it writes makes no sense, but is anything but
    uniform."""
    config = causal_config(folder, dtype=dtype, **KINDS[kind])
    config.data.tokenizer = "bytes"
    task = CausalLanguageModeling(config, str(folder / "run"))
    return task, tiny.random_params(task.shapes(), 0.5)


def windows(text):
    """The window in which each text of bytes is read, by the rule of the documentation: a full one
    begins anew."""
    start = max(0, len(text[0]) - (N - 1))
    for ids in text:
        if len(ids) - start > N - 1:
            start = len(ids) - N // 2
        yield [BYTES.cls_id, *ids[start:]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "a prompt that is longer than the window of the model"])
@in_float64
def test_kept_or_not_gives_the_same_logits_and_tokens(kind, prompt, tmp_path):
    """Over three windows: each is read as a whole for every token, by the program of training."""
    task, params = made(tmp_path, kind, "float64")
    how, random, new, expected = (
        Sampling(tokens=2 * N, temperature=0.7, seed=3),
        np.random.default_rng(3),
        [],
        [],
    )
    ids, apply, texts = BYTES.encode(prompt), jax.jit(task.apply), []
    found = task.generator.logits(params, ids, new)
    while len(new) < how.tokens:
        logits, _ = next(found)
        texts.append([*ids, *new])
        *_, window = windows(texts)
        padded = np.array([window + [BYTES.pad_id] * (N - len(window))])
        expected = np.asarray(apply(params, padded))[0, len(window) - 1]
        np.testing.assert_allclose(logits, expected, atol=1e-8)
        known = np.where(np.arange(len(expected)) >= 5, expected, -np.inf)[:261]
        known[BYTES.sep_id] = expected[BYTES.sep_id]
        token = draw(probabilities(known, how), random)
        if token == BYTES.sep_id:
            break
        new.append(token)
    done = task.generate(params, prompt, how)
    assert BYTES.encode(done.text) == new or "\ufffd" in done.text
    assert (done.new_tokens, done.prompt_tokens) == (len(new), len(ids)) and done.ended == (
        len(new) < how.tokens
    )
    assert len(new) > 4


class Counting:
    """A model that says which token comes next, and keeps how many it was given."""

    def __init__(self, next_token):
        self.next_token, self.programs = next_token, 0

    def __call__(self, params, tokens, kept, first, last):
        self.programs += 1
        logits = jax.nn.one_hot(self.next_token(tokens[0, last]), 270)[None] * 50
        return logits, {"first": first + jnp.zeros((1, 3))}


def test_windows_end_by_their_length_and_texts_by_sep():
    up = TextGenerator(
        Counting(lambda token: jnp.where(token < 5 + 97, 5 + 97, token + 1)), 6, BYTES
    )
    done = up.generate({}, "", Sampling(tokens=12, temperature=0))
    assert done.text == "abcdefghijkl" and (done.new_tokens, done.prompt_tokens, done.ended) == (
        12,
        0,
        False,
    )
    # for [CLS] alone, for [CLS] and 3 tokens, and for each further token
    assert up.extend.programs == 3
    # 6 after [CLS] and up to 5; then twice 3 after [CLS], the last 3 and up to 2
    assert done.windows == 3
    done = up.generate({}, "xyz", Sampling(tokens=2))
    assert done.text == "{|" and (done.prompt_tokens, done.windows) == (3, 1)
    ending = TextGenerator(
        Counting(lambda token: jnp.where(token == 5 + 99, BYTES.sep_id, token + 1)), 6, BYTES
    )
    done = ending.generate({}, "a", Sampling(tokens=12))
    assert done.text == "bc" and done.ended and done.new_tokens == 2


def test_special_pieces_are_never_drawn_and_rows_without_a_piece_neither():
    for token in (BYTES.pad_id, BYTES.unk_id, BYTES.cls_id, BYTES.mask_id, 265):
        writer = TextGenerator(Counting(lambda _, token=token: token), 6, BYTES)
        text = writer.generate({}, "", Sampling(tokens=3, top_k=1)).text
        assert text == "", token  # of equal logits the first, [SEP]'s, is the likeliest


def test_a_seed_gives_a_text_and_lines_do_not_depend_on_each_other(tmp_path):
    task, params = made(tmp_path, "gmlp")
    first, again, other = (
        task.generate(params, "a", Sampling(tokens=10, seed=seed)).text for seed in (1, 1, 2)
    )
    assert first == again != other


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


LOGITS = st.lists(st.floats(-20, 20) | st.just(-math.inf), min_size=1, max_size=12).filter(
    lambda x: max(x) > -math.inf
)


@given(LOGITS, st.floats(0.05, 5), st.integers(0, 14), st.floats(0.01, 1))
def test_shares_against_loops(logits, temperature, top_k, top_p):
    found = probabilities(
        np.array(logits), Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    )
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
