"""Answers to inputs: their order, shapes, pauses and errors, user-defined predictors, and which
inputs Python code may pass."""

import itertools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.tasks.inference.prediction import (
    PAUSE,
    Answer,
    Predictor,
    Prepared,
    Settings,
    batch_of,
    shown,
)
from tests.failures import raised
from tests.tasks import by_hand


class Model:
    """What a predictor needs to know of its task."""

    length = 9
    class_names = ("cat", "dog", "eel")


class Lengths(Predictor):
    """A predictor for tests: an input is a size and a number of examples of this size, and the answer
    is the sum of all their numbers. It records the shapes of its batches."""

    def __init__(self):
        super().__init__(Model())
        self.shapes = []

    def prepare(self, given, truncate=False):
        if given == "bad":
            raise DataError("a bad one")
        if given == "lost":
            raise RunError("a lost one")
        size, count = given
        examples = []
        for index in range(count):
            examples.append({"x": np.full(size, size + index)})
        note = "cut" if truncate else ""
        if size > 4:
            note = "long"
        return Prepared(examples, note=note)

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
    """A predictor as users write them: an input is a list of logits, with a row for each
    prediction."""

    def prepare(self, given, truncate=False):
        logits = np.float32(given)
        return Prepared([{"logits": logits.T}], len(logits))

    def scores(self, params, batch):
        return params * batch["logits"].swapaxes(1, 2)

    def encode(self, inputs):
        return np.float32(inputs)


class RanksInParts(Ranks):
    """The same with an example for each row of logits, as of a long input that is read in parts."""

    def prepare(self, given, truncate=False):
        examples = []
        for row in given:
            logits = np.float32(row)
            examples.append({"logits": logits[:, None]})
        return Prepared(examples)


def sums(input):
    """The answer of `Lengths`."""
    size, count = input
    numbers = range(size, size + count)
    return [[("sum", size * sum(numbers))]]


def answered(predictor, inputs, batch_size=4, truncate=False):
    """All answers of a predictor without parameters."""
    settings = Settings(top=1, batch_size=batch_size, truncate=truncate)
    return list(predictor.answers(None, inputs, settings))


@pytest.fixture
def lengths():
    return Lengths()


# 0 to 3 examples of each of four sizes.
SIZES = (2, 5, 3, 8)
COUNTS = (1, 2, 0, 3)
MANY = list(itertools.product(SIZES, COUNTS)) * 9


def test_answers_keep_the_order_of_inputs_of_different_shapes(lengths):
    answers = answered(lengths, iter(MANY))
    for answer, expected in zip(answers, MANY, strict=True):
        assert answer.input == expected
        assert answer.predictions == sums(expected)
    notes_of_long = set()
    for answer in answers:
        size, _ = answer.input
        if size > 4:
            notes_of_long.add(answer.note)
    assert notes_of_long == {"long"}


def test_bad_input_gets_an_error_as_its_answer(lengths):
    not_text = DataError("not UTF-8")
    inputs = ["bad", (2, 1), "lost", not_text, (3, 1)]
    bad, first, lost, unread, second = answered(lengths, inputs, batch_size=8)
    assert isinstance(bad.error, DataError)
    assert isinstance(lost.error, RunError)
    assert isinstance(unread.error, DataError)
    assert str(unread.error) == "not UTF-8"
    for answer in (bad, lost, unread):
        assert answer.predictions == []
    for answer in (first, second):
        assert answer.error is None
        assert answer.predictions == sums(answer.input)
    assert answered(lengths, []) == []


def test_inputs_of_a_window_are_batched_by_shape(lengths):
    answered(lengths, iter(MANY))
    counts, sizes = zip(*lengths.shapes, strict=True)
    assert set(counts) <= {1, 4}
    assert set(sizes) <= {2, 4, 8}
    examples = sum(count for _, count in MANY)
    full_windows = len(MANY) // (8 * 4)
    windows = 1 + full_windows
    # All batches are full, except the last of each window.
    most = examples // 4 + windows
    assert len(lengths.shapes) <= most


@pytest.mark.parametrize(
    ("count", "batch_size", "expected"),
    [
        (3, 10**9, 32),
        (40, 10**9, 64),
        (70, 70, 70),
        (3, 8, 8),
    ],
)
def test_few_inputs_do_not_fill_a_large_batch(lengths, count, batch_size, expected):
    """Batches are padded to a power of two from 32 on, or to the batch size."""
    answered(lengths, [(2, count)], batch_size)
    assert lengths.shapes == [(expected, 2)]


