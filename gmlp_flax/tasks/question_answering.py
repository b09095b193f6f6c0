"""Answers as spans of a passage: SQuAD v1.1 and v2.0, finetuned from a masked language model
(section 4.4)."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from gmlp_flax.data import fingerprints
from gmlp_flax.data.finetuning import squad, squad_answers
from gmlp_flax.data.finetuning.squad import Windows
from gmlp_flax.data.finetuning.squad_answers import Answer, SpanScores
from gmlp_flax.data.text.tokenizer import report_unknown
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.io.records import BadRecords
from gmlp_flax.models.text import SpanPredictor
from gmlp_flax.options import ANY_NUMBER, SIZE, Option, Range
from gmlp_flax.tasks import sides
from gmlp_flax.tasks.base import (
    Baseline,
    Batch,
    Outputs,
    Shapes,
    Sums,
    Totals,
    model_keys,
    weighted_sum,
)
from gmlp_flax.tasks.prediction import Candidates, Prepared
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, Finetuning

GROUPS = ("", "HasAns_", "NoAns_", "best_")  # of v2.0's metrics; v1.1 has the first alone


class QuestionAnswering(Finetuning):
    """Predicts where an answer starts and ends; batches have "start" and "end" int32 [batch] as
    well.

    An example is a window of a passage (see squad.Windows); if it holds no answer, both are at
    [CLS]. As in BERT, training scores every token but padding as a start or end, and an answer may
    only lie in the passage.
    """

    options = TEXT_OPTIONS | {
        "squad.version": Option(
            "v1.1", "SQuAD v1.1, or v2.0 with questions that have no answer", ("v1.1", "v2.0")
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
    best = ("f1", "max")
    hub_task = "question-answering"
    percent = {"accuracy": 100.0} | {
        f"{group}{name}": 1.0 for group in GROUPS for name in ("exact", "f1")
    }
    new_params = ("segments/", "spans/")

    def module(self, rngs: nnx.Rngs) -> nnx.Module:
        """See `Task`."""
        if self.config.model.causal and self.config.squad.version == "v2.0":
            raise ConfigError(
                "the model is causal: [CLS] sees no other token, as v2.0 needs: take squad.version=v1.1"
            )
        return SpanPredictor(self.spec(), self.config.model.vocab_size, rngs, **self.embedding())

    def example_shapes(self) -> Shapes:
        return super().example_shapes() | {"start": ((), jnp.int32), "end": ((), jnp.int32)}

    def loss(self, params: Any, batch: Batch) -> tuple[jax.Array, Sums]:
        """The mean of both cross-entropies, and hits: windows whose start and end are both
        right."""
        sums = _sums(
            self._span_scores(params, batch, model_keys(batch)),
            batch,
            jnp.ones(batch["start"].shape),
        )
        return sums["loss"][0], sums

    def evaluate(self, params: Any, batch: Batch) -> tuple[Sums, Outputs]:
        """Sums as in `loss`, and the fields of squad_answers.SpanScores."""
        scores, weights = self._span_scores(params, batch, None), batch["weight"]
        n_best = min(self.config.squad.n_best, scores.shape[-1])
        starts, ends = (jax.lax.top_k(scores[:, i], n_best) for i in (0, 1))
        outputs = dict(
            zip(SpanScores._fields, (*starts, *ends, scores[..., 0].sum(-1)), strict=True)
        )
        return _sums(scores, batch, weights) | {
            "examples": weighted_sum(jnp.ones_like(weights), weights)
        }, outputs

    def _span_scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Scores of starts and ends, float32 [batch, 2, tokens]; those of padding are the lowest
        float."""
        scores = self.scores(params, batch, key).swapaxes(1, 2)
        padding = batch["tokens"] == self.tokenizer.pad_id
        return jnp.where(padding[:, None], jnp.finfo(scores.dtype).min, scores)

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        """Exact match and F1, in v2.0 also of questions with and without an answer; loss and
        accuracy of windows."""
        groups = ("",) if self.config.squad.version == "v1.1" else GROUPS
        return (
            *(f"{group}{name}" for group in groups for name in ("exact", "f1")),
            "loss",
            "accuracy",
        )

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """F1 and exact match of all questions, in percent, and loss and accuracy of the windows.

        In v2.0, also F1 and exact match of the questions with (HasAns_) and without an answer
        (NoAns_), and what the
        best threshold would give (best_): config.squad.null_threshold is the one that counts.
        """
        windows = self.examples("heldout")
        questions = windows.questions
        answers, _, odds, predictions = self._answers(windows, outputs)
        metrics = squad_answers.evaluate(questions, predictions)
        if odds is None:
            metrics = {name: metrics[name] for name in ("exact", "f1", "total")}
        else:
            del metrics["missing_filled_with_empty"]
            metrics |= squad_answers.best_thresholds(
                questions, squad_answers.predictions(questions, answers), odds
            )
        means = {name: sums[name][0] / sums[name][1] for name in ("loss", "accuracy")}
        return metrics | means | {"windows": int(sums["examples"][1])}

    def baselines(self, sums: Totals) -> list[Baseline]:
        """v1.1: the whole passage answers every question. v2.0: no question has an answer."""
        questions, first = self.examples("heldout").questions, self.config.squad.version == "v1.1"
        name = "the whole passage as the answer" if first else "no answer to any question"
        answers = {question.id: question.context if first else "" for question in questions}
        metrics = squad_answers.evaluate(questions, answers)
        return [Baseline(name, {key: metrics[key] for key in ("exact", "f1")})]

    def prediction_files(self, outputs: Outputs) -> dict[str, bytes]:
        """predictions.json and, of v2.0, null_odds.json, as the official script takes them;
        nbest_predictions.json."""
        windows = self.examples("heldout")
        answers, nulls, odds, predictions = self._answers(windows, outputs)
        files: dict[str, Any] = {
            "predictions.json": predictions,
            "nbest_predictions.json": squad_answers.n_best_lists(windows.questions, answers, nulls),
        }
        files |= {"null_odds.json": odds} if odds else {}
        return {name: json.dumps(content, indent=1).encode() for name, content in files.items()}

    def prepare(self, given: str, truncate: bool = False) -> Prepared:
        """See `Task`: a question and a passage with a tab between; a long passage is read in
        windows. In v2.0 an answer may be "(no answer)".

        Raises:
            RunError: there is no passage.
        """
        question, _, passage = given.partition("\t")
        if not question.strip() or not passage.strip():
            raise RunError(
                f"give a question and a passage with a tab between them, not {given[:60]!r}"
            )
        windows = self._windows([squad.Question("line", "", passage, question, ())])
        examples = [
            {name: np.asarray(value) for name, value in window.items()} for window in windows
        ]
        return Prepared([example | {"weight": np.float32(1)} for example in examples], windows)

    def rank(self, params: Any, batch: Batch, top: int) -> Outputs:
        """See `Task`: the scores of spans."""
        return self.evaluate(params, batch)[1]

    def read_answer(self, prepared: Prepared, outputs: list[Outputs], top: int) -> list[Candidates]:
        """See `Task`: the likeliest answers to the question."""
        scores = {name: np.stack([rows[name] for rows in outputs]) for name in outputs[0]}
        answers, nulls, _, predictions = self._answers(prepared.context, scores)
        best = squad_answers.n_best_lists(prepared.context.questions, answers, nulls)["line"]
        best.sort(key=lambda entry: entry["text"] != predictions["line"])
        return [[(entry["text"] or "(no answer)", entry["probability"]) for entry in best[:top]]]

    def _answers(
        self, windows: Windows, outputs: Outputs
    ) -> tuple[list[list[Answer]], np.ndarray | None, dict[str, float] | None, dict[str, str]]:
        """The best answers to each question; in v2.0, the score and the odds of having none; and
        the predictions."""
        options, scores = (
            self.config.squad,
            SpanScores(**{name: outputs[name] for name in SpanScores._fields}),
        )
        answers = squad_answers.find_answers(
            windows, scores, n_best=options.n_best, max_answer=options.max_answer
        )
        nulls = odds = None
        if options.version == "v2.0":
            nulls = squad_answers.null_scores(windows, scores.null)
            odds = squad_answers.null_odds(windows.questions, answers, nulls)
        predictions = squad_answers.predictions(
            windows.questions, answers, odds, options.null_threshold
        )
        return answers, nulls, odds, predictions

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def examples(self, side: str) -> Windows:
        """The windows of a side, "train" or "heldout". What is not quite as it should be goes to
        standard error.

        Raises:
            DataError: the questions cannot be read, or do not fit the model's length.
        """
        training, version = side == "train", self.config.squad.version
        bad = BadRecords(self.config.data.max_bad_records) if training else None
        expected = f"PATH or tfds:squad/{version}"
        questions = sides.open_side(
            self.config, side, squad.read_side, expected, version=version, bad=bad
        )
        if bad and bad.count:
            sides.warn(side, "questions", f"{bad.count} left out, the first: {bad.first[0]}")
        with sides.errors_name("model.length"):
            windows = self._windows(questions, training)
        report_unknown(self.tokenizer, windows, f"{side} passages")
        if windows.left_out:
            message = f"{windows.left_out} of {len(questions)} have an answer that no token holds, and are left out"
            sides.warn(side, "questions", message)
        return windows

    def texts(self, side: str) -> list[str]:
        """See `Finetuning`: the questions' passages."""
        return [question.context for question in self.examples(side).questions]

    def fingerprint(self, side: str) -> fingerprints.Fingerprint:
        """See `Task`."""
        questions = self.examples(side).questions
        return {"questions": len(questions), "content": fingerprints.digest(map(repr, questions))}

    def _windows(self, questions: list[squad.Question], training: bool = False) -> Windows:
        sizes = dict(
            length=self.length,
            stride=self.config.squad.stride,
            max_query=self.config.squad.max_query,
        )
        return Windows(questions, self.tokenizer, **sizes, training=training)


def _sums(scores: jax.Array, batch: Batch, weights: jax.Array) -> Sums:
    """Loss and hits of scores [batch, 2, tokens]."""
    targets = jnp.stack([batch["start"], batch["end"]], axis=1)
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean(-1)
    hits = (scores.argmax(-1) == targets).all(-1)
    return {"loss": weighted_sum(losses, weights), "accuracy": weighted_sum(hits, weights)}
