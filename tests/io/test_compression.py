"""Compressed files are read whole, or told to be damaged."""

import bz2
import gzip
import lzma
import os

import pyarrow as pa
import pytest

from gmlp_flax.io import files
from tests.failures import failure

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def write(path: str, data: bytes) -> str:
    files.write(path, data)
    return path


def read(path: str) -> bytes:
    with files.open_file(path) as stream:
        return stream.read()


@pytest.mark.parametrize("suffix", COMPRESS)
def test_unpacking(folder, suffix):
    data = os.urandom(1000) * 2500
    path = write(files.join(folder, "a.jsonl" + suffix), COMPRESS[suffix](data))
    assert files.compression(path) == suffix
    assert read(path) == data
    with files.open_file(path, decompress=False) as stream:
        assert stream.read() == files.read(path)


@pytest.mark.parametrize("suffix", files.COMPRESSIONS)
def test_damaged_archives(folder, suffix):
    path = files.join(folder, "a.txt" + suffix)
    whole = COMPRESS[suffix](os.urandom(100_000))
    flipped = bytearray(whole)
    flipped[50_000] ^= 1
    cases = [whole[:-20], whole[: len(whole) // 2], b"plain text", b"", bytes(flipped)]
    if suffix == ".zst":  # pyarrow's have no checksum, other than those of the command zstd
        cases.pop()
    for data in cases:
        assert failure(read, write(path, data)).startswith(f"{path}: truncated or not a {suffix} archive (")


@pytest.mark.parametrize("suffix", files.COMPRESSIONS)
def test_several_streams_in_one_file(folder, suffix):
    """As pbzip2 and Wikipedia's dumps have them. What follows the first is read, or told to be damaged."""
    one, two = COMPRESS[suffix](b"one" * 1000), COMPRESS[suffix](b"two" * 1000)
    padding = b"" if suffix == ".zst" else bytes(8)
    path = write(files.join(folder, "a.txt" + suffix), one + padding + two + padding)
    assert read(path) == b"one" * 1000 + b"two" * 1000
    for data in (one + b"X" + two[1:], one + two[:5]):
        assert failure(read, write(path, data)).startswith(f"{path}: truncated or not a {suffix} archive (")
