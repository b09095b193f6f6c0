"""The `gmlp` command, also `python -m gmlp_flax`: `gmlp SUBCOMMAND ...` imports one file of
commands/, and no other."""

import importlib
import os
import sys
import threading

import gmlp_flax
from gmlp_flax.errors import did_you_mean
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.processes import output

INTERRUPTED = 130  # the exit code after Ctrl-C
# Subcommand -> its module in commands/, with the function that runs it if that is not `run`; and
# what it does.
COMMANDS = {
    "quickstart": ("quickstart", "train a small gMLP on data that needs no download"),
    "train": ("train", "train a model, or resume a run that was stopped"),
    "evaluate": ("evaluate", "score a checkpoint on held-out data"),
    "predict": ("predict", "use a trained model on text or images"),
    "demo": ("demo", "serve a page on which a model answers"),
    "launch": ("launch", "start a run on a TPU slice, a cluster or a cloud"),
    "sweep": ("sweep", "train a config at many points, with several seeds"),
    "reproduce": ("reproduce", "reproduce a table or a figure of the paper"),
    "plan": ("plan", "predict memory, time and cost of a run on TPUs or GPUs that you do not have"),
    "prepare": ("prepare", "tokenize a corpus once, for many runs"),
    "list": ("listing", "list configs, models, blocks, tasks, optimizers, tables and chips"),
    "sizes": ("listing:run_sizes", "count parameters and FLOPs of every published model"),
    "draw": (
        "draw",
        "draw a run's curves, filters, attention or shift invariance, or augmentations",
    ),
    "export": (
        "weights:run_export",
        "write the weights of a run, or third-party weights, to a folder",
    ),
    "push": ("weights:run_push", "upload a run or an exported folder to the Hugging Face hub"),
    "benchmark": ("benchmark", "measure speed and memory"),
    "completion": ("listing:run_completion", "complete subcommands and names in bash or zsh"),
}


def main(words: list[str] | None = None) -> None:
    """Runs the subcommand that the command line names, or `words` in its place."""
    with output.guard():
        name, *arguments = (words or sys.argv[1:]) or ["--help"]
        if name in ("-h", "--help", "help"):
            print(help_text())
        elif name == "--version":
            print(f"gmlp_flax {gmlp_flax.__version__}")
        elif name in COMMANDS:
            _run(name, arguments)
        else:
            advice = did_you_mean(name, COMMANDS, "gmlp --help lists the subcommands")
            print(f"error: there is no subcommand {name!r}; {advice}", file=sys.stderr)
            raise SystemExit(2)


def _run(name: str, arguments: list[str]) -> None:
    """Runs a subcommand; its config may name a class of a package in the current folder."""
    sys.path.append(os.getcwd())  # last, so it hides nothing
    sys.argv = [f"gmlp {name}", *map(expand_home, arguments)]
    before = threading.enumerate()
    try:
        module, _, function = COMMANDS[name][0].partition(":")
        with heartbeat("loading", at_once=False):
            commands = importlib.import_module(f"gmlp_flax.commands.{module}")
        getattr(commands, function or "run")()
    except KeyboardInterrupt:  # while modules were imported
        print("interrupted", file=sys.stderr)
        output.end_at_once(INTERRUPTED)
    except SystemExit as error:
        # Orbax's threads would wait ten minutes for the parts of a checkpoint that could not be
        # written.
        waiting = [
            thread for thread in threading.enumerate() if not (thread.daemon or thread in before)
        ]
        if error.code == INTERRUPTED or (error.code and waiting):
            output.end_at_once(error.code if isinstance(error.code, int) else 1)
        raise


def expand_home(word: str) -> str:
    """A word of the command line with the home folder in the place of ~ or ~USER, also behind
    `--workdir=`, where a shell leaves it."""
    if word.startswith("-"):
        option, equals, rest = word.rpartition("=~")
        if equals:
            path = os.path.expanduser(f"~{rest}")
            return f"{option}={path}"
    return os.path.expanduser(word)


def help_text() -> str:
    """The subcommands, one per line."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    more = "gmlp SUBCOMMAND --help shows examples and flags; gmlp train --help_config lists every config key."
    return "\n".join(
        ["usage: gmlp SUBCOMMAND [--help] ...", "       gmlp --version", "", *lines, "", more]
    )


if __name__ == "__main__":
    main()
