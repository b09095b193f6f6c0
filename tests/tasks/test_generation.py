"""Texts continued with and without what is kept of earlier tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.tasks import sampling
from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
from gmlp_flax.tasks.generation import TextGenerator
from gmlp_flax.tasks.sampling import Sampling
from tests.models.reference import in_float64
from tests.tasks.test_causal_lm import KINDS, causal_config

N = 16
BYTES = Tokenizer.load("bytes")


def made(folder, kind, dtype="float32"):
    """A task on bytes and random parameters: what it writes makes no sense, but is anything but uniform."""
    config = causal_config(folder, dtype=dtype, **KINDS[kind])
    config.data.tokenizer = "bytes"
    task, random = CausalLanguageModeling(config, str(folder / "run")), np.random.default_rng(0)
    return task, jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.5, leaf.shape), leaf.dtype), task.shapes())


def windows(text):
    """The window in which each text of bytes is read, by the rule of the documentation: a full one begins anew."""
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
    how, random, new, expected = Sampling(tokens=2 * N, temperature=0.7, seed=3), np.random.default_rng(3), [], []
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
        token = sampling.draw(sampling.probabilities(known, how), random)
        if token == BYTES.sep_id:
            break
        new.append(token)
    done = task.generate(params, prompt, how)
    assert BYTES.encode(done.text) == new or "\ufffd" in done.text
    assert (done.new_tokens, done.prompt_tokens) == (len(new), len(ids)) and done.ended == (len(new) < how.tokens)
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
    up = TextGenerator(Counting(lambda token: jnp.where(token < 5 + 97, 5 + 97, token + 1)), 6, BYTES)
    done = up.generate({}, "", Sampling(tokens=12, temperature=0))
    assert done.text == "abcdefghijkl" and (done.new_tokens, done.prompt_tokens, done.ended) == (12, 0, False)
    assert up.extend.programs == 3  # for [CLS] alone, for [CLS] and 3 tokens, and for each further token
    assert done.windows == 3  # 6 after [CLS] and up to 5; then twice 3 after [CLS], the last 3 and up to 2
    done = up.generate({}, "xyz", Sampling(tokens=2))
    assert done.text == "{|" and (done.prompt_tokens, done.windows) == (3, 1)
    ending = TextGenerator(Counting(lambda token: jnp.where(token == 5 + 99, BYTES.sep_id, token + 1)), 6, BYTES)
    done = ending.generate({}, "a", Sampling(tokens=12))
    assert done.text == "bc" and done.ended and done.new_tokens == 2


def test_special_pieces_are_never_drawn_and_rows_without_a_piece_neither():
    for token in (BYTES.pad_id, BYTES.unk_id, BYTES.cls_id, BYTES.mask_id, 265):
        writer = TextGenerator(Counting(lambda _, token=token: token), 6, BYTES)
        text = writer.generate({}, "", Sampling(tokens=3, top_k=1)).text
        assert text == "", token  # of equal logits the first, [SEP]'s, is the likeliest


def test_a_seed_gives_a_text_and_lines_do_not_depend_on_each_other(tmp_path):
    task, params = made(tmp_path, "gmlp")
    first, again, other = (task.generate(params, "a", Sampling(tokens=10, seed=seed)).text for seed in (1, 1, 2))
    assert first == again != other
