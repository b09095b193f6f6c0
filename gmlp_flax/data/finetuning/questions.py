"""Questions on passages, as SQuAD has them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gmlp_flax.data import fingerprints
from gmlp_flax.data.dataset import Examples, line_of
from gmlp_flax.data.fingerprints import Fingerprint
from gmlp_flax.io.records import BadRecord

VERSIONS = ("v1.1", "v2.0")


class Question(NamedTuple):
    """A question on a passage.

    Attributes:
        id: unique in its data.
        title: the title of the passage's article; "" if it is not known.
        context: the passage.
        question: the question.
        answers: (text, start) of each reference, where context[start : start + len(text)] is the
            text; () if the passage holds no answer (v2.0).
    """

    id: str
    title: str
    context: str
    question: str
    answers: tuple[tuple[str, int], ...]

    @property
    def impossible(self) -> bool:
        """Whether the passage holds no answer."""
        return not self.answers


def check(question: Question, version: str) -> None:
    """Raises BadRecord if a question cannot be used in a version of SQuAD."""
    texts = {"context": question.context, "question": question.question}
    for name, text in texts.items():
        if not text.strip():
            raise BadRecord(f"an empty {name}; remove or fix it")
    if question.impossible and version == "v1.1":
        raise BadRecord(
            "no answer, which only v2.0 allows; set config.squad.version=v2.0 or remove the "
            "question"
        )
    for text, start in question.answers:
        if not text.strip():
            raise BadRecord("an empty answer; a question without one has no 'answers'")
        if start < 0 or not question.context.startswith(text, start):
            raise BadRecord(
                f"the answer {text!r} is not in the context at {start}, its answer_start; fix it"
            )


class Questions(Examples):
    """Questions in order; all on passages of the same article are held out together."""

    units = "questions"

    def __init__(self, questions: Sequence[Question]):
        self.questions = questions
        self._titles: dict[str, str] = {}  # passage -> the first title under which it occurs
        for question in questions:
            title = question.title or question.context
            self._titles.setdefault(question.context, title)

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> Question:
        return self.questions[index]

    def key(self, index: int) -> str:
        question = self.questions[index]
        return self._titles[question.context]

    def content(self, index: int) -> bytes:
        question = self.questions[index]
        text = f"{question.context}\n{question.question}"
        return text.encode("utf-8", "surrogatepass")

    def size(self, index: int) -> int:
        question = self.questions[index]
        return len(question.context) + len(question.question)

    def describe(self, index: int) -> str:
        question = self.questions[index]
        answer = "(no answer)"
        if not question.impossible:
            answer, _ = question.answers[0]
        question_line = line_of(question.question)
        answer_line = line_of(answer)
        return f"{question_line}  -> {answer_line}"

    def take(self, indices: np.ndarray) -> "Questions":
        taken = [self.questions[index] for index in indices.tolist()]
        return Questions(taken)

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """All questions."""
        texts = map(repr, self.questions)
        content = fingerprints.digest(texts)
        return {"questions": len(self), "content": content}
