"""What language models share, masked or causal: their text, cut into windows, their tokenizer and
their scores."""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data import embedded, fingerprints, pipeline
from gmlp_flax.data.splits import TRAIN, Side
from gmlp_flax.data.text import corpora, packing, prepare, prepared
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer, report_unknown
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import cache
from gmlp_flax.io.files import File
from gmlp_flax.options import AT_LEAST_0, Option
from gmlp_flax.tasks import sides
from gmlp_flax.tasks.base import Baseline, Batch, Outputs, Shapes, Sums, Totals, weighted_sum
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, TextTask, given_tokenizer

FIRST_TOKENS = 1 << 20  # of a text, among which [UNK] are counted


def cross_entropy(logits: jax.Array, targets: jax.Array, weights: jax.Array) -> Sums:
    """The loss, in nats, and the hits of logits [..., vocabulary] on targets, both summed by
    weights [...]."""
    # Not looked up: a sum can be shared by devices that hold parts of the vocabulary.
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    target_logits = jnp.where(is_target, logits, 0).sum(-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - target_logits
    hits = jnp.argmax(logits, axis=-1) == targets
    return {"loss": weighted_sum(losses, weights), "accuracy": weighted_sum(hits, weights)}


class LanguageModeling(TextTask):
    """Predicts tokens of a text; perplexity is the exponential of the mean cross-entropy over them.

    Attributes:
        more_tokens: tokens of a window beyond the `length` that the model reads.
        closed: whether a [SEP] ends each window, even if the text goes on.
    """

    options: ClassVar[dict[str, Option]] = TEXT_OPTIONS | {
        "model.transform": Option(
            False,
            "BERT's transform layer before the logits (the paper's counts have none)",
            architecture=True,
        ),
        "model.tie_embeddings": Option(
            True,
            "logits from the embedding table; False: from a second table of its size",
            architecture=True,
        ),
        "data.mixture": Option(
            (),
            "PATH=SHARE: further text to train on, and its share of the examples; data.train has the rest",
        ),
        "eval.examples": Option(
            0, "held-out sequences to score, evenly spread over all; 0: all", AT_LEAST_0
        ),
    }
    around_encoder = (*TextTask.around_encoder, "transform", "tie_embeddings")
    best = ("perplexity", "min")
    unit = "tokens"
    more_tokens = 0
    closed = True

    @classmethod
    def check(cls, config: ConfigDict) -> None:
        """See `Task`."""
        packing.read_shares(config.data.mixture)

    @property
    def units_per_example(self) -> int:
        return self.length

    def example_shapes(self) -> Shapes:
        return {"tokens": ((self.length + self.more_tokens,), jnp.int32), "index": ((), jnp.int32)}

    def evaluation_sums(
        self, scores: Sums, batch: Batch, targets: jax.Array, weights: jax.Array
    ) -> Sums:
        """The sums of an evaluation batch: its scores, the examples, and how often each token is a
        target."""
        examples = weighted_sum(jnp.ones_like(batch["weight"]), batch["weight"])
        return scores | {"targets": self.token_counts(targets, weights), "examples": examples}

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[str], label: Any, path: str
    ) -> dict[str, Any]:
        """See `Task`."""
        return {"text": inputs[0]}

    def pad(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        """Texts as int32 [batch, tokens], as many tokens as the longest has, or n if the model
        reads n alone.

        Raises:
            RunError: a text has more tokens than n.
        """
        longest = max(map(len, ids))
        if longest > self.length:
            raise RunError(
                f"a text has {longest} tokens, and the model reads at most {self.length}: cut it"
            )
        tokens = longest if self.spec().supports_length(longest) else self.length
        return np.array(
            [[*text, *[self.tokenizer.pad_id] * (tokens - len(text))] for text in ids], np.int32
        )

    def token_counts(self, tokens: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How often each id of the vocabulary is among the tokens, by their weights, float32
        [vocabulary]; and in all.

        Args:
            tokens, weights: [batch, tokens].
        """
        return jnp.zeros(self.config.model.vocab_size).at[tokens].add(weights), weights.sum()

    @property
    def eval_metrics(self) -> tuple[str, ...]:
        return "perplexity", "accuracy", "loss"

    def summarize(self, sums: Totals, outputs: Outputs) -> dict[str, float]:
        """See Task.summarize; raises DataError if no token was to be predicted."""
        loss, predictions = sums["loss"]
        if not predictions:
            raise DataError(
                "the held-out text has no token to predict, only [UNK]: give other config.data.heldout"
            )
        mean = loss / predictions
        perplexity = math.exp(mean) if mean < 700 else math.inf
        return {
            "perplexity": perplexity,
            "accuracy": sums["accuracy"][0] / predictions,
            "loss": mean,
            "predictions": int(predictions),
            "examples": int(sums["examples"][1]),
        }

    @property
    def unpredicted(self) -> tuple[int, ...]:
        """The ids that are never a target."""
        return self.tokenizer.special_ids

    @functools.cached_property
    def prediction_names(self) -> list[str]:
        """The text of each token of the vocabulary."""
        return [self.tokenizer.piece(token) for token in range(self.tokenizer.vocab_size)]

    def baselines(self, sums: Totals) -> list[Baseline]:
        """The training text's token frequencies without any context."""
        targets, predictions = sums["targets"]
        nats = -(targets * np.log(np.maximum(self.frequencies, 1e-300))).sum()
        return [Baseline("token frequencies alone", {"perplexity": math.exp(nats / predictions)})]

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """The share of each token among those of the training text that may be targets, with one
        added to each count: float64 [vocabulary]."""
        counts = self.windows("train").prepared.counts(self.config.model.vocab_size) + 1.0
        counts[list(self.unpredicted)] = 0
        return counts / counts.sum()

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, of the config, of prepared data or of
        `config.init_from`; if there is none, one is trained on the text.

        Raises:
            DataError: two of them differ, or one is damaged.
        """
        data = self.config.data
        paths = {"train": data.train, "heldout": data.heldout} | {
            path: path for path in packing.read_shares(data.mixture)
        }
        of_prepared = {
            f"the tokenizer of config.data.{key}": os.path.join(path, TOKENIZER_FILE)
            for key, path in paths.items()
            if path and prepared.is_prepared(path)
        }
        if (given := given_tokenizer(self, of_prepared)) is not None:
            return given
        corpus, options = self._corpus("train")
        with sides.errors_name("data.train"):
            return prepare.cached_tokenizer(
                corpus, self.config.model.vocab_size, self._cache, **options
            )

    def examples(self, side: str) -> pipeline.Source:
        """The sequences of a side; of the held-out ones, as many as config.eval.examples says."""
        windows = self.windows(side)
        return windows if side == "train" else pipeline.Spread(windows, self.config.eval.examples)

    def train_batches(self, start: int, host: int, hosts: int) -> pipeline.Batches:
        options = self.pipeline_options()
        seed, own, shares = (
            options.pop("seed"),
            self.windows("train"),
            packing.read_shares(self.config.data.mixture),
        )
        windows = [own, *(further for further, _ in self.further.values())]
        mixture = packing.Mixture(windows, [1 - sum(shares.values()), *shares.values()], seed)
        return pipeline.read_ahead(mixture.batch, start=start, host=host, hosts=hosts, **options)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def windows(self, side: str) -> packing.Packing:
        """The sequences of a side, "train" or "heldout", as a random-access source of {"tokens",
        "index"}."""
        path = "" if self.config.data.search else self.config.data[side]
        if path and prepared.is_prepared(path):
            tokens = prepared.Prepared(path)
        else:
            corpus, options = self._corpus(side)
            with sides.errors_name(f"data.{side}"):
                tokens = prepare.prepare_in_cache(corpus, self.tokenizer, self._cache, **options)
        report_unknown(
            self.tokenizer,
            [{"tokens": tokens.read(0, min(tokens.tokens, FIRST_TOKENS))}],
            f"{side} text",
        )
        with sides.errors_name(f"data.{side}", "model.length"):
            return self._pack(tokens)

    @functools.cached_property
    def further(self) -> dict[str, tuple[packing.Packing, Sequence[File]]]:
        """The windows of the corpora of config.data.mixture, by path, and their files; of one with
        splits, those to train on."""
        by_path = {}
        for path in packing.read_shares(self.config.data.mixture):
            with sides.errors_name("data.mixture"):
                if prepared.is_prepared(path):
                    tokens = prepared.Prepared(path)
                    by_path[path] = self._pack(tokens), tokens.files
                    continue
                corpus, selection = corpora.open_side(path, Side(TRAIN))
                options = {
                    "selection": selection,
                    "max_bad_records": self.config.data.max_bad_records,
                }
                tokens = prepare.prepare_in_cache(corpus, self.tokenizer, self._cache, **options)
                by_path[path] = self._pack(tokens), corpus.files
        return by_path

    def _pack(self, tokens: prepared.Prepared) -> packing.Packing:
        return packing.Packing(tokens, self.length + self.more_tokens, self.closed)

    def fingerprint(self, side: str) -> fingerprints.Fingerprint:
        """See `Task`."""
        path, further = self.config.data[side], [*self.further.values()] if side == TRAIN else []
        more = [file for _, files in further for file in files]
        if path and prepared.is_prepared(path):
            return fingerprints.of_files([*self.windows(side).prepared.files, *more])
        corpus, _ = self._corpus(side)
        if corpus.files:
            return fingerprints.of_files([*corpus.files, *more])
        beside = {"mixture": fingerprints.of_files(more)["content"]} if more else {}
        return {
            "documents": sum(1 for _ in corpus.documents()),
            "content": corpus.fingerprint,
        } | beside

    @property
    def _cache(self) -> str | os.PathLike:
        return self.config.data.cache or cache.default_folder()

    def data_notes(self) -> Iterator[str]:
        """See Task.data_notes: the files of each side, and whether held-out documents are trained
        on."""
        corpora_by_use = {}
        for side, use in (("train", "to train on"), ("heldout", "held out")):
            path = sides.path_of(self.config, side, "PATH, a file or a folder")
            if path != sides.EMBEDDED and not prepared.is_prepared(path):
                corpus, options = self._corpus(side)
                if not (share := options["selection"].share) or side == "train":
                    corpora_by_use[use] = corpus
        if corpora_by_use:
            yield corpora.describe(corpora_by_use, share)
        heldout, shares = (
            self.windows("heldout").prepared,
            packing.read_shares(self.config.data.mixture),
        )
        for path, (windows, _) in self.further.items():
            epochs = shares[path] * self.config.steps * self.config.batch_size / len(windows)
            sequences = f"{len(windows):,} sequences, {epochs:.2g} epochs"
            yield f"mixture: {100 * shares[path]:.4g} % of the examples from {path} ({sequences})"
        for windows in (self.windows("train"), *(further for further, _ in self.further.values())):
            if line := prepared.overlap_note(windows.prepared, heldout):
                yield line

    @functools.cache  # noqa: B019 - as above
    def _corpus(self, side: str) -> tuple[corpora.Corpus, dict[str, Any]]:
        """The documents of a side, see `sides`, and how to read them; raises DataError if there is
        no such corpus."""
        path = sides.path_of(self.config, side, "PATH, a file or a folder")
        if path == sides.EMBEDDED:
            search = self.config.data.search
            corpus = corpora.in_memory(
                f"{path}, {side}", embedded.embedded_text("train" if search else side)
            )
            selected = (
                corpora.Selection(sides.share_of(self.config), side)
                if search
                else corpora.EVERYTHING
            )
        elif prepared.is_prepared(path):
            raise DataError(
                f"config.data.train={path} holds prepared tokens of one side: give data.heldout as well, or to search "
                "settings (data.search, --choose=best) the text itself"
            )
        else:
            corpus, selected = sides.open_side(self.config, side, corpora.open_side)
        return corpus, {"selection": selected, "max_bad_records": self.config.data.max_bad_records}