def test_predict_raises_the_first_error(lengths):
    predictions = lengths.predict(None, [(2, 1), (3, 2)])
    expected = [sums((2, 1)), sums((3, 2))]
    assert predictions == expected
    inputs = [(2, 1), "bad", "lost"]
    message = raised(DataError, lengths.predict, None, inputs)
    assert message == "a bad one"


def test_internal_errors_reach_the_caller(lengths):
    with pytest.raises(TypeError):
        answered(lengths, [3])


def test_all_answers_are_yielded_at_a_pause(lengths):
    answered_inputs = []

    def inputs():
        for number in range(1, 6):
            assert len(answered_inputs) == number - 1
            yield (number, 1)
            yield PAUSE
        for _ in range(3):
            yield (2, 1)

    settings = Settings(batch_size=8)
    for answer in lengths.answers(None, inputs(), settings):
        answered_inputs.append(answer.input)
    numbers = range(1, 6)
    expected = [(number, 1) for number in numbers]
    assert answered_inputs == [*expected, (2, 1), (2, 1), (2, 1)]
    *single, together = lengths.shapes
    shapes = [(1, 1), (1, 2), (1, 4), (1, 4), (1, 8)]
    assert single == shapes
    assert together == (8, 2)


def test_few_inputs_are_in_memory_at_a_time(lengths):
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


def test_scores_and_names_suffice_to_rank_classes():
    """A row for each prediction of an input."""
    rows = [[1.0, 3.0, 2.0], [0.0, 0.0, 5.0]]
    logits = np.array(rows)
    predictor = Ranks(Model())
    assert predictor.names == Model.class_names
    settings = Settings(top=2)
    [predictions] = predictor.predict(2.0, [logits.tolist()], settings)
    first, second = predictions
    doubled = 2 * logits
    shares, _ = by_hand.softmax(doubled)
    _, dog, eel = shares
    assert by_hand.names_of(first) == ["dog", "eel"]
    found = by_hand.shares_of(first)
    assert found == pytest.approx([dog, eel], rel=1e-5)
    assert by_hand.names_of(second) == ["eel", "cat"]


def test_each_example_of_an_input_has_a_prediction():
    logits = [[1.0, 3.0, 2.0], [0.0, 0.0, 5.0], [9.0, 0.0, 1.0]]
    predictor = RanksInParts(Model())
    inputs = [logits, logits[:1]]
    settings = Settings(top=1)
    whole, start = predictor.predict(1.0, inputs, settings)
    names = names_only(whole)
    assert names == [["dog"], ["eel"], ["cat"]]
    assert start == whole[:1]


def test_more_scores_than_names_are_not_ranked():
    """As with an embedding table that has more rows than the tokenizer has pieces."""
    predictor = Ranks(Model())
    logits = jnp.array([0.0, 1.0, 2.0, 9.0])
    batch = {"logits": logits.reshape(1, 4, 1)}
    scale = jnp.float32(1)
    ranked = predictor.rank(scale, batch, 4)
    indices = ranked["indices"].tolist()
    assert indices == [[[2, 1, 0]]]
    total = float(ranked["values"].sum())
    assert total == pytest.approx(1)


def test_program_is_compiled_once_for_each_number_of_candidates():
    predictor = Ranks(Model())
    assert predictor.compiled_rank(2) is predictor.compiled_rank(2)
    assert predictor.compiled_rank(2) is not predictor.compiled_rank(3)


class Unscored(Ranks):
    scores = Predictor.scores


@pytest.mark.parametrize(
    "single",
    [
        "a text",
        b"bytes",
        Path("a.png"),
        {"x": 1},
        3,
        None,
        np.array(3),
        np.array("text"),
    ],
)
def test_single_input_becomes_a_list(single):
    listed = Ranks(Model()).listed(single)
    assert listed == [single]


def test_several_inputs_are_listed_unchanged():
    predictor = Ranks(Model())
    several = ([1, 2], (1,), [], np.arange(3))
    for inputs in several:
        assert predictor.listed(inputs) is inputs
    generator = (number for number in (4, 5))
    listed = list(predictor.listed(generator))
    assert listed == [4, 5]


def test_inputs_of_a_user_defined_predictor_are_not_files():
    predictor = Ranks(Model())
    assert predictor.paths_in("folder") is None
    assert predictor.transform is None
    inputs = predictor.inputs_of_file("a/b.x", lambda path, stream: iter(()))
    assert list(inputs) == ["a/b.x"]
    assert predictor.pad_id == 0
    assert predictor.label(1) == ""


