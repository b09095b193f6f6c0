"""What the tasks on text share: their options, their tokenizer, and what finetuning adds."""

import abc
import functools
import itertools
import os
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data.text.tokenizer import NAMED, TOKENIZER_FILE, Tokenizer
from gmlp_flax.data.text.word_piece import KEYS, VALUES
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.options import SIZE, VOCABULARY, Option
from gmlp_flax.tasks.base import Batch, Shapes, Task
from gmlp_flax.tasks.prediction import batch_of

# BERT's papers finetune at 5e-5 at most, and from 768 channels on
LARGE_MODELS_RATE, SMALL_WIDTH = 1e-4, 256
NO_TOKENIZER = "none"  # as config.data.tokenizer of an exported model that reads token ids alone
NO_TEXT = "this model was created without a tokenizer, and reads token ids alone: give create(..., tokenizer=FILE)"

TEXT_OPTIONS = {
    "model.length": Option(128, "tokens per sequence (the paper's n)", SIZE),
    "model.vocab_size": Option(
        2000,
        "rows of the embedding table, and the size of a tokenizer trained here",
        VOCABULARY,
        architecture=True,
    ),
    "model.scale_embeddings": Option(
        False,
        "embeddings times sqrt(d_model), for blocks that mix tokens from the start",
        architecture=True,
    ),
    "model.embedding_norm": Option(
        False, "BERT's layer norm after the embeddings, in place of that factor", architecture=True
    ),
    "model.embedding_projection": Option(
        False, "FNet's linear layer after the embeddings and their norm", architecture=True
    ),
    "model.token_types": Option(
        0,
        "kinds of text that have a learned vector in pretraining (FNet: 4); 0: none, and finetuning on pairs adds two",
        (0, 2, 4),
        architecture=True,
    ),
    "model.mask_padding": Option(
        False,
        "attention and convolutions ignore [PAD]; spatial projections and Fourier transforms never do",
    ),
    "data.tokenizer": Option(
        "",
        "a SentencePiece model, a WordPiece vocabulary or a tokenizer.json; `bytes`: no tokenizer; `listops`: its "
        "symbols; empty: trained on the text",
    ),
    **{f"data.{key}": Option("auto", comment, VALUES) for key, comment in KEYS.items()},
}


class TextTask(Task):
    """A task on text: it has a tokenizer, which its run folder and its checkpoints keep.

    The constructor also takes `tokenizer`, in place of the one that the config leads to.
    """

    shared_assets = (TOKENIZER_FILE,)
    as_classifier: ClassVar[dict[str, Any]] = {"task": "text_classification", "glue.task": "own"}
    around_encoder: ClassVar = (
        "scale_embeddings",
        "embedding_norm",
        "embedding_projection",
        "token_types",
    )

    def __init__(self, *args: Any, tokenizer: Any = None):
        super().__init__(*args)
        if tokenizer is not None:
            self.tokenizer = tokenizer
        self.pad_id = self.tokenizer.pad_id
        if self.config.model.vocab_size < self.tokenizer.vocab_size:
            raise DataError(
                f"the tokenizer has {self.tokenizer.vocab_size} pieces, config.model.vocab_size is "
                f"{self.config.model.vocab_size}: raise it, or train a smaller tokenizer"
            )

    @functools.cached_property
    @abc.abstractmethod
    def tokenizer(self) -> Any:
        """The run's tokenizer."""

    def embedding(self) -> dict[str, Any]:
        """The options of a `TextModel`'s embeddings, and of a language model's logits."""
        return {name: self.config.model[name] for name in self.around_encoder}

    @classmethod
    def without_data(
        cls, config: ConfigDict, files: Mapping[str, bytes] = MappingProxyType({})
    ) -> Self:
        """See `Task`."""
        given = TOKENIZER_FILE in files
        tokenizer = (
            Tokenizer(files[TOKENIZER_FILE]) if given else StandInTokenizer(config.model.vocab_size)
        )
        return cls(config, "", files, tokenizer=tokenizer)

    def assets(self) -> dict[str, bytes]:
        """The tokenizer's file."""
        return (
            {}
            if isinstance(self.tokenizer, StandInTokenizer)
            else {TOKENIZER_FILE: self.tokenizer.model}
        )

    def padding_mask(self, tokens: Any) -> Any:
        """The mask of tokens [batch, tokens], False for padding; None if the model may read
        padding."""
        return tokens != self.tokenizer.pad_id if self.config.model.mask_padding else None

    def reader(self, params: Any, tokens: Any) -> tuple[Any, Any]:
        """The model that reads texts outside training, and the padding mask that it is given with
        these tokens."""
        return self.bind(params), self.padding_mask(tokens)

    def features(
        self, params: Any, inputs: Any, layers: Sequence[int] = (-1,), pool: str | None = None
    ) -> jax.Array:
        """See `Task`; the mean is over tokens that are not padding."""
        tokens, segments = (
            (inputs["tokens"], inputs["segments"])
            if isinstance(inputs, Mapping)
            else (inputs, None)
        )
        model, mask = self.reader(params, tokens)
        states = model.states(tokens, layers, segments, mask)
        return self._side_by_side(states, pool, tokens != self.tokenizer.pad_id)

    def note_of_cut(self, tokens: int, text: str, truncate: bool) -> str:
        """A note if a text is longer than the model's sequences and is cut; "" if it is not.

        Raises:
            RunError: it is longer, and not to be cut.
        """
        if tokens <= self.length:
            return ""
        if not truncate:
            advice = "shorten it, or have it cut (--truncate, truncate=True)"
            most = f"the model reads at most {self.length}"
            raise RunError(f"the line has {tokens} tokens, {most}: {advice}: {text[:60]!r}...")
        return f"the line has {tokens} tokens; the model reads the first {self.length} of them"


