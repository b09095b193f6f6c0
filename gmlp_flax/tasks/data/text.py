"""What the data of all tasks on text share: their tokenizer."""

import abc
import functools
import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.data import checks
from gmlp_flax.data.text.tokenizer import DOCUMENTS, NAMED, TOKENIZER_FILE, Tokenizer
from gmlp_flax.data.text.word_piece import KEYS
from gmlp_flax.errors import DataError
from gmlp_flax.io import files as io_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.tasks.data.base import RunFiles, TaskData
from gmlp_flax.tasks.text import require_room


class TextData(TaskData, abc.ABC):
    """Data of a task on text, with the tokenizer that makes token ids of them."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer.

        Raises:
            DataError: there is none, two differ, one is damaged, or it has more pieces than the
                model.
        """
        tokenizer = self.find_tokenizer()
        require_room(self.config, tokenizer)
        return tokenizer

    @abc.abstractmethod
    def find_tokenizer(self) -> Tokenizer:
        """The tokenizer that config and run lead to; raises DataError if there is none."""

    def assets(self) -> dict[str, bytes]:
        """See `TaskData`: the tokenizer's file."""
        return {TOKENIZER_FILE: self.tokenizer.model}


def configured_tokenizer(
    config: ConfigDict, run_files: RunFiles, others: Mapping[str, str] = MappingProxyType({})
) -> Tokenizer | None:
    """The tokenizer in a run's folder, in config.data.tokenizer or in `others`, else the tokenizer
    of the run that it starts from.

    Args:
        config: of the run.
        run_files: the files of the run, or of the one that it starts from.
        others: name in messages -> path of another file that must hold the same tokenizer.

    Returns:
        None if there is none.

    Raises:
        DataError: two that are there differ, or one is damaged.
    """
    keys = {key: config.data[key] for key in KEYS}
    present = _present_tokenizers(run_files, others)
    inherited = {}
    if not present:
        inherited = _inherited_tokenizer(config, run_files)
    path = config.data.tokenizer
    if path in NAMED or io_files.exists(path):
        settled = [*present.values(), *inherited.values()]
        name = f"config.data.tokenizer, {path}"
        present[name] = _load_configured(path, keys, settled)
    elif path and run_files.read_local(TOKENIZER_FILE) is None:
        # A run folder has its own copy, and may have been moved away from the file.
        raise DataError(f"config.data.tokenizer is {path!r}, which does not exist; give a file")
    _require_equal(present)
    tokenizers = present or inherited
    if not tokenizers:
        return None
    name, tokenizer = next(iter(tokenizers.items()))
    tokenizer.check(keys, name)
    return tokenizer


def _present_tokenizers(run_files: RunFiles, others: Mapping[str, str]) -> dict[str, Tokenizer]:
    """The tokenizers of a run's folder and of `others`, by their names in messages."""
    tokenizers = {}
    content = run_files.read_local(TOKENIZER_FILE)
    if content is not None:
        run_path = run_files.path(TOKENIZER_FILE)
        name = f"this run's, {run_path}"
        tokenizers[name] = Tokenizer(content, run_path)
    for source, path in others.items():
        name = f"{source}, {path}"
        tokenizers[name] = Tokenizer.load(path)
    return tokenizers


def _inherited_tokenizer(config: ConfigDict, run_files: RunFiles) -> dict[str, Tokenizer]:
    """The tokenizer of the run that a run starts from, by its name in messages; {} if there is
    none."""
    content = run_files.inherited.get(TOKENIZER_FILE)
    if content is None:
        return {}
    return {"config.init_from": Tokenizer(content, config.init_from)}


def _require_equal(tokenizers: Mapping[str, Tokenizer]) -> None:
    """Raises DataError if two tokenizers, by their names in messages, differ."""
    for (name, tokenizer), (next_name, next_tokenizer) in itertools.pairwise(tokenizers.items()):
        if tokenizer != next_tokenizer:
            raise DataError(
                f"two different tokenizers: {name}, and {next_name}; train and evaluate with one "
                "of them"
            )


def _load_configured(path: str, keys: Mapping[str, str], settled: list[Tokenizer]) -> Tokenizer:
    """The tokenizer of config.data.tokenizer. If a settled tokenizer has the same pieces, it
    replaces this one and decides how text is read, unless the keys of the config do."""
    tokenizer = Tokenizer.load(path, **keys)
    leaves_open = all(value == "auto" for value in keys.values())
    if leaves_open:
        for other in settled:
            if other.same_pieces(tokenizer):
                tokenizer = other
                break
    if tokenizer.note:
        to_stderr(tokenizer.note)
    return tokenizer


def report_unknown(tokenizer: Tokenizer, source: Any, where: str) -> None:
    """Prints the share of [UNK] in the first examples, if the tokenizer may give it.

    Args:
        tokenizer: that made the ids.
        source: examples with "tokens", by position.
        where: what they are, for messages.

    Raises:
        DataError: it is more than half, so nothing can be learned.
    """
    if not tokenizer.may_be_unknown:
        return
    count = min(len(source), DOCUMENTS)
    ids = []
    for index in range(count):
        example = source[index]
        ids.append(example["tokens"])
    line = checks.check_unknown(ids, tokenizer, where)
    to_stderr(line)


def require_texts(inputs: Iterable[Any]) -> None:
    """Raises DataError if a program's input is not text."""
    for text in inputs:
        if not isinstance(text, str):
            name = type(text).__name__
            raise DataError(f"an example of text is {name}: expected str")
