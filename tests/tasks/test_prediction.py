"""Answers to inputs: their order, shapes, pauses and errors, what a predictor of one's own defines,
and what a program may give."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.tasks.prediction import (
    PAUSE,
    Answer,
    Predictor,
    Prepared,
    Settings,
    batch_of,
    shown,
)
from tests.failures import raised


class Model:
    """What a predictor needs to know of its task."""

    length = 9
    class_names = ("cat", "dog", "eel")


class Lengths(Predictor):
    """A made-up predictor: an input is a number of examples of a size, and an answer the sum of all
    their numbers. It notes the shapes of its batches."""

    def __init__(self):
        super().__init__(Model())
        self.shapes = []

    def prepare(self, given, truncate=False):
        if given == "bad":
            raise DataError("a bad one")
        if given == "lost":
            raise RunError("a lost one")
        size, count = given
        examples = [{"x": np.full(size, size + index)} for index in range(count)]
        note = "cut" if truncate else ""
        return Prepared(examples, note="long" if size > 4 else note)

    def encode(self, inputs):
        return [self.prepare(given) for given in inputs]

    def compiled_rank(self, top):
        return self.rank_batch

    def rank_batch(self, params, batch):
        self.shapes.append(batch["x"].shape)
        return {"sum": batch["x"].sum(-1)}

    def read_answer(self, prepared, outputs, top):
        total = sum(row["sum"] for row in outputs)
        return [[("sum", int(total))]]


class Ranks(Predictor):
    """A predictor as its user writes one: an input is a list of logits, a row for each
    prediction."""

    def prepare(self, given, truncate=False):
        logits = np.float32(given)
        return Prepared([{"logits": logits.T}], len(logits))

    def scores(self, params, batch):
        return params * batch["logits"].swapaxes(1, 2)

    def encode(self, inputs):
        return np.float32(inputs)


def sums(given):
    """What `Lengths` answers."""
    size, count = given
    return [[("sum", sum(size * (size + index) for index in range(count)))]]


def answered(predictor, inputs, batch_size=4, truncate=False):
    """All answers of a predictor without parameters."""
    settings = Settings(top=1, batch_size=batch_size, truncate=truncate)
    return list(predictor.answers(None, inputs, settings))


@pytest.fixture
def lengths():
    return Lengths()


def test_answers_keep_the_order_of_inputs_whatever_their_shapes(lengths):
    given = list(itertools.product((2, 5, 3, 8), (1, 2, 0, 3))) * 9
    answers = answered(lengths, iter(given))
    assert [answer.input for answer in answers] == given
    assert [answer.predictions for answer in answers] == [sums(size) for size in given]
    assert {answer.note for answer in answers if answer.input[0] > 4} == {"long"}
    assert {count for count, _ in lengths.shapes} <= {1, 4}
    assert {size for _, size in lengths.shapes} <= {2, 4, 8}
    examples = sum(count for _, count in given)
    windows = 1 + len(given) // (8 * 4)
    assert len(lengths.shapes) <= examples // 4 + windows  # full, but for the last of each window


def test_a_bad_input_is_its_own_answer(lengths):
    given = ["bad", (2, 1), "lost", DataError("not UTF-8"), (3, 1)]
    answers = answered(lengths, given, batch_size=8)
    errors = [answer.error for answer in answers]
    assert [type(error) for error in errors] == [
        DataError,
        type(None),
        RunError,
        DataError,
        type(None),
    ]
    assert str(errors[3]) == "not UTF-8"
    predictions = [answer.predictions for answer in answers]
    assert predictions == [[], sums((2, 1)), [], [], sums((3, 1))]
    assert answered(lengths, []) == []


def test_a_list_of_predictions_raises_the_first_error(lengths):
    assert lengths.predict(None, [(2, 1), (3, 2)]) == [sums((2, 1)), sums((3, 2))]
    assert raised(DataError, lengths.predict, None, [(2, 1), "bad", "lost"]) == "a bad one"


def test_what_is_no_users_error_reaches_the_caller(lengths):
    with pytest.raises(TypeError):
        answered(lengths, [3])


def test_a_pause_has_all_answers_given_before_the_next_input(lengths):
    done = []

    def inputs():
        for number in range(1, 6):
            assert len(done) == number - 1
            yield (number, 1)
            yield PAUSE
        yield from [(2, 1)] * 3

    for answer in lengths.answers(None, inputs(), Settings(batch_size=8)):
        done.append(answer.input)
    assert done == [(number, 1) for number in range(1, 6)] + [(2, 1)] * 3
    assert lengths.shapes == [(1, 1), (1, 2), (1, 4), (1, 4), (1, 8), (8, 2)]


def test_few_inputs_are_held_at_a_time(lengths):
    taken = itertools.count()
    done = 0

    def inputs():
        yield (9, 1)
        for _ in range(5000):
            assert next(taken) - done < 100
            yield (2, 1)

    for _ in lengths.answers(None, inputs(), Settings(batch_size=4)):
        done += 1
    assert done == 5001
    assert set(lengths.shapes) == {(4, 2), (4, 9), (1, 2)}


def test_settings_reach_the_predictor(lengths):
    [answer] = answered(lengths, [(2, 1)], truncate=True)
    assert answer.note == "cut"
    assert Settings() == (5, 32, False)


def test_scores_and_names_alone_rank_classes():
    """As many candidates as are asked for, at most as many as there are names; a row for each
    prediction of an input."""
    logits = [[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]]
    predictor = Ranks(Model())
    assert predictor.names == Model.class_names
    [(first, second)] = predictor.predict(2.0, [logits], Settings(top=2))
    shares = np.exp(2 * np.array(logits)) / np.exp(2 * np.array(logits)).sum(-1, keepdims=True)
    assert [name for name, _ in first] == ["dog", "eel"]
    assert [share for _, share in first] == pytest.approx(shares[0, [1, 2]], rel=1e-5)
    assert [name for name, _ in second] == ["eel", "cat"]
    [(most,)] = predictor.predict(1.0, [logits[:1]], Settings(top=100))
    assert [name for name, _ in most] == ["dog", "eel", "cat"]
    assert sum(share for _, share in most) == pytest.approx(1)


def test_more_scores_than_names_are_not_ranked():
    """As of a table of embeddings with more rows than the tokenizer has pieces."""
    predictor = Ranks(Model())
    batch = {"logits": jnp.array([[[0.0], [1.0], [2.0], [9.0]]])}
    ranked = predictor.rank(jnp.float32(1), batch, 4)
    assert ranked["indices"].tolist() == [[[2, 1, 0]]]
    assert float(ranked["values"].sum()) == pytest.approx(1)


def test_a_program_is_compiled_once_for_a_number_of_candidates():
    predictor = Ranks(Model())
    assert predictor.compiled_rank(2) is predictor.compiled_rank(2)
    assert predictor.compiled_rank(2) is not predictor.compiled_rank(3)


class Unscored(Ranks):
    scores = Predictor.scores


def test_a_predictor_that_defines_too_little_says_what_is_missing():
    assert "`scores`" in raised(ConfigError, Unscored(Model()).predict, 1.0, [[[1.0, 2.0, 3.0]]])
    with pytest.raises(TypeError, match="abstract"):
        Predictor(Model())


@pytest.mark.parametrize(
    "given", ["a text", b"bytes", Path("a.png"), {"x": 1}, 3, None, np.array(3), np.array("text")]
)
def test_one_input_stands_for_itself(given):
    assert Ranks(Model()).listed(given) == [given]


def test_several_inputs_are_listed_as_they_are():
    predictor = Ranks(Model())
    for given in ([1, 2], (1,), [], np.arange(3)):
        assert predictor.listed(given) is given
    assert list(predictor.listed(number for number in (4, 5))) == [4, 5]


def test_inputs_of_a_predictor_of_ones_own_are_no_files():
    predictor = Ranks(Model())
    assert predictor.paths_in("folder") is None
    assert predictor.transform is None
    assert list(predictor.inputs_of_file("a/b.x", lambda path, stream: iter(()))) == ["a/b.x"]
    assert predictor.pad_id == 0
    assert predictor.label(1) == ""


class Labelled(Ranks):
    def label(self, number):
        return f"[MASK] {number}"


def test_answers_are_formatted_with_a_line_for_each_prediction():
    answer = Answer("a line", [[("cat", 0.75), ("dog", 0.2)], [("eel", 1.0)]])
    assert Ranks(Model()).format(answer) == "a line\n  cat 75.0%  dog 20.0%\n  eel 100.0%"
    expected = "a line\n  [MASK] 1: cat 75.0%  dog 20.0%\n  [MASK] 2: eel 100.0%"
    assert Labelled(Model()).format(answer) == expected


def test_what_a_terminal_would_follow_is_shown_as_text():
    assert shown([("\x1b[31m", 0.5), ("\x9b1m", 0.25)]) == r"\x1b[31m 50.0%  \x9b1m 25.0%"
    assert shown([(" a\n", 0.5), ("  ", 0.5)]) == "a 50.0%  '  ' 50.0%"


def test_batches_have_few_shapes():
    """The last axis is filled up to a power of two, or the model's length; images stay as they
    are."""
    short = {"tokens": np.array([7, 8]), "segments": np.array([1, 1])}
    long = {"tokens": np.arange(5), "segments": np.ones(5, int)}
    batch = batch_of([short, long], length=100, pad_id=3)
    assert batch["tokens"].tolist() == [[7, 8, 3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 3, 3, 3]]
    assert batch["segments"].tolist() == [[1, 1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert batch_of([short, long], length=6, pad_id=3)["tokens"].shape == (2, 6)
    images = [{"image": np.full((3, 5, 1), number, np.uint8)} for number in range(2)]
    assert batch_of(images, 4, 0)["image"].shape == (2, 3, 5, 1)
    weights = [{"weight": np.float32(1)}] * 3
    assert batch_of(weights, 4, 0)["weight"].tolist() == [1, 1, 1]
    pairs = [{"tokens": np.zeros((2, size), int)} for size in (1, 3)]
    assert batch_of(pairs, 8, 9)["tokens"].tolist() == [[[0, 9, 9, 9]] * 2, [[0, 0, 0, 9]] * 2]


def test_answers_do_not_depend_on_what_is_beside_them():
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(1 + index % 4, 3)).tolist() for index in range(11)]
    predictor = Ranks(Model())
    alone = [predictor.predict(1.0, [logits])[0] for logits in given]
    for batch_size in (1, 3, 32):
        together = predictor.predict(1.0, given, Settings(batch_size=batch_size))
        names = jax.tree.map(lambda pair: pair[0], together, is_leaf=lambda x: isinstance(x, tuple))
        expected = jax.tree.map(lambda pair: pair[0], alone, is_leaf=lambda x: isinstance(x, tuple))
        assert names == expected
