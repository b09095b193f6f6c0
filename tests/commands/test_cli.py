"""The command line as a user runs it: real processes, and one line for each error."""

import subprocess
import time
from pathlib import Path

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.commands import cli
from gmlp_flax.io import logs
from tests import preloaded

ROOT = Path(__file__).parents[2]


def train(*arguments: str) -> subprocess.CompletedProcess:
    return preloaded.gmlp("train", *arguments)


def assert_refused(arguments, *words: str) -> None:
    message = preloaded.refused("train", *arguments)
    for word in words:
        assert word in message, message


@pytest.mark.smoke
def test_help_config_prints_all_keys():
    result = train("--help_config")
    assert result.returncode == 0, result.stderr
    assert preloaded.without_heartbeats(result.stderr) == ""
    assert result.stdout == gmlp_config.help_text() + "\n"


TEXT = "--config=configs/quickstart_text.py"
XPK = ("--topology=v5e:4x4", "--cluster=c", "--zone=z", "--project=p", "--image=i")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TEXT], ["--workdir", "gmlp train"]),
        (["--workdir=RUN"], ["--config", "gmlp train"]),
        (["--config.steps=5", "--workdir=RUN"], ["--config.steps=5", "--config=FILE:ARGUMENT"]),
        (["--config=configs/none.py:arg", "--workdir=RUN"], ["configs/none.py"]),
        (
            [TEXT, "--workdir=RUN", "--config.model.layrs=2"],
            ["--config.model.layrs=2", "'model.layers'"],
        ),
        ([TEXT, "--work-dir=RUN"], ["work-dir", "workdir"]),
        (
            [TEXT, "--workdir=RUN", "--config.batch_size=1e9"],
            ["--config.batch_size=1e9: expected a whole number"],
        ),
        (
            [TEXT, "--workdir=RUN", "--config.data.heldout_share=5%"],
            ["--config.data.heldout_share=5%: expected a number"],
        ),
        (
            [TEXT, "--workdir=RUN", "--config.data.search=yes"],
            ["--config.data.search=yes: expected True or False"],
        ),
        ([TEXT, "--workdir=RUN", "--confg.steps=3"], ["confg.steps"]),
        ([TEXT, "--workdir=RUN", "steps=3"], ["'steps=3'", "--name=value"]),
        ([TEXT, "--workdir=RUN", "--processes=2"], ["--processes=2", "--coordinator=HOST:PORT"]),
        (
            [TEXT, "--workdir=RUN", "--multihost=on"],
            ["TPU slice, SLURM or Open MPI", "--coordinator"],
        ),
        (
            [TEXT, "--workdir=RUN", "--trust=no_such_module"],
            ["--trust=no_such_module", "ModuleNotFoundError"],
        ),
        ([TEXT, "--workdir=RUN", "--trust", ""], ["--trust="]),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, arguments, words):
    used = []
    for word in arguments:
        used.append(word.replace("RUN", f"{tmp_path}/run"))
    assert_refused(used, *words)


@pytest.mark.slow
def test_flags_may_have_hyphens():
    arguments = ("launch", "--on=xpk", *XPK, TEXT, "--workdir=gs://bucket/a-run")
    for flag in ("--dry_run", "--dry-run", "--dry-run=true"):
        command = preloaded.gmlp(*arguments, flag).stdout
        assert "--workdir=gs://bucket/a-run" in command
        assert "dry" not in command
    assert train("--help-config").stdout == gmlp_config.help_text() + "\n"


def test_progress_is_shown_at_once_on_a_terminal_and_later_in_a_log(capsys, monkeypatch):
    with cli.waiting("loading"):
        assert capsys.readouterr().err == ""
    monkeypatch.setattr(logs, "BEAT", 0.05)
    with cli.waiting("loading"):
        time.sleep(0.3)
    assert capsys.readouterr().err.startswith("loading: 0 s so far\n")
    monkeypatch.undo()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with cli.waiting("loading"), cli.waiting(""):
        assert capsys.readouterr().err == "loading\n"


@pytest.mark.slow
def test_flagfile_arguments(tmp_path):
    """A nested flagfile with --config and its keys also works for a command that parses its own command
    line."""
    (tmp_path / "more").write_text("# a comment\n--config.steps=7\n")
    (tmp_path / "flags").write_text(f"{TEXT}\n--flagfile={tmp_path}/more\n")
    shown = train(f"--flagfile={tmp_path}/flags", "--help_config")
    assert "config.steps = 7 " in shown.stdout, shown.stderr
    arguments = ("--on=xpk", *XPK, "--workdir=gs://bucket/run", "--dry_run")
    planned = preloaded.gmlp("launch", f"--flagfile={tmp_path}/flags", *arguments)
    assert "--config.steps=7" in planned.stdout, planned
    assert "--flagfile" not in planned.stdout, planned
    assert_refused([f"--flagfile={tmp_path}/none", "--workdir=RUN"], f"{tmp_path}/none")


