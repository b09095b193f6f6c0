"""The checks of every data set: classes that cannot be learned, examples in both splits, and text
that a vocabulary does not know."""

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data import classes
from gmlp_flax.data.dataset import Dataset, Examples
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.errors import DataError, counted, listed
from gmlp_flax.io import files

HELDOUT_SAMPLE = 400  # held-out examples that are searched for in the training data
TRAIN_SAMPLE = 100_000  # training examples whose sizes are compared
MOST_READ = 4000  # examples that are read for a comparison
OVERLAP_REPORTED = 0.01  # a smaller share of equal examples is not worth a line

DOCUMENTS_COMPARED = 4096  # held-out documents that are searched for
DOCUMENTS_SEARCHED = 1 << 18  # training documents that are searched

PASSAGE = 64  # tokens of a passage of held-out text that is searched for
PASSAGES_COMPARED = 1024
TOKENS_SEARCHED = 1 << 22  # training tokens that are searched
# A smaller share may be licences, headings and the like. The first limit holds if all training text
# is searched, the second if a part is.
PASSAGES_REPORTED = 0.05
PASSAGES_REPORTED_OF_PART = 0.01
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of hashes: odd, so that no token is lost in a product

_SEPARATORS = re.compile(r"[\s,;|]+")
_DECIMAL = re.compile(r"[+-]?\d*\.\d+")

UNKNOWN_WARNED = 0.05  # share of [UNK] among the tokens
UNKNOWN_REFUSED = 0.5
FEW_HELDOUT = 20  # examples: one of them is five points of the accuracy


def check_classes(train: Dataset) -> list[str]:
    """A line for each kind of class that cannot be learned well.

    Args:
        train: the examples to train on.

    Raises:
        DataError: every class has a single example, as if the labels were ids or whole texts.
    """
    single = _single_classes(train)
    if single and len(single) == len(train.classes):
        count = len(single)
        name = single[0]
        raise DataError(
            f"{train.path!r}: each of {count:,} classes has a single example to train on, such as "
            f"{name[:60]!r}: are these the labels?"
        )
    notes = []
    absent = classes.absent(train)
    if absent:
        note = _note_of_classes("without an example to train on", absent)
        notes.append(note)
    if single:
        note = _note_of_classes("with a single example to train on", single)
        notes.append(note)
    notes += _notes_on_names(train.classes)
    return notes


def _notes_on_names(names: Sequence[str]) -> list[str]:
    """A line if some names of classes join others, and a line if all of them are decimal
    numbers."""
    notes = []
    joined = _joined_classes(names)
    if joined:
        shown = listed(map(repr, joined), 3)
        notes.append(
            f"note: classes whose names join other classes: {len(joined):,} ({shown}): an example "
            "has one label, so each is a class of its own"
        )
    are_decimal = all(map(_DECIMAL.fullmatch, names))
    if names and are_decimal:
        notes.append(
            f"note: the classes are numbers such as {names[0]!r}: to predict numbers "
            "give --config=finetune_glue:own_number"
        )
    return notes


def _joined_classes(names: Sequence[str]) -> list[str]:
    """The names that consist of several other names, separated by blanks, commas, semicolons or
    bars."""
    known = set(names)
    joined = []
    for name in names:
        with_blanks = _SEPARATORS.sub(" ", name)
        parts = with_blanks.split()
        if len(parts) > 1 and known.issuperset(parts):
            joined.append(name)
    return joined


def check_heldout_classes(heldout: Dataset) -> list[str]:
    """A line if some classes to train on have no held-out example."""
    absent = classes.absent(heldout)
    if not absent:
        return []
    return [_note_of_classes("without a held-out example", absent)]


def check_heldout_size(heldout: Dataset) -> list[str]:
    """A line if there are so few labelled held-out examples that their accuracy says little."""
    counts = heldout.class_counts()
    count = len(heldout)
    if counts is not None:
        count = int(counts.sum())
    if not 0 < count < FEW_HELDOUT:
        return []
    points = 100 / count
    verb = "is" if count == 1 else "are"
    held_out = counted(count, "held-out example")
    return [
        f"note: {held_out} {verb} too few to measure an accuracy: each is worth {points:.0f} "
        "points; hold out more (config.data.heldout_share, or config.data.heldout)"
    ]


def _single_classes(dataset: Dataset) -> list[str]:
    """The classes with a single example; [] if the examples of classes are not counted."""
    counts = dataset.class_counts()
    if counts is None:
        return []
    single = np.flatnonzero(counts == 1)
    return [dataset.classes[label] for label in single.tolist()]


def _note_of_classes(problem: str, names: Sequence[str]) -> str:
    count = len(names)
    shown = listed(map(repr, names), 3)
    return f"note: classes {problem}: {count:,} ({shown})"


