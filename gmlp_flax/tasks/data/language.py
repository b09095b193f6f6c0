"""What language models are trained on: text as token ids, cut into windows."""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from gmlp_flax.data import checks, embedded, fingerprints, pipeline, splits
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.summary import Tokens, count_tokens
from gmlp_flax.data.text import bigrams, packing, prepare, prepared
from gmlp_flax.data.text import corpus as corpora
from gmlp_flax.data.text.corpus import Corpus
from gmlp_flax.data.text.tokenizer import DOCUMENTS, TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError, UserError
from gmlp_flax.io import cache, files
from gmlp_flax.io.files import File
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.base import single_input
from gmlp_flax.tasks.data.text import TextData, configured_tokenizer, require_texts

EXPECTED = "PATH, a file or a folder"  # of config.data.train
FIRST_TOKENS = 1 << 20  # of a text, which are searched for [UNK]


class MixtureCorpus(NamedTuple):
    """A corpus of config.data.mixture."""

    windows: packing.Packing
    files: Sequence[File]


class LanguageData(TextData):
    """Text to train on and held out, as windows of tokens.

    Attributes:
        extra_tokens: tokens of a window beyond the `model.length` that the model reads.
        closed: whether a [SEP] ends each window, even if the text continues.
        keep_white_space: whether a tokenizer that is trained on the text keeps line breaks, tabs
            and indentation, as a model that writes text needs.
    """

    extra_tokens: ClassVar[int] = 0
    closed: ClassVar[bool] = True
    keep_white_space: ClassVar[bool] = False

    def find_tokenizer(self) -> Tokenizer:
        """See `TextData`: the tokenizer of the run folder, of the config, of prepared data or of
        `config.init_from`; if there is none, one is trained on the text."""
        data = self.config.data
        others = self._prepared_tokenizers()
        tokenizer = configured_tokenizer(self.config, self.run_files, others)
        if tokenizer is not None:
            return tokenizer
        corpus = self.corpus(TRAIN)
        with data_config.errors_name("data.train"):
            return prepare.cached_tokenizer(
                corpus,
                self.config.model.vocab_size,
                self._cache,
                data.max_bad_records,
                self.keep_white_space,
            )

    def _prepared_tokenizers(self) -> dict[str, str]:
        """The tokenizers in the folders of prepared data: name in messages -> path."""
        data = self.config.data
        paths = {"train": data.train, "heldout": data.heldout}
        for path in packing.read_shares(data.mixture):
            paths[path] = path
        tokenizers = {}
        for key, path in paths.items():
            if path and prepared.is_prepared(path):
                name = f"the tokenizer of config.data.{key}"
                tokenizers[name] = os.path.join(path, TOKENIZER_FILE)
        return tokenizers

    @functools.cache  # noqa: B019 - data live as long as their run
    def corpus(self, role: str) -> Corpus:
        """The documents of a role; raises DataError if there is no such corpus."""
        path = data_config.path_of(self.config, role, EXPECTED)
        if path == data_config.EMBEDDED:
            return self._embedded(role)
        if prepared.is_prepared(path):
            raise DataError(
                f"config.data.train={path} holds prepared tokens of one role: give data.heldout as "
                "well, or to search settings (data.search, --choose=best) the text itself"
            )
        read = data_config.open_split(self.config, role, text_reader.read, EXPECTED)
        assert isinstance(read, Corpus)
        return read

    def _embedded(self, role: str) -> Corpus:
        """The text that comes with Python."""
        is_search = self.config.data.search
        role_of_text = TRAIN if is_search else role
        texts = embedded.embedded_text(role_of_text)
        text = corpora.in_memory(f"{data_config.EMBEDDED}, {role}", texts)
        if not is_search:
            return text
        share = data_config.share_of(self.config)
        return text.hold_out(role, share)

    @functools.cache  # noqa: B019 - as above
    def windows(self, role: str) -> packing.Packing:
        """The sequences of a role, "train" or "heldout", as a random-access source of {"tokens",
        "index"}."""
        tokens = self._prepared_tokens(role)
        if self.tokenizer.may_be_unknown:
            searched = min(tokens.tokens, FIRST_TOKENS)
            first = tokens.read(0, searched)
            line = checks.check_unknown([first], self.tokenizer, f"{role} text")
            to_stderr(line)
        with data_config.errors_name(f"data.{role}", "model.length"):
            return self._pack(tokens)

    def _prepared_tokens(self, role: str) -> prepared.Prepared:
        """The text of a role as token ids."""
        data = self.config.data
        path = "" if data.search else data[role]
        if path and prepared.is_prepared(path):
            return prepared.Prepared(path)
        corpus = self.corpus(role)
        with data_config.errors_name(f"data.{role}"):
            return self._prepare(corpus)

    @functools.cached_property
    def mixture(self) -> dict[str, MixtureCorpus]:
        """The corpora of config.data.mixture, by path; if one has splits, its training split."""
        by_path = {}
        for path in packing.read_shares(self.config.data.mixture):
            with data_config.errors_name("data.mixture"):
                by_path[path] = self._open_mixture_corpus(path)
        return by_path

    def _open_mixture_corpus(self, path: str) -> MixtureCorpus:
        if prepared.is_prepared(path):
            tokens = prepared.Prepared(path)
            windows = self._pack(tokens)
            return MixtureCorpus(windows, tokens.files)
        text_splits = text_reader.read(path)
        request = splits.Request(TRAIN)
        corpus: Any = splits.choose(text_splits, request)
        tokens = self._prepare(corpus)
        windows = self._pack(tokens)
        return MixtureCorpus(windows, corpus.files)

    def _prepare(self, corpus: Corpus) -> prepared.Prepared:
        """The text of a corpus as token ids, from the cache or made now."""
        limits = prepare.Limits(max_bad_records=self.config.data.max_bad_records)
        return prepare.prepare_in_cache(corpus, self.tokenizer, self._cache, limits)

    @property
    def _cache(self) -> str | os.PathLike:
        return self.config.data.cache or cache.default_folder()

    def _pack(self, tokens: prepared.Prepared) -> packing.Packing:
        length = self.config.model.length + self.extra_tokens
        return packing.Packing(tokens, length, self.closed)

    def examples(self, role: str) -> pipeline.Source:
        """The sequences of a role; config.eval.examples says how many held-out ones."""
        windows = self.windows(role)
        if role == TRAIN:
            return windows
        options = self.config.eval
        heldout = pipeline.Spread(windows, options.examples)
        if not options.recall_slices:
            return heldout
        vocab_size = self.tokenizer.vocab_size
        return bigrams.WithFrequency(heldout, self.frequent_bigrams, vocab_size)

    @functools.cached_property
    def frequent_bigrams(self) -> np.ndarray:
        """The bigrams that the text to train on, without the mixture, has more than
        config.eval.frequent_bigrams times, see `bigrams.frequent_keys`; none if it is 0.

        Raises:
            DataError: the text to train on cannot be read.
        """
        most = self.config.eval.frequent_bigrams
        if not most:
            return np.empty(0, np.int64)
        try:
            windows = self.windows(TRAIN)
        except UserError as error:
            raise DataError(
                f"{error}; the training text is read because it says which bigrams are frequent: "
                "config.eval.frequent_bigrams=0 counts all bigrams and reads none"
            ) from None
        return bigrams.frequent_keys(windows.prepared, most)

    @functools.cached_property
    def token_counts(self) -> np.ndarray:
        """How often each id occurs in the text to train on, without the mixture: int [vocabulary];
        see `Prepared.counts`."""
        windows = self.windows(TRAIN)
        tokens = windows.prepared
        return tokens.counts(self.config.model.vocab_size)

    def train_order(self) -> pipeline.Order:
        """See `TaskData`: the windows of all corpora, in their shares."""
        by_path = packing.read_shares(self.config.data.mixture)
        shares = list(by_path.values())
        rest = 1 - sum(shares)
        all_shares = [rest, *shares]
        windows = [self.windows(TRAIN)]
        for corpus in self.mixture.values():
            windows.append(corpus.windows)
        return packing.Mixture(windows, all_shares, self.config.seed)

    def fingerprint(self, role: str) -> fingerprints.Fingerprint:
        """See `TaskData`."""
        dataset = self.dataset(role)
        mixed = self._mixture_files() if role == TRAIN else []
        if dataset.files:
            return fingerprints.of_files([*dataset.files, *mixed])
        if not mixed:
            return dataset.fingerprint
        of_mixture = fingerprints.of_files(mixed)
        return {**dataset.fingerprint, "mixture": of_mixture["content"]}

    def _mixture_files(self) -> list[File]:
        """The files of config.data.mixture."""
        mixture_files: list[File] = []
        for corpus in self.mixture.values():
            mixture_files += corpus.files
        return mixture_files

    def dataset(self, role: str) -> Dataset:
        """See `TaskData`."""
        if not self._is_prepared(role):
            return self.corpus(role)
        windows = self.windows(role)
        return windows.prepared.dataset()

    def tokens(self, role: str) -> Tokens:
        """See `TaskData`: those of the first documents, without cutting any."""
        if self._is_prepared(role):
            windows = self.windows(role)
            documents = windows.prepared.some_documents(DOCUMENTS)
            ids = [np.frombuffer(document, np.uint32) for document in documents]
        else:
            texts = self._first_texts(role)
            ids = self.tokenizer.encode_batch(texts)
        return count_tokens(ids, self.tokenizer.unk_id)

    def _first_texts(self, role: str) -> list[str]:
        """The first documents of a role; raises DataError if there are none."""
        corpus = self.corpus(role)
        with data_config.errors_name(f"data.{role}"):
            all_texts = corpus.examples.read()
            texts = list(itertools.islice(all_texts, DOCUMENTS))
            if not texts:
                raise corpora.no_text(corpus)
        return texts

    def _is_prepared(self, role: str) -> bool:
        """Whether the path of a role holds token ids, not text."""
        path = data_config.path_of(self.config, role, EXPECTED)
        return prepared.is_prepared(path)

    def notes(self) -> list[str]:
        """See `TaskData`: whether white space is kept, the parts of a mixture, and whether held-out
        documents are trained on."""
        self._require_other_files()
        lines = self.note_of_white_space()
        heldout = self.windows(HELDOUT).prepared
        train = self.windows(TRAIN).prepared
        trained = [train]
        for path, mixed in self.mixture.items():
            windows = mixed.windows
            trained.append(windows.prepared)
            note = self._note_of_mixture(path, len(windows))
            lines.append(note)
        for tokens in trained:
            note = self._note_of_overlap(tokens, heldout)
            lines.append(note)
        return [line for line in lines if line]

    def _note_of_mixture(self, path: str, sequences: int) -> str:
        """How much a corpus of the mixture is trained on."""
        shares = packing.read_shares(self.config.data.mixture)
        share = shares[path]
        percent = 100 * share
        examples_read = share * self.config.steps * self.config.batch_size
        epochs = examples_read / sequences
        return (
            f"mixture: {percent:.4g} % of the examples from {path} "
            f"({sequences:,} sequences, {epochs:.2g} epochs)"
        )

    def _note_of_overlap(self, train: prepared.Prepared, heldout: prepared.Prepared) -> str:
        """A line if documents or passages of the held-out text are trained on; else ""."""
        searched_documents = train.some_documents(checks.DOCUMENTS_SEARCHED)
        compared_documents = heldout.some_documents(checks.DOCUMENTS_COMPARED)
        line = checks.check_documents(searched_documents, compared_documents, train.documents)
        if line:
            return line
        # Every read of remote text takes a request.
        if files.is_remote(train.folder) or files.is_remote(heldout.folder):
            return ""
        searched = min(heldout.tokens, checks.TOKENS_SEARCHED)
        first = heldout.read(0, searched)
        blocks = train.some_blocks(checks.TOKENS_SEARCHED)
        return checks.check_passages(blocks, first, self.tokenizer.sep_id, train.tokens)

    def note_of_white_space(self) -> list[str]:
        """A line if the tokenizer does not keep line breaks and indentation."""
        if self.tokenizer.keeps_white_space:
            return []
        line = "the tokenizer reads any line breaks, tabs and blanks between words as one blank"
        if not self.keep_white_space:
            return [f"note: {line}"]
        return [
            f"warning: {line}, so this model never writes a line: leave config.data.tokenizer "
            "empty, give bytes, or train one with gmlp prepare --keep_white_space"
        ]

    def _require_other_files(self) -> None:
        """Raises DataError if a file is in the corpora of both roles."""
        if any(map(self._is_prepared, ROLES)):
            return
        heldout = self.corpus(HELDOUT)
        selection = heldout.examples.selection
        if not selection.share:
            train = self.corpus(TRAIN)
            require_other_files(train, heldout)

    @classmethod
    def row(
        cls, config: ConfigDict, inputs: Sequence[Any], label: Any, path: str
    ) -> Mapping[str, Any]:
        """See `TaskData`."""
        require_texts(inputs)
        text = single_input(inputs, "text")
        return {"text": text}


def require_other_files(train: Corpus, heldout: Corpus) -> None:
    """Raises DataError if a file, perhaps under two names, is in both corpora."""
    trained = {os.path.realpath(file.path): file.path for file in train.files}
    for file in heldout.files:
        real_path = os.path.realpath(file.path)
        trained_path = trained.get(real_path)
        if trained_path is not None:
            raise DataError(
                f"{file.path!r} is held out and also trained on, as {trained_path!r}: give other "
                "files, or leave config.data.heldout empty: a share of the documents is held out"
            )
