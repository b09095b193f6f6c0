"""Which documents of a corpus a side takes: all of a split, or a share of the documents by their text."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from gmlp_flax.data import splits
from gmlp_flax.data.splits import HELDOUT, TRAIN
from gmlp_flax.data.text import corpora
from gmlp_flax.data.text.corpora import Corpus
from gmlp_flax.errors import DataError


class Selection(NamedTuple):
    """Which documents of a corpus to take.

    Attributes:
        share: of the documents, held out by their text (see data.splits); 0 takes all documents.
        side: "train" or "heldout".
    """

    share: float = 0.0
    side: str = TRAIN

    def check(self) -> None:
        """Raises DataError unless side and share are valid."""
        splits.check_side(self.side)
        if self.share:
            splits.check_share(self.share, "documents")
        elif self.side == HELDOUT:
            raise DataError("side 'heldout' needs a heldout_share above 0; 0.05 holds out 5 % of the documents")

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
        heldout = self.side == HELDOUT
        documents = itertools.chain(first, documents)
        return (document for document in documents if splits.is_heldout(document, self.share) == heldout)

    def _cut(self, document: str) -> str:
        """This side of a single document, cut at the start of the line that crosses 1 - share of its characters."""
        cut = document.rfind("\n", 0, round(len(document) * (1 - self.share))) + 1
        sides = {TRAIN: document[:cut], HELDOUT: document[cut:]}
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
        split, heldout_split: other splits than these.
        heldout_share: the share of the training data to hold out if there is no held-out split, 0 to 1; 0 if `path`
            holds one side alone.

    Raises:
        DataError: as in corpora.open_corpus; or a split would be both trained on and held out.
    """
    known = corpora.splits(path)
    for name in (split, heldout_split) if heldout_share else (heldout_split if side == HELDOUT else split,):
        if name and name not in known:
            raise splits.missing_split(path, name, known)

    def named(default: str) -> str:
        return next((name for name in known if splits.SPLIT_WORDS.get(name) == default), splits.ALL_SPLITS)

    train, heldout = split or named(splits.TRAIN_SPLIT), heldout_split or named(splits.HELDOUT_SPLIT)
    heldout = (heldout,) if heldout or not heldout_share else ()
    options = {"known": known, "explicit": bool(heldout_split)}
    chosen = splits.choose(path, side, (train,), heldout, heldout_share, **options)
    return corpora.open_corpus(path, *chosen.splits), Selection(chosen.share, side) if chosen.share else EVERYTHING
