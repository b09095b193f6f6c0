"""Published tasks of labelled text: their columns, labels, scores and submission files.

These are GLUE's tasks (without the diagnostics, which have no labels), SNLI, and Long Range Arena's
tasks on long texts (arXiv 2011.04006):

    listops     basic_train.tsv, basic_val.tsv, basic_test.tsv with the columns Source and Target,
                as `gmlp prepare listops:SIZE` makes them, too
    imdb        TFDS's imdb_reviews, or a file with the columns text and label
    retrieval   new_aan_pairs.train.tsv, .eval.tsv, .test.tsv: no header, five columns, the label,
                two ids, two texts
"""

import dataclasses
from typing import NamedTuple

from gmlp_flax.data import listops


class Interval(NamedTuple):
    """The least and the largest number of a task whose labels are numbers."""

    least: float
    most: float


FLOATS = Interval(-3.4e38, 3.4e38)  # float32


@dataclasses.dataclass(frozen=True)
class TextTask:
    """The columns of a published task's rows, and its scores.

    Attributes:
        texts: for each of one or two texts, in the order of the model's input, the names that its
            column has in the various editions.
        labels: the names of the classes in TFDS's order, which numbered labels follow; one name if
            the labels are numbers to predict.
        scores: GLUE's scores of class 1 besides accuracy: "matthews", "f1".
        submission: the names of the files that GLUE's server expects, one for each part of the test
            set.
        names_submitted: whether these files have the names of labels, not their numbers.
        columns_without_header: the names of the columns in files without a header (CoLA, Retrieval).
        label: the names that the column of labels has.
        unlabelled: the values of that column in rows without a label.
        words: the words of which texts consist, separated by white space; () for any text.
        numbers: the interval of the labels, if they are numbers to predict.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    scores: tuple[str, ...] = ()
    submission: tuple[str, ...] = ()
    names_submitted: bool = False
    columns_without_header: tuple[str, ...] = ()
    label: tuple[str, ...] = ("gold_label", "label", "Quality", "is_duplicate")
    # Annotators did not agree (SNLI); a test set; a test set of numbers (STS-B).
    unlabelled: tuple[str, ...] = ("-", "-1", "-1.0")
    words: tuple[str, ...] = ()
    numbers: Interval | None = None


_SENTENCE = (("sentence",),)
_PAIR = (("sentence1", "premise"), ("sentence2", "hypothesis"))
_STRINGS = (("sentence1", "#1 String"), ("sentence2", "#2 String"))
_QUESTIONS = (("question1",), ("question2",))
_ANSWERS = (("question",), ("sentence",))
_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")

GLUE_TASKS: dict[str, TextTask] = {
    "sst2": TextTask(_SENTENCE, ("negative", "positive"), submission=("SST-2.tsv",)),
    "cola": TextTask(
        _SENTENCE,
        ("unacceptable", "acceptable"),
        scores=("matthews",),
        submission=("CoLA.tsv",),
        columns_without_header=("source", "label", "star", "sentence"),
    ),
    "mrpc": TextTask(
        _STRINGS, ("not_equivalent", "equivalent"), scores=("f1",), submission=("MRPC.tsv",)
    ),
    "qqp": TextTask(
        _QUESTIONS, ("not_duplicate", "duplicate"), scores=("f1",), submission=("QQP.tsv",)
    ),
    "mnli": TextTask(_PAIR, _THREE, submission=("MNLI-m.tsv", "MNLI-mm.tsv"), names_submitted=True),
    "qnli": TextTask(_ANSWERS, _TWO, submission=("QNLI.tsv",), names_submitted=True),
    "rte": TextTask(_PAIR, _TWO, submission=("RTE.tsv",), names_submitted=True),
    "wnli": TextTask(_PAIR, ("not_entailment", "entailment"), submission=("WNLI.tsv",)),
    "snli": TextTask(_PAIR, _THREE, submission=("SNLI.tsv",), names_submitted=True),
}

LONG_RANGE_TASKS: dict[str, TextTask] = {
    "listops": TextTask(
        (("text", "Source"),),
        listops.DIGITS,
        submission=("ListOps.tsv",),
        label=("label", "Target"),
        words=(*listops.SYMBOLS, *listops.BRACES),
    ),
    "imdb": TextTask((("text",),), ("neg", "pos"), submission=("IMDB.tsv",)),
    "retrieval": TextTask(
        (("text1",), ("text2",)),
        ("0", "1"),
        submission=("Retrieval.tsv",),
        columns_without_header=("label", "id1", "id2", "text1", "text2"),
    ),
}

NUMBER_TASKS: dict[str, TextTask] = {  # of regression
    "stsb": TextTask(
        _PAIR,
        ("score",),
        submission=("STS-B.tsv",),
        label=("label", "score"),
        numbers=Interval(0.0, 5.0),
    )
}

CLASS_TASKS = GLUE_TASKS | LONG_RANGE_TASKS


def custom_task(texts: tuple[str, ...], label: str, numbers: bool = False) -> TextTask:
    """A task on the user's own labelled text.

    Args:
        texts: the columns of one or two texts.
        label: the column of labels, whose classes are not known yet.
        numbers: whether the labels are numbers to predict.
    """
    return TextTask(
        texts=tuple((name,) for name in texts),
        labels=("score",) if numbers else (),
        submission=("predictions.tsv",),
        names_submitted=True,
        label=(label,),
        unlabelled=(),
        numbers=FLOATS if numbers else None,
    )
