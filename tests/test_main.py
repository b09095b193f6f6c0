"""The `gmlp` command: its subcommands, their help, and what starting it costs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from absl import flags

import gmlp_flax
from gmlp_flax import __main__ as gmlp_main
from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.commands import cli
from tests import preloaded

ROOT = pathlib.Path(__file__).parents[1]
HEAVY = ("absl", "jax", "numpy", "ml_collections", "gmlp_flax.config", "gmlp_flax.models")


@pytest.fixture
def gmlp(monkeypatch, capsys):
    """Runs `gmlp WORDS` in this process: its exit code, standard output and standard error."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # `gmlp plan` sets both; they are put back
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    before = set(flags.FLAGS)

    def run(*words: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["gmlp", *words])
        try:
            gmlp_main.main()
            code = 0
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    yield run
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_a_command_with_an_example_and_its_flags(gmlp, name):
    code, out, err = gmlp(name, "--help")
    assert (code, err) == (0, "")
    assert "\t" not in out
    lines = out.splitlines()
    assert lines[0].startswith(f"usage: gmlp {name} ")
    assert len(lines[2]) > 20
    assert any(re.search(rf"^    .*\bgmlp {name}\b", line) for line in lines), out
    assert not re.search(r"python (-m|scripts/)", out)
    assert re.search(r"^  --\w+.*\n      [A-Z]", out, re.M)
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        (
            "evaluate",
            [
                "--checkpoint=latest\n      latest, best, or a step.",
                "--workdir=...",
                "--help_config",
            ],
        ),
        # also those that commands share
        ("sweep", ["--seeds=0,1,2,3,4", "--status", "--topology=..."]),
    ],
)
def test_help_lists_flags_with_their_defaults(gmlp, name, listed):
    _, out, _ = gmlp(name, "-h")
    for flag in listed:
        assert f"\n  {flag}\n" in out
    assert "--config.KEY=VALUE" in out


def test_help_lists_the_commands(gmlp):
    for words in ((), ("--help",), ("-h",), ("help",)):
        code, out, _ = gmlp(*words)
        assert code == 0
        assert out.startswith("usage: gmlp SUBCOMMAND")
        assert set(re.findall(r"^  (\S+)  ", out, re.M)) == COMMANDS.keys()
        assert len(out.splitlines()) <= 24  # one screen
    assert gmlp("--version") == (0, f"gmlp_flax {gmlp_flax.__version__}\n", "")


ADVICE = {"trian": "'train'", "--config=x.py": "gmlp --help"}


@pytest.mark.parametrize(("name", "advice"), ADVICE.items())
def test_an_unknown_command_is_one_line(gmlp, name, advice):
    code, out, error = gmlp(name)
    assert code == 2
    assert out == ""
    assert error.count("\n") == 1
    assert name in error
    assert advice in error


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--workdir=~/runs/t", "--workdir=/home/her/runs/t"),
        ("--config.data.train=~/books", "--config.data.train=/home/her/books"),
        ("~/photo.jpg", "/home/her/photo.jpg"),
        ("--config.data.train=a~/b", "--config.data.train=a~/b"),
        ("--steps=3", "--steps=3"),
        ("a=~/b", "a=~/b"),
    ],
)
def test_home_folders_on_the_command_line(monkeypatch, word, expected):
    monkeypatch.setenv("HOME", "/home/her")
    assert gmlp_main.expand_home(word) == expected


def test_every_file_is_a_command_or_shared():
    folder = pathlib.Path(cli.__file__).parent
    files = {path.stem for path in folder.glob("*.py")}
    commands = set()
    for module, _ in COMMANDS.values():
        name, _, _ = module.partition(":")
        commands.add(name)
    assert files == commands | {"__init__", "cli"}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_start_without_preloaded_modules(name):
    """tests/preloaded.py imports everything first, which hides an import that a command forgets."""
    done = preloaded.gmlp(name, "--help", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert preloaded.without_heartbeats(done.stderr) == ""


@pytest.mark.smoke
def test_the_list_of_commands_and_the_help_of_sizes_import_nothing_heavy():
    """So `gmlp --help` answers in a tenth of a second, and `gmlp sizes --help` in a fifth."""
    program = f"""
import sys
from gmlp_flax.__main__ import main
main()
assert not set({HEAVY!r}) & set(sys.modules), sys.modules.keys()
main(["sizes", "--help"])
assert not {{"jax", "gmlp_flax.config", "gmlp_flax.models"}} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "usage: gmlp SUBCOMMAND" in done.stdout
    assert "usage: gmlp sizes" in done.stdout


@pytest.mark.parametrize("name", ["train", "evaluate", "predict"])
def test_modules_that_are_commands(name):
    done = preloaded.run("-m", f"gmlp_flax.{name}", "--workdir=")
    assert done.returncode == 2
    assert f"gmlp {name}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_text_is_predicted_without_the_libraries_of_images():
    program = """
import sys
from gmlp_flax.__main__ import main
main(["predict", "--model=books_gmlp", "--top=1"])
assert not {"PIL", "cv2", "tensorflow", "torch"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="A [MASK].\n",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "[MASK] 1" in done.stdout


def test_a_failed_command_does_not_wait_for_the_threads_of_a_library():
    """As Orbax's, which wait for the parts of a checkpoint that could not be written."""
    code = (
        "import sys, threading, types; from gmlp_flax.__main__ import COMMANDS, main\n"
        "stuck = types.ModuleType('stuck')\n"
        "def run():\n"
        "    class Thread(threading.Thread):\n"
        "        def join(self, timeout=None): raise TimeoutError\n"
        "    Thread(target=threading.Event().wait, args=(600,)).start()\n"
        "    print('out'); print('error: lost', file=sys.stderr); raise SystemExit(3)\n"
        "stuck.run = run; sys.modules['gmlp_flax.commands.stuck'] = stuck; COMMANDS['stuck'] = ('stuck', 'waits')\n"
        "main(['stuck'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "out\n"
    assert done.stderr == "error: lost\n"