def check_overlap(train: Dataset, heldout: Dataset) -> str:
    """Searches the training data for held-out examples, by their content.

    If sizes are known, they are compared first, and examples are read only if the sizes agree.

    Returns:
        A line if more than 1 % of the held-out examples are also trained on; else "".

    Raises:
        DataError: all held-out examples are trained on.
    """
    if train.origin is None and train.fingerprint == heldout.fingerprint:
        raise _trained_on(train, heldout)
    if files.is_remote(train.path) or files.is_remote(heldout.path):
        return ""  # each look takes a request
    sample = spread(len(heldout), HELDOUT_SAMPLE)
    candidates = _same_size(train, heldout, sample)
    if not candidates:
        return ""
    positions = spread(len(candidates), MOST_READ)
    read = [candidates[position] for position in positions]
    equal = _count_equal(train, read, heldout, sample)
    equal_share = equal / len(sample)
    sized_share = min(1.0, TRAIN_SAMPLE / len(train))  # of the training examples, sizes compared
    read_share = len(read) / len(candidates)  # of those with such a size
    searched_share = read_share * sized_share
    overlap = min(1.0, equal_share / searched_share)
    if overlap <= OVERLAP_REPORTED:
        return ""
    if equal == len(sample):
        raise _trained_on(train, heldout)
    return (
        f"note: about {overlap:.0%} of the held-out examples are also in the training data: scores "
        "on them are too high; remove them from one side"
    )


def _count_equal(
    train: Dataset, read: Iterable[int], heldout: Dataset, sample: Iterable[int]
) -> int:
    """The number of held-out examples in `sample` that are equal to a training example in
    `read`."""
    known = {_digest(train.examples, index) for index in read}
    equal = 0
    for index in sample:
        digest = _digest(heldout.examples, index)
        if digest in known:
            equal += 1
    return equal


def _same_size(train: Dataset, heldout: Dataset, sample: Iterable[int]) -> list[int]:
    """The positions of some training examples that have the size of a held-out example in
    `sample`."""
    sizes = set()
    for index in sample:
        size = heldout.examples.size(index)
        if size:
            sizes.add(size)
    candidates = []
    for index in spread(len(train), TRAIN_SAMPLE):
        size = train.examples.size(index)
        if size in sizes:
            candidates.append(index)
    return candidates


def _trained_on(train: Dataset, heldout: Dataset) -> DataError:
    return DataError(
        f"{heldout.name} would be held out, and all of it is also in {train.name}, which is "
        "trained on: give other data as config.data.heldout, or leave it empty to hold out a share"
    )


def check_contradictions(dataset: Dataset) -> str:
    """Looks for equal examples with different labels. Examples without content, such as missing
    files, are left out.

    Returns:
        A line that counts them, or "".

    Raises:
        DataError: more than half of the examples are such.
    """
    if dataset.labels is None or files.is_remote(dataset.path):
        return ""
    equal = _contradicting_groups(dataset)
    if not equal:
        return ""
    count = sum(map(len, equal))
    first, second = _first_of_two_labels(dataset, equal[0])
    line = f"{count:,} equal examples have different labels, such as {first} and {second}"
    if count > len(dataset) / 2:
        raise DataError(f"{dataset.path!r}: {line}: give each example one label")
    return f"note: {line}: their labels contradict each other"


def _contradicting_groups(dataset: Dataset) -> list[list[int]]:
    """Positions of equal examples with different labels, one list for each content.

    Contents are read only if the sizes agree.
    """
    sizes = _sizes_of_labelled(dataset)
    candidates: list[int] = []
    for group in _groups(sizes, sizes.get):
        if _differ(dataset, group):
            candidates += group
    digest = functools.partial(_digest, dataset.examples)
    same_content = _groups(candidates[:MOST_READ], digest)
    return [group for group in same_content if _differ(dataset, group)]


def _sizes_of_labelled(dataset: Dataset) -> dict[int, int]:
    """Position of an example with a label -> its size, for a sample of the examples whose sizes are
    known and not 0."""
    is_labelled = np.isfinite(dataset.labels)
    if dataset.classes:
        is_labelled = dataset.labels >= 0
    sizes = {}
    for index in spread(len(dataset), TRAIN_SAMPLE):
        if not is_labelled[index]:
            continue
        size = dataset.examples.size(index)
        if size:
            sizes[index] = size
    return sizes


