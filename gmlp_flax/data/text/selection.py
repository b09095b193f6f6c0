"""Which documents of a corpus a side takes: all of a split, or a share of the documents by their text."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax.data import splits
from gmlp_flax.data.splits import HELDOUT, TRAIN
from gmlp_flax.data.text import corpora
from gmlp_flax.data.text.corpora import Corpus
from gmlp_flax.errors import DataError
from gmlp_flax.io.files import File


class Selection(NamedTuple):
    """Which documents of a corpus to take.

    Attributes:
        share: of the documents, held out by their text (see data.splits); 0 takes all documents.
        side: "train" or "heldout".
    """

    share: float = 0.0
    side: str = TRAIN

    def pick(self, documents: Iterator[str], whole: bool) -> Iterator[str]:
        """The documents on this side.

        Args:
            documents: some documents of the corpus, or all.
            whole: whether they are all. If there is only one, it is cut at a line: its last `share` is held out.

        Raises:
            DataError: a single document leaves a side empty.
        """
        if not self.share:
            return documents
        first = list(itertools.islice(documents, 2)) if whole else []
        if len(first) == 1:
            return iter([self._cut(first[0])])
        documents = itertools.chain(first, documents)
        return (document for document in documents if splits.is_on(self.side, document, self.share))

    def _cut(self, document: str) -> str:
        """This side of a single document, cut at the start of the line that crosses 1 - share of its characters."""
        shares = (1 - self.share, 1) if self.share > 0 else (1 + 2 * self.share, 1 + self.share)
        cut, end = (document.rfind("\n", 0, round(len(document) * share)) + 1 for share in shares)
        sides = {TRAIN: document[:cut], HELDOUT: document[cut : None if self.share > 0 else end]}
        for side, text in sides.items():
            if not text.strip():
                raise splits.empty_side("the lines of the only document", side, self.share, "more documents or lines")
        return sides[self.side]


EVERYTHING = Selection()


def open_side(
    path: str, side: str, *, split: str = "", heldout_split: str = "", heldout_share: float = 0.0
) -> tuple[Corpus, Selection]:
    """The corpus at `path` that has the documents of a side, and which of them to take.

    In a corpus with splits, `train` is for training and `validation` (or a word that `splits.SPLIT_WORDS` maps to it)
    is held out. In any other, a share is held out.

    Args:
        path: see corpora.
        side: "train" or "heldout".
        split, heldout_split: other splits than these; `split` "all" stands for all documents, whatever splits the names
            of the files tell of.
        heldout_share: the share of the training data to hold out if there is no held-out split, 0 to 1; 0 if `path`
            holds one side alone.

    Raises:
        DataError: as in corpora.open_corpus; a split would be both trained on and held out; or none of several splits
            is one for this side.
    """
    everything = split == splits.EVERYTHING and (side == TRAIN or bool(heldout_share))
    known, split = ((), "") if everything else (corpora.splits(path), split)
    for name in (split, heldout_split) if heldout_share else (heldout_split if side == HELDOUT else split,):
        if name and name not in known:
            raise splits.missing_split(path, name, known)
    train, heldout = split or _named(known, splits.TRAIN_SPLIT), heldout_split or _named(known, splits.HELDOUT_SPLIT)
    key, needed = ("split", train) if heldout_share or side == TRAIN else ("heldout_split", heldout)
    if needed == splits.ALL_SPLITS and len(known) > 1 and any(map(splits.split_words, known)):
        listed = ", ".join(map(repr, known))
        raise DataError(f"{path!r} has the splits {listed}, and none for the side {side!r}: name one with {key}")
    heldout = (heldout,) if heldout or not heldout_share else ()
    options = {"known": known, "explicit": bool(heldout_split)}
    chosen = splits.choose(path, side, (train,), heldout, heldout_share, **options)
    return corpora.open_corpus(path, *chosen.splits), Selection(chosen.share, side) if chosen.share else EVERYTHING


def _named(known: Sequence[str], meaning: str) -> str:
    """The first of the splits that means the split `meaning` of TFDS, or ALL_SPLITS."""
    return next((name for name in known if [*splits.split_words(name)] == [meaning]), splits.ALL_SPLITS)


def describe(sides: Mapping[str, Corpus], share: float = 0.0) -> str:
    """A line on the files of one or two corpora, and on those at the same paths that are not read.

    Args:
        sides: what the files are for ("to train on", "held out") -> the corpus.
        share: the share of the documents that is held out.

    Raises:
        DataError: a file, perhaps under two names, is in both corpora.
    """
    used = [{os.path.realpath(file.path): file.path for file in side.files} for side in sides.values()]
    for path in used[0].keys() & used[1].keys() if len(used) > 1 else ():
        raise DataError(
            f"{used[1][path]!r} is held out and also trained on{'' if used[0][path] == path else f' ({path!r})'}: "
            "give other files, or leave config.data.heldout empty: a share of the documents is held out"
        )
    parts = [f"{_listed(side.files)} {use}" for use, side in sides.items()]
    parts += [f"{100 * abs(share):.3g} % of the documents held out"] if share else []
    others = {file.path: file for side in sides.values() for file in side.others}
    if unread := [file for path, file in others.items() if not any(path in paths.values() for paths in used)]:
        parts.append(f"not read: {_listed(unread)}")
    return f"text: {'; '.join(parts)}"


def _listed(files: Sequence[File]) -> str:
    names = ", ".join([file.name for file in files[:3]] + ["..."] * (len(files) > 3))
    return f"{len(files):,} file{'s' * (len(files) != 1)} ({names})"
