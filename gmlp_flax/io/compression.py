"""Compressed files: which suffixes are known, and streams of their content."""

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

BUFFER = 1 << 20
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # raised by a damaged file
_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": lambda raw: gzip.GzipFile(fileobj=raw),
    ".xz": lambda raw: _Streams(raw, lzma.LZMADecompressor),
    ".bz2": lambda raw: _Streams(raw, bz2.BZ2Decompressor),
    ".zst": lambda raw: _zstandard(raw),
}
COMPRESSIONS = tuple(_DECOMPRESSORS)  # suffixes of compressed files


def compression(path: str) -> str:
    """The suffix among COMPRESSIONS that `path` ends with, or ''."""
    name = path.lower()
    for kind in COMPRESSIONS:
        if name.endswith(kind):
            return kind
    return ""


def suffix(path: str) -> str:
    """The suffix of `path` in small letters, without that of its compression: ".jsonl" of
    "A.JSONL.gz"; or ''."""
    name = path.lower()
    uncompressed = name.removesuffix(compression(path))
    _, ending = os.path.splitext(uncompressed)
    return ending


def open_compressed(raw: BinaryIO, kind: str) -> BinaryIO:
    """The content of a file compressed as `kind`, one of COMPRESSIONS. The stream cannot seek;
    reading it raises one of DAMAGE if the file is damaged."""
    if not raw.read(1):
        raise EOFError("the file is empty")  # gzip accepts it as an empty archive
    raw.seek(0)
    decompress = _DECOMPRESSORS[kind]
    stream = decompress(raw)
    return io.BufferedReader(stream, BUFFER)


def _zstandard(raw: BinaryIO) -> Any:
    import pyarrow  # slow, and Python has no reader of its own before 3.14

    return pyarrow.CompressedInputStream(raw, "zstd")


class _Streams(io.RawIOBase):
    """The content of a file of one or more compressed streams, which zeros may separate.

    bz2.BZ2File and lzma.LZMAFile drop all that follows a good stream if it does not begin as
    another one, damaged or not.

    Args:
        raw: the file.
        decompressor: makes the decompressor of one stream.
    """

    def __init__(self, raw: BinaryIO, decompressor: Callable[[], Any]):
        self._raw = raw
        self._decompressor = decompressor
        self._stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """See io.RawIOBase; raises EOFError if the last stream has no end."""
        while True:
            data = b""
            if self._stream.eof:
                data = self._next_stream()
                if not data:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input:
                data = self._raw.read(BUFFER)
                if not data:
                    raise EOFError("its end is missing")
            content = self._stream.decompress(data, len(buffer))
            if content:
                buffer[: len(content)] = content
                return len(content)

    def _next_stream(self) -> bytes:
        """The first bytes of the stream after one that has ended, without zeros before it; empty
        after the last one."""
        data = self._stream.unused_data.lstrip(b"\0")
        while not data:
            block = self._raw.read(BUFFER)
            if not block:
                break
            data = block.lstrip(b"\0")
        return data
