"""What recognises the data of a role without reading them all: a run keeps it, and compares it when
it resumes.

A fingerprint is a dict: counts, and hashes of names, sizes and a sample of the content. It stays
the same if the data move, or are copied with other times.
"""

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gmlp_flax.io import files
from gmlp_flax.io.files import File

Fingerprint = dict[str, int | str]

SAMPLE = 64  # files whose ends are read, at most
END = 64 << 10  # bytes of an end
_THREADS = 16


def spread(count: int, most: int = SAMPLE) -> list[int]:
    """At most `most` of `count` positions, evenly spread, the first and the last among them."""
    positions = np.linspace(0, count - 1, min(count, most))
    return np.unique(positions.astype(int)).tolist()


def digest(values: Iterable[str | bytes]) -> str:
    """A hash of values in order, in hexadecimal."""
    state = hashlib.sha256()
    for value in values:
        content = _as_bytes(value) if isinstance(value, str) else value
        state.update(len(content).to_bytes(8, "little"))
        state.update(content)
    return state.hexdigest()[:16]


def _as_bytes(text: str) -> bytes:
    # Names of files may have lone surrogates, and texts of JSON as well.
    return text.encode("utf-8", "surrogatepass")


def ends(file: File) -> bytes:
    """The first and the last bytes of a file, or all of a small one. Raises DataError if it cannot
    be read."""
    if not file.size:
        return b""
    if file.size <= END:
        return files.read_range(file.path, 0, file.size)
    first = files.read_range(file.path, 0, END)
    last = files.read_range(file.path, file.size - END, file.size)
    return first + last


def of_files(present: Sequence[File]) -> Fingerprint:
    """The names and sizes of all files, and the two ends of some. Raises DataError if one cannot be
    read."""
    sample = [present[position] for position in spread(len(present))]
    with ThreadPoolExecutor(_THREADS) as pool:
        content = digest(pool.map(ends, sample))
    sizes = [file.size for file in present]
    return {
        "files": len(present),
        "bytes": sum(sizes),
        "names": digest(file.name for file in present),
        "content": digest([repr(sizes), content]),
    }


def of_texts(texts: Sequence[str]) -> str:
    """A hash of texts in memory, of which many may be the same object."""
    known: dict[str, int] = {}
    for text in texts:
        if text not in known:
            known[text] = zlib.crc32(_as_bytes(text))
    checksums = [known[text] for text in texts]
    return digest([np.array(checksums, np.uint32).tobytes()])
