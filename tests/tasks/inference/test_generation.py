"""From logits to tokens, compared with loops, and texts continued with and without a cache of
earlier tokens."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.inference.generation import (
    TextGenerator,
    draw,
    probabilities,
    program_length,
)
from gmlp_flax.tasks.inference.sampling import Sampling
from tests.models.reference import in_float64
from tests.tasks.test_causal_lm import KINDS, causal_config
from tests.training import tiny

N = 16
ROWS = 300  # of a table of embeddings, more than there are bytes
BYTES = Tokenizer.load("bytes")


def random_model(folder, kind: str, dtype: str = "float32"):
    """A task on bytes and random parameters whose predictions are far from uniform."""
    config = causal_config(folder, dtype=dtype, **KINDS[kind])
    files = {TOKENIZER_FILE: BYTES.model}
    task = CausalLanguageModeling(config, files)
    params = tiny.random_params(task.shapes(), 0.5)
    return task, params


def window_of(text: list[int]) -> list[int]:
    """The window in which the next token of a text is predicted, by the rule in the documentation: a
    full window is replaced by one that starts with the last half of its tokens."""
    start = 0
    for length in range(len(text) + 1):
        if length - start > N - 1:
            start = length - N // 2
    return [BYTES.cls_id, *text[start:]]


def window_after(prompt: list[int], new: list[int]) -> list[int]:
    """The same after a prompt, of which only the end is read."""
    read = prompt[-(N - 1) :]
    return window_of([*read, *new])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "a prompt that is longer than the window of the model"])
@in_float64
def test_cached_and_uncached_generation_agree(kind, prompt, tmp_path):
    """Over three windows. The reference reads the whole window for every token, as in training."""
    task, params = random_model(tmp_path, kind, "float64")
    sampling = Sampling(tokens=2 * N, temperature=0.7, seed=3)
    random = np.random.default_rng(3)
    ids = BYTES.encode(prompt)
    apply = jax.jit(task.apply)
    new: list[int] = []
    ended = False
    cached = task.predictor.generator.logits(params, ids, new)
    while not ended and len(new) < sampling.tokens:
        logits, _ = next(cached)
        window = window_after(ids, new)
        last = len(window) - 1
        missing = N - len(window)
        padding = [BYTES.pad_id] * missing
        padded = np.array([window + padding])
        all_logits = np.asarray(apply(params, padded))
        expected = all_logits[0, last]
        assert_allclose(logits, expected, atol=1e-8)
        shares = probabilities(allowed_logits(expected), sampling)
        token = draw(shares, random)
        ended = token == BYTES.sep_id
        if not ended:
            new.append(token)
    generated = task.predictor.generate(params, prompt, sampling)
    encoded = BYTES.encode(generated.text)
    assert encoded == new or "\ufffd" in generated.text
    assert generated.new_tokens == len(new)
    assert generated.prompt_tokens == len(ids)
    assert generated.ended == ended
    assert len(new) > 4


def allowed_logits(logits: np.ndarray) -> np.ndarray:
    """The logits of bytes and of [SEP]; no other special token is drawn."""
    allowed = logits[:261].copy()
    allowed[:5] = -np.inf
    allowed[BYTES.sep_id] = logits[BYTES.sep_id]
    return allowed


class Counting:
    """A model with a given rule for the next token that counts its compiled programs."""

    def __init__(self, next_token):
        self.next_token = next_token
        self.programs = 0

    def __call__(self, params, tokens, cache, first, last):
        self.programs += 1
        token = tokens[0, last]
        following = self.next_token(token)
        one_hot = jax.nn.one_hot(following, ROWS)
        logits = 50 * one_hot
        state = first + jnp.zeros((1, 3))
        return logits[None], {"first": state}


LETTER_A = 5 + ord("a")  # bytes follow the five special tokens
LETTER_C = 5 + ord("c")


def letter_after(token):
    """The next letter, or "a" if the token is not a letter."""
    is_letter = token >= LETTER_A
    return jnp.where(is_letter, token + 1, LETTER_A)


def test_windows_end_at_their_length():
    model = Counting(letter_after)
    generator = TextGenerator(model, 6, BYTES)
    generated = generator.generate({}, "", Sampling(tokens=12, temperature=0))
    # 6 after [CLS] and up to 5; then twice 3 after [CLS], the last 3 and up to 2.
    assert generated == ("abcdefghijkl", 0, 12, 3, False)
    # For [CLS] alone, for [CLS] and 3 tokens, and for each further token.
    assert model.programs == 3
    after_prompt = generator.generate({}, "xyz", Sampling(tokens=2))
    assert after_prompt == ("{|", 3, 2, 1, False)


def test_texts_end_at_sep():
    def next_token(token):
        return jnp.where(token == LETTER_C, BYTES.sep_id, token + 1)

    generator = TextGenerator(Counting(next_token), 6, BYTES)
    generated = generator.generate({}, "a", Sampling(tokens=12))
    assert generated == ("bc", 1, 2, 1, True)


@pytest.mark.parametrize(
    "token",
    [
        BYTES.pad_id,
        BYTES.unk_id,
        BYTES.cls_id,
        BYTES.mask_id,
        BYTES.vocab_size + 4,
    ],
)
def test_special_tokens_and_rows_without_a_piece_are_never_drawn(token):
    """All allowed logits are equal, and [SEP] is the first of them."""
    model = Counting(lambda _: token)
    generator = TextGenerator(model, 6, BYTES)
    sampling = Sampling(tokens=3, top_k=1)
    generated = generator.generate({}, "", sampling)
    assert generated.text == ""


def test_seed_determines_the_text(tmp_path):
    task, params = random_model(tmp_path, "gmlp")
    texts = []
    for seed in (1, 1, 2):
        sampling = Sampling(tokens=10, seed=seed)
        generated = task.predictor.generate(params, "a", sampling)
        texts.append(generated.text)
    first, with_same_seed, with_other_seed = texts
    assert first == with_same_seed
    assert first != with_other_seed


def test_new_text_starts_with_its_leading_space(vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    ids = tokenizer.encode("the of")
    following = np.full(ROWS, tokenizer.sep_id)
    before = ids[:-1]
    following[before] = ids[1:]
    table = jnp.array(following)
    model = Counting(lambda token: table[token])
    generator = TextGenerator(model, 16, tokenizer)
    generated = generator.generate({}, "the", Sampling(temperature=0))
    assert generated.text == " of"


def kept_tokens(logits: list[float], temperature: float, top_k: int, top_p: float) -> Iterator:
    """Yields the tokens that may be drawn with their weights, in descending order."""

    def rank(token: int) -> tuple[float, int]:
        return -logits[token], token

    numbers = range(len(logits))
    order = sorted(numbers, key=rank)
    order = order[: top_k or None]
    best = logits[order[0]]
    weights = []
    for token in order:
        lead = logits[token] - best
        weights.append(math.exp(lead / temperature))
    reached = 0.0
    total = sum(weights)
    for token, weight in zip(order, weights, strict=True):
        if reached >= top_p:
            return
        yield token, weight
        reached += weight / total


def by_loops(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The definition, token by token."""
    kept_shares = kept_tokens(logits, temperature, top_k, top_p)
    kept = dict(kept_shares)
    total = sum(kept.values())
    shares = []
    for token in range(len(logits)):
        weight = kept.get(token, 0.0)
        shares.append(weight / total)
    return shares


