"""Compressed files: read whole, or refused as damaged."""

import bz2
import gzip
import lzma
import os

import pyarrow as pa
import pytest

from gmlp_flax.io import compression, files
from tests.failures import failure
from tests.io.test_files import read, write

COMPRESS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_unpacking(folder, suffix):
    data = os.urandom(1000) * 2500
    path = write(files.join(folder, "a.jsonl" + suffix), COMPRESS[suffix](data))
    assert compression.compression(path) == suffix
    assert read(path) == data
    with files.open_file(path, decompress=False) as stream:
        assert stream.read() == files.read(path)


@pytest.mark.parametrize("suffix", compression.COMPRESSIONS)
def test_damaged_archives(folder, suffix):
    path = files.join(folder, "a.txt" + suffix)
    whole = COMPRESS[suffix](os.urandom(100_000))
    flipped = bytearray(whole)
    flipped[50_000] ^= 1
    cases = [whole[:-20], whole[: len(whole) // 2], b"plain text", b"", bytes(flipped)]
    if suffix == ".zst":  # pyarrow's have no checksum, other than those of the command zstd
        cases.pop()
    for data in cases:
        assert failure(read, write(path, data)).startswith(
            f"{path}: truncated or not a {suffix} archive ("
        )


@pytest.mark.parametrize("suffix", compression.COMPRESSIONS)
def test_several_streams_in_one_file(folder, suffix):
    """As pbzip2 and Wikipedia's dumps have them. What follows the first is read, or told to be
    damaged."""
    one = COMPRESS[suffix](b"one" * 1000)
    two = COMPRESS[suffix](b"two" * 1000)
    padding = b"" if suffix == ".zst" else bytes(8)
    path = write(files.join(folder, "a.txt" + suffix), one + padding + two + padding)
    assert read(path) == b"one" * 1000 + b"two" * 1000
    for data in (one + b"X" + two[1:], one + two[:5]):
        assert failure(read, write(path, data)).startswith(
            f"{path}: truncated or not a {suffix} archive ("
        )


def test_the_suffix_of_a_file_is_that_of_its_content():
    assert compression.suffix("A.JSONL.gz") == ".jsonl"
    assert compression.suffix("a/b.c/data.xz") == ""
    assert compression.suffix("table.CSV") == ".csv"
    assert compression.compression("A.TSV.BZ2") == ".bz2"
    assert compression.compression("a.zip") == ""
