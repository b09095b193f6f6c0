"""Fingerprints, which identify the data of a role without reading all of them. A run saves its
fingerprints, and compares them when it resumes.

A fingerprint is a dict of counts, and of hashes of names, sizes and a sample of the content. It
stays the same if the data move, or are copied with other times.
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gmlp_flax.io import files
from gmlp_flax.io.files import File

Fingerprint = dict[str, int | str]

SAMPLE = 64  # files, at most, whose ends are read
END = 64 << 10  # bytes of an end
_THREADS = 16


def spread(count: int, most: int = SAMPLE) -> list[int]:
    """At most `most` of `count` positions, evenly spread from the first to the last."""
    last = count - 1
    sampled = min(count, most)
    positions = np.linspace(0, last, sampled)
    whole = positions.astype(int)
    different = np.unique(whole)
    return different.tolist()


def digest(values: Iterable[str | bytes]) -> str:
    """A hash of values in order, in hexadecimal."""
    state = hashlib.sha256()
    for value in values:
        content = _as_bytes(value) if isinstance(value, str) else value
        size = len(content)
        state.update(size.to_bytes(8, "little"))
        state.update(content)
    hexadecimal = state.hexdigest()
    return hexadecimal[:16]


def _as_bytes(text: str) -> bytes:
    # Names of files and texts in JSON may have lone surrogates.
    return text.encode("utf-8", "surrogatepass")


def ends(file: File) -> bytes:
    """The first and the last bytes of a file, or all bytes of a small one. Raises DataError if it
    cannot be read."""
    if not file.size:
        return b""
    if file.size <= END:
        return files.read_range(file.path, 0, file.size)
    last_start = file.size - END
    first = files.read_range(file.path, 0, END)
    last = files.read_range(file.path, last_start, file.size)
    return first + last


def of_files(present: Sequence[File]) -> Fingerprint:
    """A fingerprint of the names and sizes of all files, and of the ends of some. Raises DataError
    if a file cannot be read."""
    positions = spread(len(present))
    sample = [present[position] for position in positions]
    with ThreadPoolExecutor(_THREADS) as pool:
        ends_of_files = pool.map(ends, sample)
        content = digest(ends_of_files)
    names = []
    sizes = []
    for file in present:
        names.append(file.name)
        sizes.append(file.size)
    return {
        "files": len(present),
        "bytes": sum(sizes),
        "names": digest(names),
        "content": digest([repr(sizes), content]),
    }


def of_texts(texts: Sequence[str]) -> str:
    """A hash of texts in memory. It is fast if many of them are the same object."""
    checksum_of: dict[str, int] = {}
    checksums = []
    for text in texts:
        if text not in checksum_of:
            content = _as_bytes(text)
            checksum_of[text] = zlib.crc32(content)
        checksums.append(checksum_of[text])
    packed = np.array(checksums, np.uint32)
    return digest([packed.tobytes()])
