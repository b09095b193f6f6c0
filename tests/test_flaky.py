"""Tests that fail and then pass are listed."""

import json

from tests import flaky

FAILED = json.dumps({"tests/a.py::test_b": True, "tests/a.py::test_a": True, "tests/c.py": True})


def test_tests_that_passed_alone_are_listed_by_name(capsys, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    flaky.main(FAILED, json.dumps({"tests/c.py": True}))
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "test.sh: flaky, failed and then passed: 2",
        "  tests/a.py::test_a",
        "  tests/a.py::test_b",
    ]
    assert summary.read_text() == printed


def test_nothing_is_printed_if_all_failures_remain(capsys, monkeypatch, tmp_path):
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    flaky.main(FAILED, FAILED)
    assert capsys.readouterr().out == ""
    assert not summary.exists()
