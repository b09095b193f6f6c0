"""Documents that are on both sides of a run, trained on and held out."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.io import files

# What is compared at most: documents, tokens of each side, and shards, evenly spread, whose first documents are taken.
COMPARED, SEARCHED, TOKENS, SHARDS = 4096, 1 << 18, 1 << 24, 16
TOLD = 0.01  # a smaller share of equal documents is not worth a line


def note(train: Prepared, heldout: Prepared) -> str:
    """A line if more than TOLD of COMPARED held-out documents are, token by token, among SEARCHED that are trained on,
    else ""; raises DataError if a file is damaged."""
    compared, searched, equal = Counter(_documents(heldout, COMPARED)), 0, 0
    total = compared.total()
    for document in _documents(train, SEARCHED):
        searched += 1
        equal += compared.pop(document, 0)
    if equal <= TOLD * total:
        return ""
    return (
        f"warning: {equal:,} of {total:,} held-out documents ({equal / total:.1%}) are also trained on, by a look at "
        f"{searched:,} of the {train.documents:,} training documents: their scores are too good; remove them"
    )


def _documents(tokens: Prepared, most: int) -> Iterator[bytes]:
    """The ids of some documents; of a remote folder, whose shards are copied to be read, from one shard."""
    count = len(tokens.offsets) - 1
    picked = spread(count, 1 if files.is_remote(tokens.folder) else SHARDS)
    for shard in picked:
        start, end = (int(tokens.offsets[at]) for at in (shard, shard + 1))
        ids = tokens.read(start, min(end, start + TOKENS // len(picked))).astype(np.uint32)
        ends = np.flatnonzero(ids == tokens.tokenizer.sep_id)[: max(1, most // len(picked))] + 1
        ids = ids[: int(ends.max(initial=0))]
        yield from (document.tobytes() for document in np.split(ids, ends[:-1]) if len(document))
