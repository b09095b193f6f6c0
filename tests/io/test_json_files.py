"""Untrusted JSON is read within limits."""

import pytest

from gmlp_flax.io import json_files
from tests.failures import failure


def test_values_are_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": [1, -2.5, "\xc3\xa9", null, Infinity]}')
    assert json_files.read(path, dict) == {"a": [1, -2.5, "é", None, float("inf")]}
    assert json_files.parse(b"1" * json_files.DIGITS, "x", int) > 10**298


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{}".encode("utf-16"), "x: not JSON ('utf-8' codec"),
        (b'{"a":\n3', "x: not JSON (Expecting ',' delimiter: line 2 column "),
        (b"1" * 301, "x: not JSON (a number of 301 digits)"),
        (b"-" + b"1" * 5999, "x: not JSON (a number of 6,000 digits)"),
        (b"[" * 100_000, "x: not JSON (nested too deep)"),
        (b"[]", "x holds a list: expected a dict"),
    ],
)
def test_invalid_json_is_refused(data, message):
    assert failure(json_files.parse, data, "x", dict).startswith(message)
