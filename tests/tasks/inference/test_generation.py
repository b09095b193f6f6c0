"""From logits to tokens, compared with loops; texts continued with and without what is kept of
earlier tokens."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    """A task on bytes and random parameters: what it writes makes no sense, but is anything but
    uniform."""
    config = causal_config(folder, dtype=dtype, **KINDS[kind])
    task = CausalLanguageModeling(config, {TOKENIZER_FILE: BYTES.model})
    return task, tiny.random_params(task.shapes(), 0.5)


def window_of(text: list[int]) -> list[int]:
    """The window in which the next token of a text is predicted, by the rule of the documentation:
    a full one begins anew, with the last half of its tokens."""
    start = 0
    for length in range(len(text) + 1):
        if length - start > N - 1:
            start = length - N // 2
    return [BYTES.cls_id, *text[start:]]


def window_after(prompt: list[int], new: list[int]) -> list[int]:
    """The same after a prompt, of which the end is read."""
    return window_of([*prompt[-(N - 1) :], *new])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", ["", "a prompt that is longer than the window of the model"])
@in_float64
def test_cached_and_uncached_generation_agree(kind, prompt, tmp_path):
    """Over three windows: each is read as a whole for every token, by the program of training."""
    task, params = random_model(tmp_path, kind, "float64")
    sampling = Sampling(tokens=2 * N, temperature=0.7, seed=3)
    random = np.random.default_rng(3)
    ids = BYTES.encode(prompt)
    apply = jax.jit(task.apply)
    new: list[int] = []
    ended = False
    kept = task.predictor.generator.logits(params, ids, new)
    while not ended and len(new) < sampling.tokens:
        logits, _ = next(kept)
        window = window_after(ids, new)
        last = len(window) - 1
        padding = [BYTES.pad_id] * (N - len(window))
        [of_window] = np.asarray(apply(params, np.array([window + padding])))
        expected = of_window[last]
        np.testing.assert_allclose(logits, expected, atol=1e-8)
        token = draw(probabilities(allowed_logits(expected), sampling), random)
        ended = token == BYTES.sep_id
        if not ended:
            new.append(token)
    generated = task.predictor.generate(params, prompt, sampling)
    assert BYTES.encode(generated.text) == new or "\ufffd" in generated.text
    assert generated.new_tokens == len(new)
    assert generated.prompt_tokens == len(ids)
    assert generated.ended == ended
    assert len(new) > 4


def allowed_logits(logits: np.ndarray) -> np.ndarray:
    """Those of bytes and of [SEP]; no other special piece is drawn."""
    allowed = logits[:261].copy()
    allowed[:5] = -np.inf
    allowed[BYTES.sep_id] = logits[BYTES.sep_id]
    return allowed


class Counting:
    """A model that says which token comes next, and counts the programs that it is compiled to."""

    def __init__(self, next_token):
        self.next_token = next_token
        self.programs = 0

    def __call__(self, params, tokens, cache, first, last):
        self.programs += 1
        following = self.next_token(tokens[0, last])
        logits = 50 * jax.nn.one_hot(following, ROWS)
        return logits[None], {"first": first + jnp.zeros((1, 3))}


def letter_after(token):
    """The next letter; "a" after what is none."""
    return jnp.where(token < 5 + 97, 5 + 97, token + 1)


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
    model = Counting(lambda token: jnp.where(token == 5 + 99, BYTES.sep_id, token + 1))
    generated = TextGenerator(model, 6, BYTES).generate({}, "a", Sampling(tokens=12))
    assert generated == ("bc", 1, 2, 1, True)


@pytest.mark.parametrize(
    "token", [BYTES.pad_id, BYTES.unk_id, BYTES.cls_id, BYTES.mask_id, BYTES.vocab_size + 4]
)
def test_special_tokens_and_rows_without_a_piece_are_never_drawn(token):
    """Of equal logits the first, [SEP]'s, is the likeliest."""
    generator = TextGenerator(Counting(lambda _: token), 6, BYTES)
    assert generator.generate({}, "", Sampling(tokens=3, top_k=1)).text == ""


def test_seed_determines_the_text(tmp_path):
    task, params = random_model(tmp_path, "gmlp")
    texts = []
    for seed in (1, 1, 2):
        generated = task.predictor.generate(params, "a", Sampling(tokens=10, seed=seed))
        texts.append(generated.text)
    assert texts[0] == texts[1] != texts[2]


def test_new_text_starts_with_its_leading_space(vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    ids = tokenizer.encode("the of")
    table = np.full(ROWS, tokenizer.sep_id)
    table[ids[:-1]] = ids[1:]
    generator = TextGenerator(Counting(lambda token: jnp.array(table)[token]), 16, tokenizer)
    generated = generator.generate({}, "the", Sampling(temperature=0))
    assert generated.text == " of"


def kept_tokens(logits: list[float], temperature: float, top_k: int, top_p: float) -> Iterator:
    """Yields the tokens that may be drawn with their weights, the likeliest first."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[: top_k or None]
    best = logits[order[0]]
    weights = [math.exp((logits[token] - best) / temperature) for token in order]
    reached = 0.0
    for token, weight in zip(order, weights, strict=True):
        if reached >= top_p:
            return
        yield token, weight
        reached += weight / sum(weights)


def by_loops(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The definition, token by token."""
    kept = dict(kept_tokens(logits, temperature, top_k, top_p))
    total = sum(kept.values())
    return [kept.get(token, 0.0) / total for token in range(len(logits))]


NUMBERS = st.floats(-20, 20) | st.just(-math.inf)
LOGITS = st.lists(NUMBERS, min_size=1, max_size=12).filter(lambda values: max(values) > -math.inf)


@given(LOGITS, st.floats(0.05, 5), st.integers(0, 14), st.floats(0.01, 1))
def test_probabilities_against_loops(logits, temperature, top_k, top_p):
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    shares = probabilities(np.array(logits), sampling)
    expected = by_loops(logits, temperature, top_k, top_p)
    np.testing.assert_allclose(shares, expected, atol=1e-8)
    assert shares.sum() == pytest.approx(1)
    assert (shares[np.isinf(logits)] == 0).all()


def test_temperature_0_takes_the_first_most_likely_token():
    sampling = Sampling(temperature=0.0)
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    np.testing.assert_array_equal(probabilities(logits, sampling), [0, 1, 0, 0])
    np.testing.assert_array_equal(probabilities(np.zeros(3), sampling), [1, 0, 0])


def test_draws_follow_the_probabilities():
    shares = np.array([0.1, 0.0, 0.6, 0.3])
    random = np.random.default_rng(0)
    drawn = [draw(shares, random) for _ in range(4000)]
    drawn_shares = np.bincount(drawn, minlength=4) / 4000
    assert drawn_shares[1] == 0
    errors = np.abs(drawn_shares - shares)
    assert errors.max() < 5 * math.sqrt(0.25 / 4000)


@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 12), (12, 12)])
def test_arrays_are_padded_to_few_lengths(tokens, length):
    assert program_length(tokens, 12) == length
