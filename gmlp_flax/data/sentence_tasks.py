"""GLUE's classification tasks and SNLI: names of their columns, labels, and how they are scored and submitted.

STS-B, GLUE's one regression, and its diagnostics, which have no labels, are left out.
"""

from typing import NamedTuple


class SentenceTask(NamedTuple):
    """What a task's rows hold and how it is scored.

    Attributes:
        texts: for one sentence or two, in the order of the model's input, the names that its column goes by.
        labels: names of the classes in the order of TFDS, which numbered labels follow.
        scores: what GLUE reports beside accuracy, of class 1: "matthews", "f1".
        submission: names of the files that GLUE's server wants, one a part of the test set.
        names: whether these say the names of labels, not their numbers.
        headerless: names of the columns where a file has no header (CoLA).
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    scores: tuple[str, ...] = ()
    submission: tuple[str, ...] = ()
    names: bool = False
    headerless: tuple[str, ...] = ()


_SENTENCE = (("sentence",),)
_PAIR = (("sentence1", "premise"), ("sentence2", "hypothesis"))
_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")

TASKS: dict[str, SentenceTask] = {
    "sst2": SentenceTask(_SENTENCE, ("negative", "positive"), submission=("SST-2.tsv",)),
    "cola": SentenceTask(
        _SENTENCE, ("unacceptable", "acceptable"), ("matthews",), ("CoLA.tsv",),
        headerless=("source", "label", "star", "sentence"),
    ),
    "mrpc": SentenceTask(
        (("sentence1", "#1 String"), ("sentence2", "#2 String")), ("not_equivalent", "equivalent"), ("f1",),
        ("MRPC.tsv",),
    ),
    "qqp": SentenceTask((("question1",), ("question2",)), ("not_duplicate", "duplicate"), ("f1",), ("QQP.tsv",)),
    "mnli": SentenceTask(_PAIR, _THREE, submission=("MNLI-m.tsv", "MNLI-mm.tsv"), names=True),
    "qnli": SentenceTask((("question",), ("sentence",)), _TWO, submission=("QNLI.tsv",), names=True),
    "rte": SentenceTask(_PAIR, _TWO, submission=("RTE.tsv",), names=True),
    "wnli": SentenceTask(_PAIR, ("not_entailment", "entailment"), submission=("WNLI.tsv",)),
    "snli": SentenceTask(_PAIR, _THREE, submission=("SNLI.tsv",), names=True),
}