@pytest.mark.slow
def test_warmup_longer_than_the_run(tmp_path):
    """It is refused where it is set. A config whose steps are only reduced by config.steps is checked
    when it is run."""
    flags = (f"--workdir={tmp_path}/run", "--config.optimizer.warmup=60")
    words = ("config.optimizer.warmup is 60", "config.steps=50")
    command = [TEXT, "--config.steps=50", *flags]
    assert_refused(command, *words)
    own = f"{HEAD}  config.steps = 50\n  config.optimizer.warmup = 70\n  return config\n"
    (tmp_path / "own.py").write_text(own)
    command = [f"--config={tmp_path}/own.py", f"--workdir={tmp_path}/run"]
    assert_refused(command, "warmup is 70")
    for flag in ("--config.steps=60", "--config.optimizer.schedule=rsqrt"):
        shown = train(TEXT, "--config.steps=50", *flags, flag, "--help_config")
        assert shown.returncode == 0, shown.stderr
    shown = train(TEXT, "--config.steps=2", "--help_config")
    assert shown.returncode == 0, shown.stderr


HEAD = "from gmlp_flax import config as gmlp_config\ndef get_config(arg=''):\n  config = gmlp_config.default()\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config(arg=''):\n  x = (\n", ["SyntaxError", "line 2"]),
        (
            "def get_config(arg=''):\n  raise RuntimeError('two\\nlines')\n",
            ["RuntimeError: two lines"],
        ),
        (
            HEAD + "  config.model.update(layrs=3)\n  return config\n",
            ["'layrs'", "did you mean 'model.layers'?"],
        ),
        (
            HEAD + "  config.model.layers = '3'\n  return config\n",
            ["TypeError", "'layers'", "'int'"],
        ),
        ("x = 1\n", ["get_config"]),
    ],
    ids=["syntax", "exception", "update", "type", "function"],
)
def test_bad_config_file_is_one_line(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    command = [f"--config={path}", f"--workdir={tmp_path}/run"]
    assert_refused(command, str(path), *words)


def test_config_file_that_returns_nothing_is_one_line(tmp_path):
    """The error comes after a warning of ml_collections."""
    path = tmp_path / "bad.py"
    path.write_text(HEAD)
    result = train(f"--config={path}", f"--workdir={tmp_path}/run")
    assert result.returncode == 2
    message = "get_config() returned None: expected a ConfigDict, as config.default makes"
    assert result.stderr.splitlines()[-1] == f"error: {path}: {message}"


def test_saved_config_with_overrides(tmp_path):
    """In any order of the flags, and with both ways to write a flag."""
    path = tmp_path / "config.json"
    path.write_text('{"steps": 0, "log": {"every": 0}}')  # --config.steps fixes the steps
    for flag in ([f"--config={path}"], ["--config", str(path)]):
        assert_refused(
            ["--config.steps=5", *flag, f"--workdir={tmp_path}/run"], "config.log.every is 0"
        )


def test_long_error_keeps_its_start_and_end(capsys):
    """A line of standard input may have any length, and the advice is at the end."""
    with pytest.raises(SystemExit) as caught:
        line = "x" * 10_000_000
        cli.fail(f"no\n  mask in {line}; put one there")
    stderr = capsys.readouterr().err
    assert caught.value.code == 2
    assert stderr.startswith("error: no mask in xxx")
    assert stderr.endswith("xxx; put one there\n")
    assert len(stderr) < 2100


def test_interrupt_has_its_own_exit_code(capsys):
    with pytest.raises(SystemExit) as caught, cli.show_errors():
        raise KeyboardInterrupt
    assert caught.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_unrelated_broken_pipe_is_not_hidden(capfd):
    with pytest.raises(BrokenPipeError), cli.show_errors():
        raise BrokenPipeError


def test_full_memory_of_the_machine_is_one_line(capsys):
    with pytest.raises(SystemExit), cli.show_errors():
        raise MemoryError
    assert capsys.readouterr().err.startswith("error: this machine's memory is full: ")


@pytest.mark.parametrize(
    "words",
    [
        "RESOURCE_EXHAUSTED: 9 bytes",
        "INTERNAL: Error: Out of memory allocating 9 bytes.",
    ],
)
def test_out_of_memory_is_one_line(capsys, words):
    """Both are messages of XLA; the second one comes from a computation that has started."""
    with pytest.raises(SystemExit), cli.show_errors():
        raise jax.errors.JaxRuntimeError(words)
    advice = "make the batch or the model smaller, or use more devices"
    err = capsys.readouterr().err
    assert err == f"error: out of memory ({words}): {advice}\n"
