"""Which examples are held out of a split: the CRC-32 of an example's key decides.

    documents        the text
    images           the file's name, class by class; in a TFDS split, the record's position
    labelled text    the first text: examples with the same premise stay together
    questions        the title of the article: no passage is both trained on and held out

A negative share holds out as much from the other end, to choose settings by. The examples that the
positive share holds out are then neither trained on nor held out. Whether an example is held out
depends only on its key and the share, not on the order of the examples or on additions to them.
There is one exception: if a class of images would have no image in one split, one of its images
moves there.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from gmlp_flax.errors import DataError

TRAIN = "train"
HELDOUT = "heldout"
ROLES = (TRAIN, HELDOUT)


def is_member(role: str, key: str, share: float) -> bool:
    """Whether the example with a key has a role, TRAIN or HELDOUT, if a share is held out."""
    position = _hash(key) / 2**32  # from 0 to 1
    holds_out = role == HELDOUT
    if share >= 0:
        is_heldout = position < share
        return is_heldout == holds_out
    is_heldout = position >= 1 + share
    if holds_out:
        return is_heldout
    return not is_heldout and position >= -share


def members(keys: Sequence[str], role: str, share: float) -> np.ndarray:
    """The positions of the keys whose examples have a role: int [members]."""
    chosen = []
    for index, key in enumerate(keys):
        if is_member(role, key, share):
            chosen.append(index)
    return np.array(chosen, np.int64)


def stratified_members(
    keys: list[str], groups: Sequence[np.ndarray], role: str, share: float
) -> np.ndarray:
    """Like `members`, but each role has at least one example of each group: int [members].

    If the keys leave a role empty, the example whose hash is nearest moves there. A negative share
    holds out nothing of a group if the positive share leaves a single example of it to train on.

    Args:
        keys: the keys of all examples.
        groups: positions of the examples of each class, two or more.
        role, share: see `is_member`.

    Returns:
        Positions in order: int [members].
    """
    chosen: list[int] = []
    for group in groups:
        hashes = [_hash(keys[index]) for index in group.tolist()]
        order = np.argsort(hashes, kind="stable")
        by_hash = group[order]
        first, last = _bounds(hashes, share)
        if role != HELDOUT:
            part = by_hash[first:last]
        elif share >= 0:
            part = by_hash[:first]
        else:
            part = by_hash[last:]
        chosen += part.tolist()
    chosen.sort()
    return np.array(chosen, np.int64)


def _bounds(hashes: Sequence[int], share: float) -> tuple[int, int]:
    """The bounds between which two or more hashes, in order, are trained on.

    A positive share holds out the hashes before the first bound, a negative share those from the
    second bound on.
    """
    count = len(hashes)
    positions = np.array(hashes) / 2**32  # from 0 to 1
    is_low = positions < abs(share)
    low_count = int(np.count_nonzero(is_low))
    at_least_one = max(low_count, 1)
    first = min(at_least_one, count - 1)
    if share >= 0:
        return first, count
    is_high = positions >= 1 + share
    high_count = int(np.count_nonzero(is_high))
    most = count - first - 1  # one of the others is trained on
    at_least_one = max(high_count, 1)
    heldout_count = min(at_least_one, most)
    stop = count - heldout_count
    return first, stop


def _hash(key: str) -> int:
    # Lone surrogates are legal in JSON strings and in names of files, but not in UTF-8.
    content = key.encode("utf-8", "surrogatepass")
    return zlib.crc32(content)


def share_in_words(share: float) -> str:
    """A share for messages; a negative one is that of a search of settings, see `is_member`."""
    size = abs(share)
    words = f"heldout_share={size:g}"
    if share < 0:
        words += " and as much for the search of settings (data.search)"
    return words


def nothing_left(what: str, role: str, share: float) -> DataError:
    """The error if a share leaves nothing for a role; `what` is "the articles of ..."."""
    words = share_in_words(share)
    return DataError(
        f"{what}: nothing is left for {role!r} with {words}; change it, give more data, or give "
        "the held-out data a path of their own"
    )
