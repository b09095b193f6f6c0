"""Training and held-out data: which split each side reads, and which examples of a shared split are
held out.

Every data set has two sides, "train" and "heldout". A side reads a split of its own if the data
have one. Otherwise the sides share the training split, and the CRC-32 of a key decides which
examples are held out:

    documents    the text
    images       the file's name, class by class; in a TFDS split, the record's position
    sentences    the first text of the example: examples with the same premise stay together
    questions    the title of the article: no passage is on both sides

A negative share holds out as much from the other end, to choose settings by; neither side has the
reported part. An example's side depends on its key and the share alone, not on the order of the
examples or on additions to them.
The one exception: if a class of images would have nothing on a side, one of its images moves there.
"""

import re
import unicodedata
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gmlp_flax.errors import DataError, listed

T = TypeVar("T")

TRAIN, HELDOUT = "train", "heldout"
SIDES = (TRAIN, HELDOUT)

# Words in the names of files and folders and in the fields of rows, and what TFDS calls the split
# that they stand for.
SPLIT_WORDS = {
    **dict.fromkeys(
        ("train", "training", "trn", "entrainement", "entraînement", "entrenamiento", "treino"),
        "train",
    ),
    **dict.fromkeys("训练 訓練 学習 훈련 학습 обучение".split(), "train"),
    **dict.fromkeys(
        ("validation", "valid", "val", "dev", "devel", "development", "eval", "evaluation"),
        "validation",
    ),
    **dict.fromkeys(
        "heldout holdout validierung validación validação 验证 驗證 検証 검증 валидация".split(),
        "validation",
    ),
    **dict.fromkeys(
        "test testing tests tst devtest prueba teste 测试 測試 テスト 테스트 тест".split(), "test"
    ),
}
# Names of columns, as letters, that may say which split or fold a row is of.
_COLUMNS = (
    "fold folds kfold cv cvfold split splitid set setid subset partition phase tag dataset".split()
)
_MANY = 8  # different values of a column that names no splits
_WORD = re.compile(r"\bh[eo]ld\Wout(?:set|data)?\b|\w+")  # held_out is one word

# which training and evaluation read by default, by TFDS's names
TRAIN_SPLIT, HELDOUT_SPLIT = "train", "validation"
ALL_SPLITS = ""  # the name of all the data, whatever their splits
EVERYTHING = "all"  # as config.data.split: all text, whatever splits its names tell of


def split_words(name: str) -> dict[str, str]:
    """The splits that the name of a file or a folder mentions: TFDS's name of the split -> the word
    in small letters.

    A word of SPLIT_WORDS counts anywhere in the name, in any case, alone or with "set" or "data":
    `val_1`, `Testing`, `en-train2-b`, `trainA`, `Trainingsdaten`, `训练集`. Words end at what is no
    letter, and where a capital follows a small letter; so `latest`, `trains` and `developers`
    mention none. `trainval` mentions two.
    """
    name = re.sub(r"(?<=[a-z])(?=[A-Z])|[\d_]", " ", unicodedata.normalize("NFC", name))
    found: dict[str, str] = {}
    for word in _WORD.findall(name.lower()):
        word = re.sub(r"\W|(set|data|s?daten|数据集?|集)$", "", word)
        for part in ("train", "val") if word == "trainval" else (word,):
            if part in SPLIT_WORDS:
                found.setdefault(SPLIT_WORDS[part], part)
    return found


def split_of(name: str) -> str:
    """TFDS's name for the split in the name of a file or a folder, or ""; raises DataError if it
    mentions two."""
    found = split_words(name)
    if len(found) > 1:
        raise DataError(
            f"{name!r} can be read as the split {' or '.join(map(repr, found))}: rename it to one of them"
        )
    return next(iter(found), "")


def may_name_splits(column: str) -> bool:
    """Whether a column with this name may say which split or fold a row is of."""
    return "".join(filter(str.isalpha, column.lower())).removeprefix("is") in (
        *_COLUMNS,
        *SPLIT_WORDS,
    )


def add_values(columns: dict[str, set[str]], row: Mapping[str, Any]) -> None:
    """Adds the values of a row to those of each column, of which a few are kept."""
    for name, value in row.items():
        if len(values := columns.setdefault(name, set())) < _MANY:
            values.add(str(value)[:40])


