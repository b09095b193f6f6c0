"""Compressed files are read whole, or refused as damaged."""

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
def test_compressed_files_are_read(folder, suffix):
    data = os.urandom(1000) * 2500
    path = write(files.join(folder, "a.jsonl" + suffix), COMPRESS[suffix](data))
    assert compression.compression(path) == suffix
    assert read(path) == data
    with files.open_file(path, decompress=False) as stream:
        assert stream.read() == files.read(path)


@pytest.mark.parametrize("suffix", compression.COMPRESSIONS)
def test_damaged_archives_are_refused(folder, suffix):
    path = files.join(folder, "a.txt" + suffix)
    whole = COMPRESS[suffix](os.urandom(100_000))
    flipped = bytearray(whole)
    flipped[50_000] ^= 1
    half = len(whole) // 2
    cases = [whole[:-20], whole[:half], b"plain text", b""]
    if suffix != ".zst":  # unlike files of the command zstd, pyarrow's have no checksum
        cases.append(bytes(flipped))
    for data in cases:
        write(path, data)
        message = failure(read, path)
        assert message.startswith(f"{path}: truncated or not a {suffix} archive (")


def two_streams(suffix) -> tuple[bytes, bytes]:
    compress = COMPRESS[suffix]
    return compress(b"one" * 1000), compress(b"two" * 1000)


@pytest.mark.parametrize("suffix", compression.COMPRESSIONS)
def test_all_streams_of_a_file_are_read(folder, suffix):
    """pbzip2 and Wikipedia's dumps write several streams."""
    one, two = two_streams(suffix)
    padding = b"" if suffix == ".zst" else bytes(8)
    content = one + padding + two + padding
    path = write(files.join(folder, "a.txt" + suffix), content)
    assert read(path) == b"one" * 1000 + b"two" * 1000


@pytest.mark.parametrize("suffix", compression.COMPRESSIONS)
def test_damage_after_the_first_stream_is_noticed(folder, suffix):
    one, two = two_streams(suffix)
    path = files.join(folder, "a.txt" + suffix)
    damaged = one + b"X" + two[1:]
    truncated = one + two[:5]
    for data in (damaged, truncated):
        write(path, data)
        message = failure(read, path)
        assert message.startswith(f"{path}: truncated or not a {suffix} archive (")


def test_suffixes_are_those_of_the_content():
    assert compression.suffix("A.JSONL.gz") == ".jsonl"
    assert compression.suffix("a/b.c/data.xz") == ""
    assert compression.suffix("table.CSV") == ".csv"
    assert compression.compression("A.TSV.BZ2") == ".bz2"
    assert compression.compression("a.zip") == ""
