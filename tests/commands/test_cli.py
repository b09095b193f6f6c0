"""The command line as a user meets it: real processes, and one line for what is wrong."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError
from tests import preloaded

ROOT = Path(__file__).parents[2]


def train(*arguments: str) -> subprocess.CompletedProcess:
    return preloaded.gmlp("train", *arguments)


def assert_one_line(result: subprocess.CompletedProcess, *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: "), result.stderr
    assert not result.stdout
    for word in words:
        assert word in result.stderr


@pytest.mark.smoke
def test_help_config_prints_all():
    result = train("--help_config")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == gmlp_config.help_text() + "\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config.model.layrs=2"], ["--config.model.layrs=2", "'model.layrs'", "did you mean 'model.layers'?"]),
        (["--config.model.layers=2.5"], ["--config.model.layers=2.5: expected a whole number"]),
        (["--config.optimizer.learning_rate=two"], ["--config.optimizer.learning_rate=two: expected a number"]),
        (["--config.log.tensorboard=maybe"], ["--config.log.tensorboard=maybe: expected true or false"]),
        (["--config.model=2"], ["model is a group of keys", "layers"]),
        (["--config.model.gate=foo"], ["config.model.gate is 'foo'", "linear, additive, multiplicative, split"]),
        (["--confg.steps=3"], ["confg.steps"]),
        (["steps=3"], ["'steps=3' is no flag", "--name=value"]),
        (["--processes=2"], ["--processes=2 is given without --coordinator=HOST:PORT"]),
        (["--coordinator=h:80", "--processes=2", "--process=2"], ["--process=2 is not one of --processes=2"]),
        (["--process=-1"], ["process", "-1"]),
        (["--multihost=maybe"], ["multihost", "maybe", "auto|on|off"]),
        (["--multihost=on"], ["found no TPU slice, SLURM or Open MPI", "--coordinator"]),
    ],
    ids=lambda value: value[0].lstrip("-") if len(value) == 1 else "",
)
def test_bad_arguments(tmp_path, arguments, words):
    assert_one_line(train("--config=configs/quickstart_text.py", f"--workdir={tmp_path}/run", *arguments), *words)


def test_missing_flags(tmp_path):
    assert_one_line(train("--config=configs/quickstart_text.py"), "--workdir is missing", "usage: gmlp train")
    assert_one_line(train(f"--workdir={tmp_path}"), "--config is missing", "usage: gmlp train")


HEAD = "from gmlp_flax import config as gmlp_config\ndef get_config(arg=''):\n  config = gmlp_config.default()\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config(arg=''):\n  x = (\n", ["SyntaxError", "line 2"]),
        ("def get_config(arg=''):\n  raise RuntimeError('two\\nlines')\n", ["RuntimeError: two lines"]),
        ("def get_config(arg=''):\n  raise ValueError('bad value')\n", ["ValueError: bad value"]),
        ("def get_config(arg=''):\n  import nowhere\n", ["ModuleNotFoundError", "nowhere"]),
        (HEAD + "  config.model.layrs = 3\n  return config\n", ["'layrs'", "did you mean 'model.layers'?"]),
        (HEAD + "  config.model.update(layrs=3)\n  return config\n", ["'layrs'", "did you mean 'model.layers'?"]),
        (HEAD + "  config.model.layers = '3'\n  return config\n", ["TypeError", "'layers'", "'int'"]),
        ("x = 1\n", ["get_config"]),
    ],
    ids=["syntax", "exception", "value", "import", "key", "update", "type", "function"],
)
def test_bad_config_file(tmp_path, text, words):
    path = tmp_path / "bad.py"
    path.write_text(text)
    assert_one_line(train(f"--config={path}", f"--workdir={tmp_path}/run"), str(path), *words)


def test_config_file_that_returns_nothing(tmp_path):
    """ml_collections warns first."""
    path = tmp_path / "bad.py"
    path.write_text(HEAD)
    result = train(f"--config={path}", f"--workdir={tmp_path}/run")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1] == f"error: {path}: get_config() returned nothing: return the config"


def test_bad_saved_config(tmp_path):
    path = tmp_path / "config.json"
    missing = train(f"--config={path}", f"--workdir={tmp_path}/run")
    assert_one_line(missing, f"cannot read the config: reading {path} failed (No such file")
    path.write_text('{"model": {"layrs": 3}}')
    for flag in ([f"--config={path}"], ["--config", str(path)]):
        result = train(*flag, f"--workdir={tmp_path}/run")
        assert_one_line(result, f"{path}: there is no config key 'model.layrs'; did you mean 'model.layers'?")


def test_saved_config_with_overrides(tmp_path):
    """The two are told from each other by what is wrong last."""
    path = tmp_path / "config.json"
    path.write_text('{"steps": 0, "log": {"every": 0}}')
    for flag in ([f"--config={path}"], ["--config", str(path)]):
        result = train(*flag, f"--workdir={tmp_path}/run", "--config.steps=5")
        assert_one_line(result, "config.log.every is 0")


@pytest.mark.parametrize("behind", [[], ["--config=configs/quickstart_text.py"]])
def test_an_override_with_no_config_before_it(tmp_path, behind):
    result = train("--config.steps=5", f"--workdir={tmp_path}/run", *behind)
    assert_one_line(result, "--config.steps=5 changes no config yet: give --config=FILE:ARGUMENT before it")


def test_missing_config_file(tmp_path):
    result = train("--config=configs/none.py:arg", f"--workdir={tmp_path}")
    assert_one_line(result, "there is no config file configs/none.py")


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["x", "--config=a.py:b", "--workdir=c"], "a.py:b"),
        (["x", "--config", "a.py"], "a.py"),
        (["x"], ""),
        (["x", "--config.steps=3", "-config=a.json"], "a.json"),
        (["x", "--config"], ""),
        (["x", "--config=a.py", "--config", "b.py"], "b.py"),
    ],
)
def test_argument_before_parsing(argv, found):
    assert cli.argument(argv, "config") == found


def test_failure_is_one_line(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.fail("two\n  lines")
    assert caught.value.code == 2
    assert capsys.readouterr().err == "error: two lines\n"


def test_a_long_failure_keeps_its_beginning_and_its_end(capsys):
    """A line of standard input may have any length, and what helps stands at the end."""
    with pytest.raises(SystemExit):
        cli.fail("no mask in " + 10_000_000 * "x" + "; put one there")
    told = capsys.readouterr().err
    assert told.startswith("error: no mask in xxx") and told.endswith("xxx; put one there\n") and len(told) < 2100


def test_interrupt_has_its_own_exit_code(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        cli.explained(interrupted)
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_has_gone_ends_it_in_silence():
    """As in `gmlp train --help_config | true`."""
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "gmlp_flax", "train", "--help_config"]
    with os.fdopen(theirs, "wb") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, timeout=120)
    assert done.stderr == b"" and done.returncode == 128 + signal.SIGPIPE


def test_another_broken_pipe_is_not_hidden(capfd):
    def broken():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        cli.explained(broken)


def test_trusted_modules_are_imported_first(tmp_path, monkeypatch):
    """All of them, however they are written; the word after a last --trust is missing."""
    for name in ("trusted_one", "trusted_two"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    cli.import_trusted([])
    cli.import_trusted(["--workdir=x", "--trust=trusted_one", "-trust", "trusted_two"])
    assert {"trusted_one", "trusted_two"} <= set(sys.modules)
    with pytest.raises(
        ConfigError, match=r"^--trust=no_such_module cannot be imported \(ModuleNotFoundError: No module"
    ):
        cli.import_trusted(["--trust=no_such_module"])
    with pytest.raises(ConfigError, match="^--trust= cannot be imported"):
        cli.import_trusted(["--trust"])


def test_a_full_machine_is_one_line(capsys):
    with pytest.raises(SystemExit), cli.explaining():
        raise MemoryError
    assert capsys.readouterr().err.startswith("error: this machine's memory is full: ")


@pytest.mark.parametrize(
    "words",
    [
        "RESOURCE_EXHAUSTED: 9 bytes",
        "INTERNAL: Error dispatching computation: Out of memory allocating 9 bytes.",
    ],
)
def test_too_little_memory_is_one_line(capsys, words):
    """As XLA tells it: the second one from a computation that has begun."""
    with pytest.raises(SystemExit), cli.explaining():
        raise jax.errors.JaxRuntimeError(words)
    advice = "make the batch or the model smaller, or use more devices"
    assert capsys.readouterr().err == f"error: out of memory ({words}): {advice}\n"
