"""Tasks of labelled sentences, among them GLUE's and SNLI: their columns, labels, scores and submission files.

STS-B is left out because it is a regression, and the diagnostics because they have no labels.
"""

from typing import NamedTuple


class SentenceTask(NamedTuple):
    """The columns of a task's rows, and its scores.

    Attributes:
        texts: for each of one or two sentences, in the order of the model's input, the names of its column.
        labels: names of the classes in TFDS's order, which numbered labels follow.
        scores: GLUE's scores of class 1 beside accuracy: "matthews", "f1".
        submission: names of the files that GLUE's server expects, one for each part of the test set.
        names: whether these files have the names of labels, not their numbers.
        headerless: names of the columns of files without a header (CoLA, Retrieval).
        label: the names that the column of labels may have.
        unlabelled: the values of that column in rows without a label.
        aliases: other names of the labels, in their order.
        numbered: whether a row may have its label's number.
        words: all that its texts may consist of, with white space between; () for any text.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    scores: tuple[str, ...] = ()
    submission: tuple[str, ...] = ()
    names: bool = False
    headerless: tuple[str, ...] = ()
    label: tuple[str, ...] = ("gold_label", "label", "Quality", "is_duplicate")
    unlabelled: tuple[str, ...] = ("-", "-1")  # annotators did not agree (SNLI); a test set
    aliases: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    numbered: bool = True


_SENTENCE = (("sentence",),)
_PAIR = (("sentence1", "premise"), ("sentence2", "hypothesis"))
_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")

GLUE_TASKS: dict[str, SentenceTask] = {
    "sst2": SentenceTask(_SENTENCE, ("negative", "positive"), submission=("SST-2.tsv",)),
    "cola": SentenceTask(
        _SENTENCE,
        ("unacceptable", "acceptable"),
        ("matthews",),
        ("CoLA.tsv",),
        headerless=("source", "label", "star", "sentence"),
    ),
    "mrpc": SentenceTask(
        (("sentence1", "#1 String"), ("sentence2", "#2 String")),
        ("not_equivalent", "equivalent"),
        ("f1",),
        ("MRPC.tsv",),
    ),
    "qqp": SentenceTask((("question1",), ("question2",)), ("not_duplicate", "duplicate"), ("f1",), ("QQP.tsv",)),
    "mnli": SentenceTask(_PAIR, _THREE, submission=("MNLI-m.tsv", "MNLI-mm.tsv"), names=True),
    "qnli": SentenceTask((("question",), ("sentence",)), _TWO, submission=("QNLI.tsv",), names=True),
    "rte": SentenceTask(_PAIR, _TWO, submission=("RTE.tsv",), names=True),
    "wnli": SentenceTask(_PAIR, ("not_entailment", "entailment"), submission=("WNLI.tsv",)),
    "snli": SentenceTask(_PAIR, _THREE, submission=("SNLI.tsv",), names=True),
}


def own_task(texts: tuple[str, ...], label: str, labels: tuple[str, ...] = ()) -> SentenceTask:
    """A task on data of the user's own: the columns of one or two texts, the column of labels, names of the classes."""
    columns = tuple((name,) for name in texts)
    return SentenceTask(
        columns, labels, submission=("predictions.tsv",), names=True, label=(label,), unlabelled=("",), numbered=False
    )
