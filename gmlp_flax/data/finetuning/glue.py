"""Tasks of labelled sentences: their columns, labels, scores and submission files.

They are GLUE's (without the diagnostics, which have no labels), SNLI, and those of Long Range Arena
on long texts (2011.04006):

listops     basic_train.tsv, basic_val.tsv, basic_test.tsv with the columns Source and Target, as
            `gmlp prepare listops:SIZE` makes them, too
imdb        TFDS's imdb_reviews, or any file with the columns text and label
retrieval   new_aan_pairs.train.tsv, .eval.tsv, .test.tsv: no header, five columns, the label, two
ids, two texts
"""

import itertools
from typing import NamedTuple

from gmlp_flax.data import listops

# What pandas, databases and Excel write for a cell without a value, also one whose formula failed.
MISSING = (
    "",
    "nan",
    "NaN",
    "<NA>",
    "#N/A",
    "NaT",
    r"\N",
    "#NAME?",
    "#VALUE!",
    "#REF!",
    "#DIV/0!",
    "#NUM!",
    "#NULL!",
)

FLOATS = -3.4e38, 3.4e38  # the ends of float32


class SentenceTask(NamedTuple):
    """The columns of a task's rows, and its scores.

    Attributes:
        texts: for each of one or two sentences, in the order of the model's input, the names of its
            column.
        labels: names of the classes in TFDS's order, which numbered labels follow.
        scores: GLUE's scores of class 1 beside accuracy: "matthews", "f1".
        submission: names of the files that GLUE's server expects, one for each part of the test
            set.
        names: whether these files have the names of labels, not their numbers.
        headerless: names of the columns of files without a header (CoLA, Retrieval).
        label: the names that the column of labels may have.
        unlabelled: the values of that column in rows without a label.
        words: all that its texts may consist of, with white space between; () for any text.
        numbers: if the labels are numbers, to be predicted as such, the least and the largest;
            `labels` has one name.
        own: whether the data are the user's own: tables may be quoted, and labels have no numbers
            beside their names.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    scores: tuple[str, ...] = ()
    submission: tuple[str, ...] = ()
    names: bool = False
    headerless: tuple[str, ...] = ()
    label: tuple[str, ...] = ("gold_label", "label", "Quality", "is_duplicate")
    unlabelled: tuple[str, ...] = ("-", "-1")  # annotators did not agree (SNLI); a test set
    words: tuple[str, ...] = ()
    own: bool = False
    numbers: tuple[float, float] | tuple[()] = ()

    @property
    def columns(self) -> set[str]:
        """The names of all columns of texts and labels."""
        return {*itertools.chain(*self.texts), *self.label}


_SENTENCE = (("sentence",),)
_PAIR = (("sentence1", "premise"), ("sentence2", "hypothesis"))
_STRINGS = (("sentence1", "#1 String"), ("sentence2", "#2 String"))
_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
_COLA = ("source", "label", "star", "sentence")

GLUE_TASKS: dict[str, SentenceTask] = {
    "sst2": SentenceTask(_SENTENCE, ("negative", "positive"), submission=("SST-2.tsv",)),
    "cola": SentenceTask(
        _SENTENCE, ("unacceptable", "acceptable"), ("matthews",), ("CoLA.tsv",), headerless=_COLA
    ),
    "mrpc": SentenceTask(_STRINGS, ("not_equivalent", "equivalent"), ("f1",), ("MRPC.tsv",)),
    "qqp": SentenceTask(
        (("question1",), ("question2",)), ("not_duplicate", "duplicate"), ("f1",), ("QQP.tsv",)
    ),
    "mnli": SentenceTask(_PAIR, _THREE, submission=("MNLI-m.tsv", "MNLI-mm.tsv"), names=True),
    "qnli": SentenceTask(
        (("question",), ("sentence",)), _TWO, submission=("QNLI.tsv",), names=True
    ),
    "rte": SentenceTask(_PAIR, _TWO, submission=("RTE.tsv",), names=True),
    "wnli": SentenceTask(_PAIR, ("not_entailment", "entailment"), submission=("WNLI.tsv",)),
    "snli": SentenceTask(_PAIR, _THREE, submission=("SNLI.tsv",), names=True),
}

LONG_RANGE_TASKS: dict[str, SentenceTask] = {
    "listops": SentenceTask(
        (("text", "Source"),),
        listops.DIGITS,
        submission=("ListOps.tsv",),
        label=("label", "Target"),
        words=(*listops.SYMBOLS, *listops.BRACES),
    ),
    "imdb": SentenceTask((("text",),), ("neg", "pos"), submission=("IMDB.tsv",)),
    "retrieval": SentenceTask(
        (("text1",), ("text2",)),
        ("0", "1"),
        submission=("Retrieval.tsv",),
        headerless=("label", "id1", "id2", "text1", "text2"),
    ),
}

NUMBER_TASKS = {  # of regression
    "stsb": SentenceTask(
        _PAIR, ("score",), submission=("STS-B.tsv",), label=("label", "score"), numbers=(0.0, 5.0)
    )
}
SENTENCE_TASKS = GLUE_TASKS | LONG_RANGE_TASKS


def own_task(
    texts: tuple[str, ...], label: str, labels: tuple[str, ...] = (), numbers: bool = False
) -> SentenceTask:
    """A task on data of the user's own: the columns of one or two texts, the column of labels,
    names of the classes; or `numbers`."""
    ends = FLOATS if numbers else ()
    task = SentenceTask(
        tuple((name,) for name in texts), ("score",) if numbers else labels, names=True, own=True
    )
    return task._replace(
        label=(label,), unlabelled=MISSING, submission=("predictions.tsv",), numbers=ends
    )