class StandInTokenizer(NamedTuple):
    """What a model's shapes and loss depend on, in place of a tokenizer. To use it on text is a
    RunError."""

    vocab_size: int
    special_ids: tuple[int, ...] = tuple(range(5))
    pad_id: int = 0
    mask_id: int = 4

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of copies and pickles
            raise AttributeError(name)
        raise RunError(NO_TEXT)


def given_tokenizer(task: Task, more: Mapping[str, str] = MappingProxyType({})) -> Tokenizer | None:
    """The tokenizer in a run's folder, in config.data.tokenizer or in `more`, else that of the run
    that it starts from.

    Args:
        task: the run's task.
        more: name in messages -> path of another file that must hold the same tokenizer.

    Returns:
        None if there is none.

    Raises:
        DataError: two that are there differ, or one is damaged.
    """
    own, given = os.path.join(task.folder, TOKENIZER_FILE), task.config.data.tokenizer
    keys = {key: task.config.data[key] for key in KEYS}
    paths = ({"this run's": own} if files.exists(own) else {}) | dict(more)
    tokenizers = {f"{source}, {path}": Tokenizer.load(path) for source, path in paths.items()}
    inherited = task.inherited.get(TOKENIZER_FILE)
    start = Tokenizer(inherited, task.config.init_from) if inherited and not tokenizers else None
    # A run folder has its own copy, and may have been moved away from the file that was given.
    if given in NAMED or files.exists(given):
        tokenizer = Tokenizer.load(given, **keys)
        settled = next(
            (one for one in (*tokenizers.values(), start) if one and one.same_pieces(tokenizer)),
            None,
        )
        if settled and [*keys.values()] == ["auto"] * len(keys):
            tokenizer = settled
        if tokenizer.note:
            to_stderr(tokenizer.note)
        tokenizers[f"config.data.tokenizer, {given}"] = tokenizer
    elif given and "this run's" not in paths:
        raise DataError(f"config.data.tokenizer is {given!r}, which does not exist; give a file")
    for (source, tokenizer), (other, next_tokenizer) in itertools.pairwise(tokenizers.items()):
        if tokenizer != next_tokenizer:
            raise DataError(
                f"two different tokenizers: {source}, and {other}; train and evaluate with one of them"
            )
    tokenizer = next(iter(tokenizers.values()), start)
    if tokenizer is not None:
        tokenizer.check(keys, next(iter(tokenizers), "config.init_from"))
    return tokenizer


class Finetuning(TextTask):
    """A task on texts, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, that starts from a pretrained
    encoder.

    Batches have "tokens" and "segments" int32 [batch, length], or [batch, 2, length] if each text
    of a pair is encoded alone, and "index" int32 [batch]. The encoder is that of
    `config.init_from`, and so are the keys of config.model that describe its architecture. Without
    `init_from` they are the config's, and config.data.tokenizer names the vocabulary.
    """

    unit = "examples"
    inherits_model = True

    def example_shapes(self) -> Shapes:
        text = (self.length,), jnp.int32
        return {"tokens": text, "segments": text, "index": ((), jnp.int32)}

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run folder, of the config or of `config.init_from`.

        Raises:
            DataError: there is none, two differ, or one is damaged.
        """
        if (tokenizer := given_tokenizer(self)) is None:
            starts = "--config.init_from=RUN (books_gmlp comes with gmlp_flax)"
            raise DataError(
                f"there is no vocabulary: give {starts}, or --config.data.tokenizer=FILE"
            )
        return tokenizer

    def notes(self) -> list[str]:
        """See `Task`: a rate for models of 100 M parameters, which leaves a small one as it was,
        and the texts that are on both sides."""
        rate, width = self.config.optimizer.learning_rate, self.config.model.d_model
        lines, trained, heldout = [], {*self.texts("train")}, self.texts("heldout")
        if rate <= LARGE_MODELS_RATE and width <= SMALL_WIDTH:
            small = f"this one, {width} wide, learns little at it"
            advice = (
                "give the config's argument scale=small, or --config.optimizer.learning_rate=4e-3"
            )
            lines.append(
                f"note: the rate {rate:g} suits models as large as BERT-base; {small}: {advice}"
            )
        if again := sum(text in trained for text in heldout):
            lines.append(
                f"note: {again:,} of {len(heldout):,} held-out examples have texts that are trained on, too"
            )
        return lines

    def texts(self, side: str) -> Sequence[Hashable]:
        """The texts of each example of a side, by which one that is on both sides is found."""
        return []

    def encode(self, inputs: Sequence[str]) -> dict[str, np.ndarray]:
        """See `Task`: "tokens" and "segments", of a long passage those of its first window."""
        batch = batch_of(
            [self.prepare(given).examples[0] for given in inputs], self.length, self.pad_id
        )
        return {name: batch[name] for name in ("tokens", "segments")}

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """See `Task`; of tokens alone, all are in the first segment."""
        given = isinstance(inputs, Mapping)
        batch = dict(inputs) if given else {"tokens": inputs, "segments": jnp.zeros_like(inputs)}
        return self.scores(params, batch, None)

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """The model's logits for a batch; `key`, [batch], is given in training."""
        tokens = batch["tokens"]
        return self.apply(params, tokens, batch["segments"], self.padding_mask(tokens), key)
