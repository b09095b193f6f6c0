"""What recognises the data of a side without reading them all: a run keeps it, and compares it when
it goes on.

A fingerprint is a dict: counts, and hashes of names, sizes and a sample of the content. It stays
the same if the data move, or are copied with other times.
"""

import functools
import hashlib
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gmlp_flax.io import files
from gmlp_flax.io.files import File

Fingerprint = dict[str, int | str]

SAMPLE = 64  # files whose ends are read, at most
_END = 64 << 10  # bytes
_THREADS = 16


def spread(count: int, most: int = SAMPLE) -> list[int]:
    """At most `most` of `count` positions, evenly spread, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()


def digest(values: Iterable[str | bytes]) -> str:
    """A hash of values in order, in hexadecimal."""
    found = hashlib.sha256()
    for value in values:
        content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()[:16]


def ends(file: File) -> bytes:
    """The first and the last bytes of a file, or all of a small one. Raises DataError if it cannot
    be read."""
    start = files.read_range(file.path, 0, min(_END, file.size)) if file.size else b""
    return start + (
        files.read_range(file.path, file.size - _END, file.size) if file.size > _END else b""
    )


def of_files(present: Sequence[File]) -> Fingerprint:
    """The names and sizes of all files, and the two ends of some. Raises DataError if one cannot be
    read."""
    with ThreadPoolExecutor(_THREADS) as pool:
        content = digest(pool.map(ends, [present[at] for at in spread(len(present))]))
    names, sizes = digest(file.name for file in present), [file.size for file in present]
    return {
        "files": len(present),
        "bytes": sum(sizes),
        "names": names,
        "content": digest([repr(sizes), content]),
    }


def of_texts(texts: Sequence[str]) -> str:
    """A hash of texts in memory, of which many may be the same object."""
    crc = functools.cache(lambda text: zlib.crc32(text.encode("utf-8", "surrogatepass")))
    return digest([np.array([crc(text) for text in texts], np.uint32).tobytes()])
