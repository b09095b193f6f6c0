"""What workers share is made by the first of them."""

import pytest

from tests.once import made_once


def test_the_second_worker_reuses_the_result(tmp_path_factory):
    made = []

    def make(folder):
        made.append(folder)
        (folder / "file").write_text("text")

    first = made_once(tmp_path_factory, "second-makes-nothing", make)
    second = made_once(tmp_path_factory, "second-makes-nothing", make)
    assert first == second
    assert made == [first]
    assert (first / "file").read_text() == "text"


def test_failed_work_is_repeated(tmp_path_factory):
    def fail(folder):
        (folder / "half").write_text("text")
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        made_once(tmp_path_factory, "begun-again", fail)
    folder = made_once(tmp_path_factory, "begun-again", lambda folder: (folder / "all").touch())
    assert not (folder / "half").exists()
    assert (folder / "all").exists()
