"""Which examples of a split that is shared are held out: the CRC-32 of an example's key decides.

    documents        the text
    images           the file's name, class by class; in a TFDS split, the record's position
    labelled text    the first text: examples with the same premise stay together
    questions        the title of the article: no passage is both trained on and held out

A negative share holds out as much from the other end, to choose settings by; the examples that a
positive share holds out are then neither trained on nor held out. Whether an example is held out
depends on its key and the share alone, not on the order of the examples or on additions to them.
The one exception: if a class of images would have nothing on one side, one of its images moves
there.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from gmlp_flax.errors import DataError

TRAIN = "train"
HELDOUT = "heldout"
ROLES = (TRAIN, HELDOUT)


def is_member(role: str, key: str, share: float) -> bool:
    """Whether the example with this key has a role, TRAIN or HELDOUT, if a share is held out."""
    place = _hash(key) / 2**32
    if share >= 0:
        is_heldout = place < share
        return is_heldout == (role == HELDOUT)
    is_heldout = place >= 1 + share
    if role == HELDOUT:
        return is_heldout
    return not is_heldout and place >= -share


def members(keys: Sequence[str], role: str, share: float) -> np.ndarray:
    """The positions of the keys whose examples have a role: int [members]."""
    chosen = [index for index, key in enumerate(keys) if is_member(role, key, share)]
    return np.array(chosen, np.int64)


def stratified_members(
    keys: list[str], groups: Sequence[np.ndarray], role: str, share: float
) -> np.ndarray:
    """As `members`, but of each group, int [members], at least one example has each role.

    If the keys leave a role empty, the example whose hash is nearest moves there. A negative share
    holds out nothing of a group of which the positive one leaves a single example to train on.

    Args:
        keys: of all examples.
        groups: positions of the examples of each class, two or more.
        role, share: see `is_member`.

    Returns:
        Positions in order: int [members].
    """
    chosen: list[int] = []
    for group in groups:
        hashes = np.array([_hash(keys[index]) for index in group.tolist()], np.uint32)
        by_hash = group[np.argsort(hashes, kind="stable")]
        first, last = _bounds(hashes, share)
        if role == HELDOUT:
            part = by_hash[:first] if share >= 0 else by_hash[last:]
        else:
            part = by_hash[first:last]
        chosen += part.tolist()
    return np.array(sorted(chosen), np.int64)


def _bounds(hashes: np.ndarray, share: float) -> tuple[int, int]:
    """Which of two or more hashes, in order, are trained on: those between two bounds.

    The positive share holds out those before the first, and a negative one those from the second
    on.
    """
    count = len(hashes)
    places = hashes / 2**32
    lowest = int(np.count_nonzero(places < abs(share)))
    first = min(max(lowest, 1), count - 1)
    if share >= 0:
        return first, count
    highest = int(np.count_nonzero(places >= 1 + share))
    most = count - first - 1  # of the others, one is trained on
    last = count - min(max(highest, 1), most)
    return first, last


def _hash(key: str) -> int:
    # Lone surrogates are legal in JSON strings and in names of files, but not in UTF-8.
    return zlib.crc32(key.encode("utf-8", "surrogatepass"))


def nothing_left(what: str, role: str, share: float) -> DataError:
    """The error of a share that leaves nothing for a role; `what` is "the articles of ..."."""
    return DataError(
        f"{what}: nothing is left for {role!r} with heldout_share={share}; change it, give more "
        "data, or give the held-out data a path of their own"
    )
