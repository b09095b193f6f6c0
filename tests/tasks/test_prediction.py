"""Streams of predictions: order, shapes, pauses, errors, and answers that do not depend on what is
beside them."""

import itertools

import jax
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.prediction import PAUSE, Prepared, Stream
from tests.failures import raised
from tests.training import tiny


class Lengths:
    """A made-up task: an input is a number of examples of a length, and an answer what all their
    numbers add up to. It notes the shapes of its batches."""

    length, pad_id = 9, 0

    def __init__(self):
        self.shapes = []

    def prepare(self, given, truncate):
        if given == "bad":
            raise DataError("a bad one")
        size, count = given
        return Prepared(
            [{"x": np.full(size, size + index)} for index in range(count)],
            note="long" if size > 4 else "",
        )

    def compiled_rank(self, top):
        return self.rank

    def rank(self, params, batch):
        self.shapes.append(batch["x"].shape)
        return {"sum": batch["x"].sum(-1)}

    def read_answer(self, prepared, outputs, top):
        return [[("sum", int(sum(row["sum"] for row in outputs)))]]


def expected(given):
    size, count = given
    return [[("sum", sum(size * (size + index) for index in range(count)))]]


@pytest.fixture
def task():
    return Lengths()


def test_answers_keep_the_order_of_inputs_whatever_their_shapes(task):
    given = [(size, count) for size, count in itertools.product((2, 5, 3, 8), (1, 2, 0, 3))] * 9
    answers = [*Stream(task, None, 1, 4, False)(iter(given))]
    assert [answer.input for answer in answers] == given
    assert [answer.predictions for answer in answers] == [*map(expected, given)]
    assert {answer.note for answer in answers if answer.input[0] > 4} == {"long"}
    assert {count for count, _ in task.shapes} <= {1, 4} and {size for _, size in task.shapes} <= {
        2,
        4,
        8,
    }
    rows = sum(count for _, count in given)
    # full, but for the last of each window
    assert len(task.shapes) <= rows // 4 + 1 + len(given) // (8 * 4)


def test_a_bad_input_is_its_own_answer(task):
    answers = [*Stream(task, None, 1, 8, False)(["bad", (2, 1), "bad", (3, 1)])]
    assert [str(answer.error) for answer in answers] == ["a bad one", "None", "a bad one", "None"]
    assert [answer.predictions for answer in answers] == [
        [],
        expected((2, 1)),
        [],
        expected((3, 1)),
    ]
    assert [*Stream(task, None, 1, 8, False)([])] == []


def test_a_pause_has_all_answers_given_before_the_next_input(task):
    answered = []

    def inputs():
        for number in range(1, 6):
            assert len(answered) == number - 1
            yield (number, 1)
            yield PAUSE
        yield from [(2, 1)] * 3

    for answer in Stream(task, None, 1, 8, False)(inputs()):
        answered.append(answer.input)
    assert answered == [(number, 1) for number in range(1, 6)] + [(2, 1)] * 3
    assert task.shapes == [(1, 1), (1, 2), (1, 4), (1, 4), (1, 8), (8, 2)]


def test_few_inputs_are_held_at_a_time(task):
    taken, answered = itertools.count(), 0

    def inputs():
        yield (9, 1)
        for _ in range(5000):
            assert next(taken) - answered < 100
            yield (2, 1)

    for _ in Stream(task, None, 1, 4, False)(inputs()):
        answered += 1
    assert answered == 5001 and {*task.shapes} == {(4, 2), (4, 9), (1, 2)}


@pytest.mark.parametrize(
    "model",
    [
        {"block": "gmlp", "d_attn": 4},
        {"block": "gmlp", "toeplitz": "fft", "mask_padding": True},
        {"block": "transformer", "heads": 2, "positions": "relative"},
        {"block": "fnet"},
        {"block": "gmlp", "spatial": "dense", "d_attn": 4, "mask_padding": True},
    ],
    ids=lambda model: model["block"],
)
def test_masks_are_filled_as_if_the_line_were_alone(model, tmp_path):
    """Lines of few lengths and numbers of masks; where padding can be hidden, the exact length is
    the reference, else n tokens. A dense W takes exactly n, and the tiny attention beside it
    ignores padding."""
    of_n = model["block"] == "fnet" or "spatial" in model
    task = MaskedLanguageModeling(tiny.text_config(tmp_path, **model), str(tmp_path))
    params, tokenizer = tiny.random_params(task.shapes()), task.tokenizer
    lines = [
        "[MASK]",
        "the [MASK] of",
        "[MASK] [MASK] [MASK] [MASK] [MASK] and",
        "on [MASK] was",
        "the [MASK] of",
    ]
    shapes = [task.prepare(line).examples[0]["tokens"].shape for line in lines]
    assert shapes == [(16,)] * 5 if of_n else len({*shapes}) > 2
    for line, ranked in zip(lines, task.predict(params, lines, top=3, batch_size=2), strict=True):
        ids = [tokenizer.cls_id, *tokenizer.encode_masked(line), tokenizer.sep_id]
        ids = np.array([ids + [tokenizer.pad_id] * (16 - len(ids)) * of_n])
        mask = ids != tokenizer.pad_id if "mask_padding" in model else None
        scores = task.apply(params, ids, np.nonzero(ids == tokenizer.mask_id)[1][None], None, mask)[
            0
        ]
        scores = scores[:, : tokenizer.vocab_size]
        best = -np.sort(-np.asarray(jax.nn.softmax(scores)), axis=-1)[:, :3]
        np.testing.assert_allclose(
            [[share for _, share in each] for each in ranked], best, rtol=1e-4
        )


def test_what_a_long_line_leads_to(text_task):
    params = tiny.random_params(text_task.shapes())
    late, early = "the " * 30 + "[MASK]", "[MASK]" + " the" * 30
    with pytest.raises(
        RunError,
        match=r"the line has \d+ tokens, the model reads at most 16: shorten it, or have it",
    ):
        text_task.predict(params, [early])
    cut, lost = text_task.predict_stream(params, [early, late], truncate=True)
    assert len(cut.predictions) == 1 and cut.note.endswith("the model reads the first 16 of them")
    assert "there is no [MASK] in the first 16 tokens of 'the the" in str(lost.error)


def test_classes_are_the_same_at_each_length_if_padding_is_hidden(tmp_path):
    config = tiny.text_config(tmp_path, block="transformer", heads=2, mask_padding=True)
    config = gmlp_config.changed(config, "text_classification")
    config.model.pool = "mean"
    tokenizer = MaskedLanguageModeling(tiny.text_config(tmp_path), str(tmp_path)).tokenizer
    task = tasks.create(config, str(tmp_path), {"tokenizer.model": tokenizer.model})
    params, line = tiny.random_params(task.shapes()), "the one of"
    [short] = task.prepare(line).examples
    assert 4 < len(short["tokens"]) < 12
    whole = {name: np.pad(values, (0, 16 - len(values))) for name, values in short.items()}
    scores = [
        task.prediction_scores(params, {n: v[None] for n, v in each.items()})
        for each in (short, whole)
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-5, atol=1e-6)
    task.config.model.mask_padding = False
    assert task.prepare(line).examples[0]["tokens"].shape == (16,)
    assert "tokens, the model reads at most 16" in raised(
        RunError, task.predict, params, ["the " * 20]
    )