def _groups(indices: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    """Groups of two or more indices with the same key."""
    groups: dict[object, list[int]] = {}
    for index in indices:
        key_of_index = key(index)
        group = groups.setdefault(key_of_index, [])
        group.append(index)
    repeated = []
    for group in groups.values():
        if len(group) > 1:
            repeated.append(group)
    return repeated


def _differ(dataset: Dataset, group: list[int]) -> bool:
    """Whether the examples at these positions have different labels."""
    labels = dataset.labels[group]
    different = set(labels.tolist())
    return len(different) > 1


def _first_of_two_labels(dataset: Dataset, group: list[int]) -> tuple[str, str]:
    """Two examples of a group whose labels differ, for messages."""
    labels = dataset.labels
    first, *others = group
    first_label = labels[first]
    second = next(index for index in others if labels[index] != first_label)
    return _with_label(dataset, first), _with_label(dataset, second)


def _with_label(dataset: Dataset, index: int) -> str:
    """The key of an example, and its class or number."""
    label = dataset.labels[index]
    name = f"{label:g}"
    if dataset.classes:
        name = dataset.classes[label]
    key = dataset.examples.key(index)
    return f"{key[:60]!r} ({name})"


def _digest(examples: Examples, index: int) -> bytes:
    content = examples.content(index)
    state = hashlib.blake2b(content, digest_size=16)
    return state.digest()


def check_documents(train: Iterable[bytes], heldout: Iterable[bytes], train_documents: int) -> str:
    """Searches the training documents for held-out ones.

    Args:
        train, heldout: some documents of both splits, as their token ids.
        train_documents: the number of all training documents.

    Returns:
        A line if more than 1 % of the held-out documents are also trained on; else "".

    Raises:
        DataError: all these held-out documents are trained on.
    """
    waiting = Counter(heldout)
    compared = waiting.total()
    searched = 0
    equal = 0
    for document in train:
        searched += 1
        equal += waiting.pop(document, 0)
    if equal <= OVERLAP_REPORTED * compared:
        return ""
    if equal == compared:
        raise DataError(
            f"all of {compared:,} held-out documents that were compared are also trained on: give "
            "other text as config.data.heldout, or leave it empty to hold out a share"
        )
    share = equal / compared
    return (
        f"warning: {equal:,} of {compared:,} held-out documents ({share:.1%}) are also "
        f"among {searched:,} of the {train_documents:,} training documents that were compared: "
        "scores on them are too high; remove them from one side"
    )


def check_passages(
    train: Iterable[np.ndarray], heldout: np.ndarray, separator: int, train_tokens: int
) -> str:
    """Searches the training text for passages of held-out text, wherever they begin, because both
    splits may have parts of the same document.

    Args:
        train: blocks of token ids, int [tokens] each.
        heldout: token ids, int [tokens].
        separator: the id between documents, which no passage crosses.
        train_tokens: the number of all training tokens.

    Returns:
        A line if more than PASSAGES_REPORTED of the passages are also trained on; else "". The
        limit is lower if only a part of the training text is searched.
    """
    starts = _passage_starts(heldout, separator)
    if not len(starts):
        return ""
    hashes = _passage_hashes(heldout)
    wanted = hashes[starts]
    is_found = np.zeros(len(starts), bool)
    searched = 0
    for block in train:
        searched += len(block)
        hashes_of_block = _passage_hashes(block)
        is_found |= np.isin(wanted, hashes_of_block)
    count = np.count_nonzero(is_found)
    share = count / len(starts)
    searched_share = min(1.0, searched / max(1, train_tokens))
    most_shared = max(PASSAGES_REPORTED_OF_PART, PASSAGES_REPORTED * searched_share)
    if share <= most_shared:
        return ""
    return (
        f"warning: {count:,} of {len(starts):,} passages of {PASSAGE} tokens of the held-out text "
        f"({share:.1%}) are also among {searched:,} of the {train_tokens:,} training tokens: "
        "scores on them are too high; remove them from one side"
    )


def _passage_starts(ids: np.ndarray, separator: int) -> np.ndarray:
    """The starts of some passages that do not cross a separator, evenly spread: int [passages]."""
    count = max(0, len(ids) - PASSAGE + 1)
    starts = []
    for start in spread(count, PASSAGES_COMPARED):
        stop = start + PASSAGE
        passage = ids[start:stop]
        if separator not in passage:
            starts.append(start)
    return np.array(starts, np.int64)


def _passage_hashes(ids: np.ndarray) -> np.ndarray:
    """A hash of the PASSAGE tokens from each position on, uint64 [tokens - PASSAGE + 1]."""
    count = max(0, len(ids) - PASSAGE + 1)
    values = ids.astype(np.uint64)
    values += np.uint64(1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(PASSAGE):
        end = offset + count
        hashes *= _FACTOR
        hashes += values[offset:end]
    return hashes


def check_unknown(ids: Sequence[np.ndarray], tokenizer: Any, where: str) -> str:
    """The share of [UNK] among the tokens of some texts.

    Args:
        ids: of each text, int [tokens].
        tokenizer: the tokenizer that made them; its `unk_id` and `special_ids` are read.
        where: what the texts are, for the line.

    Returns:
        A line, which is a warning above UNKNOWN_WARNED.

    Raises:
        DataError: the share is above UNKNOWN_REFUSED: a model would learn nothing.
    """
    parts = [np.zeros(0, np.int64)]
    parts += [part.ravel() for part in ids]
    tokens = np.concatenate(parts)
    is_special = np.isin(tokens, tokenizer.special_ids)
    words = np.count_nonzero(~is_special)
    unknown = np.count_nonzero(tokens == tokenizer.unk_id)
    counted_tokens = unknown + words
    share = unknown / max(1, counted_tokens)
    line = f"{where}: {share:.1%} of the tokens of the first texts are [UNK]"
    if share <= UNKNOWN_WARNED:
        return line
    advice = "give a vocabulary of this language, or see data.do_lower_case and data.strip_accents"
    if share > UNKNOWN_REFUSED:
        raise DataError(f"{line}, from which a model learns nothing: {advice}")
    return f"warning: {line}: {advice}"