class Labelled(Ranks):
    def label(self, number):
        return f"[MASK] {number}"


def test_number_of_candidates_is_at_most_the_number_of_names():
    predictor = Ranks(Model())
    logits = [[1.0, 3.0, 2.0]]
    settings = Settings(top=100)
    [predictions] = predictor.predict(1.0, [logits], settings)
    [candidates] = predictions
    assert by_hand.names_of(candidates) == ["dog", "eel", "cat"]
    shares = by_hand.shares_of(candidates)
    assert sum(shares) == pytest.approx(1)


def test_predictor_without_scores_is_refused():
    predictor = Unscored(Model())
    logits = [[1.0, 2.0, 3.0]]
    message = raised(ConfigError, predictor.predict, 1.0, [logits])
    assert "`scores`" in message


def test_predictor_must_prepare_its_inputs():
    with pytest.raises(TypeError, match="abstract"):
        Predictor(Model())


def test_answers_are_formatted_with_a_line_for_each_prediction():
    first = [("cat", 0.75), ("dog", 0.2)]
    answer = Answer("a line", [first, [("eel", 1.0)]])
    assert Ranks(Model()).format(answer) == "a line\n  cat 75.0%  dog 20.0%\n  eel 100.0%"
    expected = "a line\n  [MASK] 1: cat 75.0%  dog 20.0%\n  [MASK] 2: eel 100.0%"
    assert Labelled(Model()).format(answer) == expected


def test_terminal_escape_codes_are_shown_as_text():
    candidates = [("\x1b[31m", 0.5), ("\x9b1m", 0.25)]
    assert shown(candidates) == r"\x1b[31m 50.0%  \x9b1m 25.0%"
    candidates = [(" a\n", 0.5), ("  ", 0.5)]
    assert shown(candidates) == "a 50.0%  '  ' 50.0%"


SHORT = {
    "tokens": np.array([7, 8]),
    "segments": np.array([1, 1]),
}
LONG = {
    "tokens": np.arange(5),
    "segments": np.ones(5, int),
}


def test_batches_are_padded_to_a_power_of_two():
    batch = batch_of([SHORT, LONG], length=100, pad_id=3)
    assert batch["tokens"].tolist() == [
        [7, 8, 3, 3, 3, 3, 3, 3],
        [0, 1, 2, 3, 4, 3, 3, 3],
    ]
    assert batch["segments"].tolist() == [
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
    ]


def test_padded_batches_are_no_longer_than_the_model_reads():
    batch = batch_of([SHORT, LONG], length=6, pad_id=3)
    assert batch["tokens"].shape == (2, 6)


def test_images_and_numbers_are_batched_unpadded():
    first = np.zeros((3, 5, 1), np.uint8)
    second = np.ones((3, 5, 1), np.uint8)
    examples = [{"image": first}, {"image": second}]
    images = batch_of(examples, 4, 0)
    assert images["image"].shape == (2, 3, 5, 1)
    example = {"weight": np.float32(1)}
    weights = batch_of([example, example, example], 4, 0)
    assert weights["weight"].tolist() == [1, 1, 1]


def test_last_axis_is_padded():
    short = {"tokens": np.zeros((2, 1), int)}
    long = {"tokens": np.zeros((2, 3), int)}
    batch = batch_of([short, long], 8, 9)
    short_row = [0, 9, 9, 9]
    padded_short = [short_row, short_row]
    long_row = [0, 0, 0, 9]
    padded_long = [long_row, long_row]
    tokens = batch["tokens"].tolist()
    assert tokens == [padded_short, padded_long]


def names_only(predictions: list) -> list[list[str]]:
    """The names of the candidates of each prediction."""
    return [by_hand.names_of(candidates) for candidates in predictions]


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_answers_do_not_depend_on_the_rest_of_the_batch(batch_size):
    rng = np.random.default_rng(0)
    predictor = Ranks(Model())
    inputs = []
    alone = []
    for index in range(11):
        rows = 1 + index % 4
        numbers = rng.normal(size=(rows, 3))
        logits = numbers.tolist()
        [predictions] = predictor.predict(1.0, [logits])
        inputs.append(logits)
        alone.append(predictions)
    settings = Settings(batch_size=batch_size)
    together = predictor.predict(1.0, inputs, settings)
    for predictions, expected in zip(together, alone, strict=True):
        assert names_only(predictions) == names_only(expected)
