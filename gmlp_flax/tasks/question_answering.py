"""Answers as spans of a passage: SQuAD v1.1 and v2.0, finetuned from a masked language model
(section 4.4)."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.data import text_rows
from gmlp_flax.data.finetuning import squad_answers
from gmlp_flax.data.finetuning.questions import VERSIONS, Question
from gmlp_flax.data.finetuning.squad_answers import Answer, SpanScores
from gmlp_flax.data.finetuning.windows import Windows
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.data.pipeline import stack
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models.text import SpanPredictor
from gmlp_flax.options import ANY_NUMBER, SIZE, Option, Range
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Inheritance,
    Outputs,
    Shapes,
    Sums,
    Totals,
    example_count,
    means,
    weighted_sum,
)
from gmlp_flax.tasks.data.questions import QuestionData, windows_of
from gmlp_flax.tasks.finetuning import Finetuning, FinetuningPredictor
from gmlp_flax.tasks.inference.prediction import Candidates, Prepared
from gmlp_flax.tasks.text import LINES_ADVICE, TEXT_OPTIONS

SCORES = ("exact", "f1")
# v2.0 also scores questions with and without an answer, and the best threshold.
GROUPS = ("", "HasAns_", "NoAns_", "best_")
SCORES_V2 = tuple(f"{group}{name}" for group in GROUPS for name in SCORES)
NO_ANSWER = "(no answer)"
QUESTION_COLUMNS = ("question", "context")  # of a table of questions
LINE = "line"  # the id of a question on a command line


class Answers(NamedTuple):
    """The answers to some questions.

    Attributes:
        best: the answers to each question, best ones first.
        nulls: v2.0: the score of having no answer, float64 [questions]; else None.
        odds: v2.0: id -> the score of having no answer minus the best answer's; else None.
        predictions: id -> the text that is scored, "" for no answer.
    """

    best: list[list[Answer]]
    nulls: np.ndarray | None
    odds: dict[str, float] | None
    predictions: dict[str, str]


class QuestionPredictor(FinetuningPredictor):
    """Answers a question on a passage, with a tab between the two."""

    def table_columns(self, path: str, header: Sequence[str]) -> tuple[str, ...]:
        """See `Predictor`: `question` and `context`."""
        for column in QUESTION_COLUMNS:
            if column not in header:
                raise text_rows.missing_column(path, (column,), header, LINES_ADVICE)
        return QUESTION_COLUMNS

    def prepare(self, value: str, truncate: bool = False) -> Prepared:
        """See `Predictor`: a long passage is read in windows. In v2.0 an answer may be NO_ANSWER.

        Raises:
            RunError: there is no passage.
        """
        question, _, passage = value.partition("\t")
        if not question.strip() or not passage.strip():
            start = value[:60]
            raise RunError(f"give a question and a passage with a tab between them, not {start!r}")
        questions = [Question(LINE, "", passage, question, ())]
        windows = windows_of(self.task.config, self.tokenizer, questions)
        examples = []
        for window in windows:
            example: dict[str, Any] = {}
            for name, array in window.items():
                example[name] = np.asarray(array)
            example["weight"] = np.float32(1)
            examples.append(example)
        return Prepared(examples, windows)

    def rank(self, params: Any, batch: Batch, top: int) -> Outputs:
        """See `Predictor`: the scores of spans."""
        _, outputs = self.task.evaluate(params, batch)
        return outputs

    def read_answer(self, prepared: Prepared, outputs: list[Outputs], top: int) -> list[Candidates]:
        """See `Predictor`: the most likely answers to the question."""
        windows = prepared.context
        stacked = stack(outputs)
        answers = self.task.answers(windows, stacked)
        lists = squad_answers.n_best_lists(windows.questions, answers.best, answers.nulls)
        n_best = lists[LINE]
        predicted = answers.predictions[LINE]
        n_best.sort(key=lambda entry: entry["text"] != predicted)  # the predicted one first
        candidates = []
        for entry in n_best[:top]:
            name = entry["text"] or NO_ANSWER
            candidate = (name, entry["probability"])
            candidates.append(candidate)
        return [candidates]


class QuestionAnswering(Finetuning):
    """Predicts where an answer starts and ends; batches have "start" and "end" int32 [batch] as
    well.

    An example is a window of a passage (see data.finetuning.windows). If it holds no answer, start
    and end are both at [CLS]. As in BERT, training scores every token except padding as a start or
    end, and an answer may only lie in the passage.
    """

    options = TEXT_OPTIONS | {
        "squad.version": Option(
            "v1.1",
            "SQuAD v1.1, or v2.0 with questions that have no answer",
            VERSIONS,
            selects_data=True,
        ),
        "squad.stride": Option(128, "tokens from one window of a passage to the next", SIZE),
        "squad.max_query": Option(64, "a question's tokens at most; the rest is cut off", SIZE),
        "squad.max_answer": Option(30, "tokens of an answer at most", SIZE),
        "squad.n_best": Option(
            20,
            "starts and ends that are combined per window, and answers kept per question",
            Range("from 1 to 1,000", 1, 1000),
        ),
        "squad.null_threshold": Option(
            0.0,
            "v2.0: no answer if its score exceeds the best answer's by more than this",
            ANY_NUMBER,
        ),
    }
    Data: ClassVar = QuestionData
    Predictor: ClassVar = QuestionPredictor
    inheritance = Inheritance(
        model=True, shared=(TOKENIZER_FILE,), new_params=("segments/", "spans/")
    )
    best = ("f1", "max")
    hub_task = "question-answering"
    percent = {"accuracy": 100.0, **dict.fromkeys(SCORES_V2, 1.0)}

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        if config.model.causal and config.squad.version == "v2.0":
            raise ConfigError(
                "the model is causal: [CLS] sees no other token, as v2.0 needs: take "
                "squad.version=v1.1"
            )

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        spec = self.spec()
        rows = self.config.model.vocab_size
        embedding = self.embedding()
        return SpanPredictor(spec, rows, rngs, **embedding)

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        shapes = super().example_shapes()
        position = ((), jnp.int32)
        return {**shapes, "start": position, "end": position}

    def sums(self, params: Any, batch: Batch, weights: jax.Array, key: jax.Array | None) -> Sums:
        """See `Task`: the mean of both cross-entropies, and hits: windows whose start and end are
        both right."""
        scores = self._span_scores(params, batch, key)
        return _span_sums(scores, batch, weights)

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Sums as in training, and the fields of SpanScores."""
        weights = batch["weight"]
        scores = self._span_scores(params, batch, None)
        tokens = scores.shape[-1]
        n_best = min(self.config.squad.n_best, tokens)
        start_scores, start_positions = jax.lax.top_k(scores[:, 0], n_best)
        end_scores, end_positions = jax.lax.top_k(scores[:, 1], n_best)
        cls_scores = scores[..., 0]
        outputs: Outputs = {
            "start_scores": start_scores,
            "start_positions": start_positions,
            "end_scores": end_scores,
            "end_positions": end_positions,
            "null": cls_scores.sum(-1),
        }
        sums = _span_sums(scores, batch, weights)
        sums["examples"] = example_count(weights)
        return sums, outputs

    def _span_scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Scores of starts and ends, float32 [batch, 2, tokens]; those of padding are the lowest
        float."""
        scores_by_token = self.scores(params, batch, key)
        scores = scores_by_token.swapaxes(1, 2)
        is_padding = batch["tokens"] == self.tokenizer.pad_id
        is_padding = is_padding[:, None]  # for starts and ends
        lowest = jnp.finfo(scores.dtype).min
        return jnp.where(is_padding, lowest, scores)

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """Exact match and F1, in v2.0 also of questions with and without an answer; loss and
        accuracy of windows."""
        scores = SCORES_V2 if self._allows_no_answer else SCORES
        return *scores, "loss", "accuracy"

    @property
    def _allows_no_answer(self) -> bool:
        return self.config.squad.version == "v2.0"

    def summarize(self, sums: Totals, outputs: Outputs, data: QuestionData) -> dict[str, float]:
        """F1 and exact match of all questions, in percent, and loss and accuracy of the windows.

        In v2.0, also F1 and exact match of the questions with (HasAns_) and without an answer
        (NoAns_), and what they would be with the best threshold (best_). The other metrics use
        config.squad.null_threshold.
        """
        windows = data.examples(HELDOUT)
        questions = windows.questions
        answers = self.answers(windows, outputs)
        metrics = squad_answers.evaluate(questions, answers.predictions)
        if answers.odds is None:
            names = (*SCORES, "total")
            metrics = {name: metrics[name] for name in names}
        else:
            del metrics["missing_filled_with_empty"]
            with_answers = squad_answers.predictions(questions, answers.best)
            metrics |= squad_answers.best_thresholds(questions, with_answers, answers.odds)
        metrics |= means(sums, ("loss", "accuracy"))
        _, window_count = sums["examples"]
        return {**metrics, "windows": int(window_count)}

    def baselines(self, sums: Totals, data: QuestionData) -> list[Baseline]:
        """v1.1: the whole passage answers every question. v2.0: no question has an answer."""
        windows = data.examples(HELDOUT)
        questions = windows.questions
        if self._allows_no_answer:
            name = "no answer to any question"
            answers = {question.id: "" for question in questions}
        else:
            name = "the whole passage as the answer"
            answers = {question.id: question.context for question in questions}
        metrics = squad_answers.evaluate(questions, answers)
        scores = {score: metrics[score] for score in SCORES}
        return [Baseline(name, scores)]

    def prediction_files(self, outputs: Outputs, data: QuestionData) -> dict[str, bytes]:
        """predictions.json and, in v2.0, null_odds.json, as the official script takes them; also
        nbest_predictions.json."""
        windows = data.examples(HELDOUT)
        answers = self.answers(windows, outputs)
        n_best = squad_answers.n_best_lists(windows.questions, answers.best, answers.nulls)
        contents: dict[str, Any] = {
            "predictions.json": answers.predictions,
            "nbest_predictions.json": n_best,
        }
        if answers.odds:
            contents["null_odds.json"] = answers.odds
        files = {}
        for name, content in contents.items():
            text = json.dumps(content, indent=1)
            files[name] = text.encode()
        return files

    def answers(self, windows: Windows, outputs: Outputs) -> Answers:
        """The answers to the questions of some windows.

        Args:
            windows: that the model has read.
            outputs: of `evaluate`, [windows, ...].
        """
        options = self.config.squad
        questions = windows.questions
        fields = [outputs[name] for name in SpanScores._fields]
        scores = SpanScores(*fields)
        best = squad_answers.find_answers(
            windows, scores, n_best=options.n_best, max_answer=options.max_answer
        )
        nulls = None
        odds = None
        if self._allows_no_answer:
            nulls = squad_answers.null_scores(windows, scores.null)
            odds = squad_answers.null_odds(questions, best, nulls)
        threshold = options.null_threshold
        predictions = squad_answers.predictions(questions, best, odds, threshold)
        return Answers(best, nulls, odds, predictions)


def _span_sums(scores: jax.Array, batch: Batch, weights: jax.Array) -> Sums:
    """Loss and hits of scores [batch, 2, tokens]."""
    targets = jnp.stack([batch["start"], batch["end"]], axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, targets)
    predicted = scores.argmax(-1)
    is_hit = predicted == targets
    return {
        "loss": weighted_sum(losses.mean(-1), weights),
        "accuracy": weighted_sum(is_hit.all(-1), weights),
    }