def has_finite(logits: list[float]) -> bool:
    return max(logits) > -math.inf


NUMBERS = st.floats(-20, 20) | st.just(-math.inf)
LOGITS = st.lists(NUMBERS, min_size=1, max_size=12).filter(has_finite)


@given(
    logits=LOGITS,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1),
)
def test_probabilities_against_loops(logits, temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    shares = probabilities(np.array(logits), sampling)
    expected = by_loops(logits, temperature, top_k, top_p)
    assert_allclose(shares, expected, atol=1e-8)
    assert shares.sum() == pytest.approx(1)
    impossible = np.isinf(logits)
    assert (shares[impossible] == 0).all()


def test_temperature_0_takes_the_first_most_likely_token():
    sampling = Sampling(temperature=0.0)
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    shares = probabilities(logits, sampling)
    assert shares.tolist() == [0, 1, 0, 0]
    shares = probabilities(np.zeros(3), sampling)
    assert shares.tolist() == [1, 0, 0]


def test_draws_follow_the_probabilities():
    shares = np.array([0.1, 0.0, 0.6, 0.3])
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(4000):
        drawn.append(draw(shares, random))
    drawn_shares = np.bincount(drawn, minlength=4) / 4000
    assert drawn_shares[1] == 0
    errors = np.abs(drawn_shares - shares)
    deviation = math.sqrt(0.25 / 4000)
    assert errors.max() < 5 * deviation


@pytest.mark.parametrize(
    ("tokens", "length"),
    [
        (1, 1),
        (2, 2),
        (3, 4),
        (8, 8),
        (9, 12),
        (12, 12),
    ],
)
def test_arrays_are_padded_to_few_lengths(tokens, length):
    assert program_length(tokens, 12) == length
