"""ArrayRecord files appear whole or not at all."""

import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.io.array_writer import new_array_record
from gmlp_flax.io.records import array_records


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "x.array_record"
    with new_array_record(path) as write:
        for record in (b"one", b"", b"three"):
            write(record)
        assert not path.exists()
    assert list(array_records(str(path), 0, None)) == [(0, b"one"), (1, b""), (2, b"three")]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), new_array_record(tmp_path / "x.array_record") as write:
        write(b"one")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="cannot write") as caught, new_array_record(tmp_path / "no" / "x") as write:
        write(b"one")
    assert "\n" not in str(caught.value)
