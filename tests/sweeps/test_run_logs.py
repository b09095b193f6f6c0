"""The logs of a sweep's runs: what they begin with, and the error and the last line in them."""

import pytest

from gmlp_flax.sweeps import run_logs

COMMAND = "python -m gmlp_flax.train --workdir=runs/a\n"
TRACEBACK = """Traceback (most recent call last):
  File "block.py", line 3, in __call__
    raise KeyError('bad')
KeyError: 'bad'
"""


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param("", "", id="empty"),
        pytest.param(f"{COMMAND}step 3/9\n", "", id="no error"),
        pytest.param(f"{COMMAND}error: no text\n", "no text", id="our line"),
        pytest.param(f"{COMMAND}{TRACEBACK}", "KeyError: 'bad'", id="exception"),
        pytest.param(f"{COMMAND}{TRACEBACK[:40]}", "Traceback", id="cut traceback"),
        pytest.param(f"{COMMAND}error: old\n{COMMAND}step 3/9\n", "", id="of an earlier command"),
        pytest.param(f"{COMMAND}error: first\nerror: last\n", "last", id="the last of two"),
    ],
)
def test_error_is_that_of_the_last_command(tmp_path, content, error):
    log = tmp_path / "a.log"
    log.write_text(content)
    assert run_logs.read_error(str(log)) == error


def test_missing_log_has_no_error_and_no_line(tmp_path):
    missing = str(tmp_path / "a.log")
    assert run_logs.read_error(missing) == ""
    assert run_logs.last_line(missing) == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(COMMAND, "starting", id="only the command"),
        pytest.param(f"{COMMAND}tokenizing\nstep 3/9\n", "step 3/9", id="short"),
        pytest.param(f"{COMMAND}{'word ' * 20}\n", "word " * 11 + "...", id="long"),
    ],
)
def test_last_line_fits_beside_a_bar(tmp_path, content, line):
    log = tmp_path / "a.log"
    log.write_text(content)
    shown = run_logs.last_line(str(log))
    assert shown == line
    assert len(shown) <= run_logs.LINE_WIDTH


def test_log_is_appended_to_after_a_line_with_the_command(tmp_path):
    log = tmp_path / "out" / "a.log"
    for output in (b"first\n", b"second\n"):
        with run_logs.open_log(str(log), ["python", "a b"]) as file:
            file.write(output)
    assert log.read_text() == "python 'a b'\nfirst\npython 'a b'\nsecond\n"