def check_columns(columns: Mapping[str, Collection[str]], path: str) -> list[str]:
    """A line for each column of a table that is not read and may number splits or folds of rows;
    raises DataError if one says which rows are held out. `columns` as `add_values` makes them."""
    notes = []
    for name, values in columns.items():
        words = [(*split_words(value),) for value in values]
        named = len({*words}) > 1 and all(len(found) == 1 for found in words)
        is_flag = name.lower().startswith("is") and split_words(name) and len(values) == 2
        names_splits = len(values) < _MANY and (named or is_flag)
        may_number = (
            len(values) > 1
            and (len(values) < _MANY or "fold" in name.lower())
            and may_name_splits(name)
        )
        if names_splits or may_number:
            does = "seems to name splits" if names_splits else "may number folds or splits"
            what = f"{path}: the column {name!r} {does} ({listed(map(repr, sorted(values)))}), and is not read"
            if names_splits:
                raise DataError(
                    f"{what}: give the data of config.data.train and heldout as two files, or drop it"
                )
            notes.append(f"{what}: rows to hold out need a file of their own")
    return notes


def is_on(side: str, key: str | bytes, share: float) -> bool:
    """Whether the example with this key is on a side when `share` of all examples are held out."""
    place = _hash(key) / 2**32
    heldout = place >= 1 + share if share < 0 else place < share
    return heldout if side == HELDOUT else not heldout and place >= -share


def heldout_members(keys: Iterable[str | bytes], share: float) -> np.ndarray:
    """The held-out members of a group with the keys of at least two examples, some of which must be
    on each side.

    Returns:
        bool [keys]: as `is_on`, unless that leaves a side empty; then the example whose hash is
        nearest moves there.
    """
    hashes = np.fromiter(map(_hash, keys), np.uint32)
    hashes = ~hashes if share < 0 else hashes
    count = np.clip(np.sum(hashes < abs(share) * 2**32), 1, len(hashes) - 1)
    heldout = np.zeros(len(hashes), bool)
    heldout[np.argsort(hashes, kind="stable")[:count]] = True
    return heldout


def _hash(key: str | bytes) -> int:
    # Lone surrogates are legal in JSON strings but not in UTF-8.
    return zlib.crc32(key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass"))


class Choice(NamedTuple):
    """What a side reads."""

    splits: tuple[str, ...]  # their names; () if the data have none for this side
    share: float  # of their examples that is held out; 0 if the side is all of them


class Side(NamedTuple):
    """A side of a data set, and what the config says of both sides.

    Attributes:
        name: "train" or "heldout".
        split, heldout_split: the splits to train on and to hold out, other than those that such
            data usually have.
        heldout_share: of the examples, held out if there is no split for it; 0 if the path holds
            one side alone.
    """

    name: str
    split: str = ""
    heldout_split: str = ""
    heldout_share: float = 0.0

    def choose(
        self, path: str, train: tuple[str, ...], heldout: tuple[str, ...], known: Sequence[str] = ()
    ) -> Choice:
        """Decides whether the side reads a split of its own or a share of the training split.

        Args:
            path: of the data, for errors.
            train, heldout: the splits meant for each side, ALL_SPLITS for all the data; () if there
                is none.
            known: all splits of the data, for errors.

        Raises:
            DataError: the `heldout_split` is also trained on. Another one that is trained on is not
                held out.
        """
        share = self.heldout_share
        if share and heldout and (set(train) & set(heldout) or ALL_SPLITS in train):
            if self.heldout_split:
                has = f" (it has {listed(map(repr, known))})" if known else ""
                raise DataError(
                    f"the split {heldout[0]!r} of {path!r} would be both trained on and held out; give two splits as "
                    f"config.data.split and heldout_split{has}"
                )
            heldout = ()
        if share < 0 or (share and not heldout):
            return Choice(train, share)
        return Choice({TRAIN: train, HELDOUT: heldout}[self.name], 0.0)

    def members(self, examples: Sequence[T], keys: Iterable[str], what: str) -> list[T]:
        """The examples on the side when a share is held out, by their keys; raises DataError,
        naming `what` they are, if there is none."""
        share = self.heldout_share
        chosen = [
            example
            for example, key in zip(examples, keys, strict=True)
            if is_on(self.name, key, share)
        ]
        if not chosen:
            raise empty_side(what, self.name, share)
        return chosen


def missing_split(path: str, split: str, known: Sequence[str]) -> DataError:
    """The error of data that do not have the split a user asked for."""
    if not any(known):
        return DataError(
            f"{path!r} has no split {split!r}: it names no splits; leave the split empty"
        )
    return DataError(
        f"{path!r} has no split {split!r}: it has {listed(map(repr, known))}; give one of these"
    )


def empty_side(what: str, side: str, share: float) -> DataError:
    """The error of a share that leaves a side without examples; `what` they are: "the articles of
    'squad.json'"."""
    advice = "change it, or give more data, or the held-out data a path of their own"
    return DataError(
        f"{what} leave nothing on the side {side!r} with heldout_share={share}; {advice}"
    )
