"""What the tasks on text share: their options, the tokenizer of their model, and lines as
inputs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data import rows, text_rows
from gmlp_flax.data.text.documents import TEXT as TEXT_COLUMN
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.data.text.word_piece import KEYS, VALUES
from gmlp_flax.errors import DataError, RunError
from gmlp_flax.io import compression
from gmlp_flax.io import files as io_files
from gmlp_flax.options import FINETUNED_RUNS, SIZE, VOCABULARY, Option
from gmlp_flax.tasks.base import Files, Task, joined_states
from gmlp_flax.tasks.inference.prediction import Predictor

NO_TOKENIZER = "none"  # the config.data.tokenizer of an exported model that reads only token ids
NO_TEXT = (
    "this model was created without a tokenizer, and reads token ids alone: give "
    "create(..., tokenizer=FILE)"
)
LINES_SUFFIX = ".txt"
# The files of a folder that have these suffixes are read, by their lines or rows.
TEXT_SUFFIXES = (LINES_SUFFIX, *rows.SUFFIXES)
# What to do about a table without the column of the text.
LINES_ADVICE = "; rename the column, or put texts on the lines of a file .txt"

TEXT_OPTIONS = {
    "model.length": Option(
        128,
        "tokens per sequence (the paper's n)",
        SIZE,
        compared=FINETUNED_RUNS,
        aliases=("max_length", "seq_len", "sequence_length"),
    ),
    "model.vocab_size": Option(
        2000,
        "rows of the embedding table, and the size of a tokenizer trained here",
        VOCABULARY,
        architecture=True,
        scaled=True,
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
        "kinds of text that have a learned vector in pretraining (FNet: 4, RoBERTa: 1); 0: none, "
        "and finetuning on pairs adds two",
        (0, 1, 2, 4),
        architecture=True,
    ),
    "model.mask_padding": Option(
        False,
        "attention and convolutions ignore [PAD]; spatial projections and Fourier transforms "
        "never do",
        compared=FINETUNED_RUNS,
    ),
    "data.tokenizer": Option(
        "",
        "a SentencePiece model, a WordPiece vocabulary or a tokenizer.json; `bytes`: no tokenizer; "
        "`listops`: its symbols; empty: trained on the text",
        reads=True,
    ),
    **{f"data.{key}": Option("auto", comment, VALUES) for key, comment in KEYS.items()},
}


class StandInTokenizer(NamedTuple):
    """What a model's shapes and loss depend on, in place of a tokenizer. Its use on text raises
    RunError."""

    vocab_size: int
    special_ids: tuple[int, ...] = tuple(range(5))
    pad_id: int = 0
    mask_id: int = 4

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of copies and pickles
            raise AttributeError(name)
        raise RunError(NO_TEXT)


class TextTask(Task):
    """A task on text: its model reads token ids, and it has the tokenizer that makes them.

    Attributes:
        tokenizer: the tokenizer among the task's files; without one, a stand-in.
        around_encoder: the keys of config.model that describe the embeddings, and a language
            model's logits.

    Raises:
        DataError: the tokenizer has more pieces than the model has embeddings.
    """

    as_classifier: ClassVar[Mapping[str, Any]] = {"task": "text_classification", "glue.task": "own"}
    around_encoder: ClassVar[tuple[str, ...]] = (
        "scale_embeddings",
        "embedding_norm",
        "embedding_projection",
        "token_types",
    )

    def __init__(self, config: ConfigDict, files: Files = MappingProxyType({})):
        super().__init__(config, files)
        self.tokenizer: Any = StandInTokenizer(config.model.vocab_size)
        if TOKENIZER_FILE in files:
            content = files[TOKENIZER_FILE]
            self.tokenizer = Tokenizer(content, TOKENIZER_FILE)
            require_room(config, self.tokenizer)

    def embedding(self) -> dict[str, Any]:
        """The options of a `TextModel`'s embeddings, and of a language model's logits."""
        model = self.config.model
        return {name: model[name] for name in self.around_encoder}

    def padding_mask(self, tokens: Any) -> Any:
        """The mask of tokens [batch, tokens], False for padding; None if the model may read
        padding."""
        if not self.config.model.mask_padding:
            return None
        return tokens != self.tokenizer.pad_id

    def reader(self, params: Any, tokens: Any) -> tuple[Any, Any]:
        """The model that reads texts outside training, and the padding mask that it is given with
        these tokens."""
        model = self.bind(params)
        mask = self.padding_mask(tokens)
        return model, mask

    def features(
        self, params: Any, inputs: Any, layers: Sequence[int] = (-1,), pool: str | None = None
    ) -> jax.Array:
        """See `Task`; the mean is over tokens that are not padding."""
        segments = None
        tokens = inputs
        if isinstance(inputs, Mapping):
            tokens = inputs["tokens"]
            segments = inputs["segments"]
        model, mask = self.reader(params, tokens)
        states = model.states(tokens, layers, segments, mask)
        is_text = tokens != self.tokenizer.pad_id
        return joined_states(states, pool, is_text)

    def as_inputs(self, array: np.ndarray) -> np.ndarray:
        """See `Task`: token ids."""
        vocabulary = self.config.model.vocab_size
        tokens = array.shape[-1]
        is_whole = np.issubdtype(array.dtype, np.integer)
        is_supported = is_whole and self.spec().supports_length(tokens)
        if is_supported and 0 <= array.min() <= array.max() < vocabulary:
            return array
        shape = list(array.shape)
        last_id = vocabulary - 1
        raise DataError(
            f"inputs is an array of {array.dtype} {shape}: expected whole numbers from 0 "
            f"to {last_id}, of {self.length} tokens or fewer"
        )


def require_room(config: ConfigDict, tokenizer: Tokenizer) -> None:
    """Raises DataError if a tokenizer has more pieces than config.model.vocab_size."""
    rows = config.model.vocab_size
    pieces = tokenizer.vocab_size
    if rows < pieces:
        raise DataError(
            f"the tokenizer has {pieces} pieces, config.model.vocab_size is {rows}: raise it, or "
            "train a smaller tokenizer"
        )


class TextPredictor(Predictor):
    """Answers to texts. Its inputs are lines."""

    usage = "< TEXT"
    suffixes = TEXT_SUFFIXES
    reads_tables = True
    array_rank = 2

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        return self.task.tokenizer

    @property
    def pad_id(self) -> int:
        """See `Predictor`: that of [PAD]."""
        return self.tokenizer.pad_id

    def table_columns(self, path: str, header: Sequence[str]) -> tuple[str, ...]:
        """See `Predictor`: `text`."""
        if TEXT_COLUMN not in header:
            raise text_rows.missing_column(path, (TEXT_COLUMN,), header, LINES_ADVICE)
        return (TEXT_COLUMN,)

    def inputs_of_file(
        self, path: str, read_lines: Callable[[str, BinaryIO], Iterator[Any]]
    ) -> Iterator[Any]:
        """See `Predictor`: the lines of the file."""
        if not io_files.exists(path):
            raise DataError(
                f"nothing at {path!r}: arguments are files, folders or patterns of files; texts "
                "are lines of standard input: echo TEXT | gmlp predict ..."
            )
        suffix = compression.suffix(path)
        if suffix not in ("", LINES_SUFFIX):
            expected = ", ".join(TEXT_SUFFIXES)
            raise DataError(
                f"{path}: a {suffix} file is not read; expected one of {expected}: rename it to "
                "end in .txt if each of its lines is a text"
            )
        with io_files.open_file(path) as stream:
            yield from read_lines(path, stream)

    def listed(self, inputs: Any) -> list[Any]:
        """See `Predictor`; raises DataError for input that is not text."""
        texts = list(super().listed(inputs))
        for text in texts:
            if not isinstance(text, str):
                name = type(text).__name__
                raise DataError(f"an input is {name}: expected text, as str")
        return texts

    def note_of_cut(self, tokens: int, text: str, truncate: bool) -> str:
        """A note if a text is longer than the model's sequences and is cut; "" if it is not longer.

        Raises:
            RunError: it is longer, and must not be cut.
        """
        length = self.task.length
        if tokens <= length:
            return ""
        if not truncate:
            start = text[:60]
            raise RunError(
                f"the line has {tokens} tokens, the model reads at most {length}: shorten it, or "
                f"have it cut (--truncate, truncate=True): {start!r}..."
            )
        return f"the line has {tokens} tokens; the model reads the first {length} of them"

    def padded(self, ids: Iterable[Sequence[int]]) -> np.ndarray:
        """Texts as int32 [batch, tokens], padded to the longest text, or to n if the model only
        reads n tokens.

        Raises:
            RunError: a text has more tokens than n.
        """
        texts = list(ids)
        longest = max(len(text) for text in texts)
        length = self.task.length
        if longest > length:
            raise RunError(
                f"a text has {longest} tokens, and the model reads at most {length}: cut it"
            )
        spec = self.task.spec()
        tokens = longest if spec.supports_length(longest) else length
        shape = (len(texts), tokens)
        array = np.full(shape, self.pad_id, np.int32)
        for row, text in zip(array, texts, strict=True):
            row[: len(text)] = text
        return array
