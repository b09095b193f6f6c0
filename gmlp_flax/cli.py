"""What the entry points share: flags with a config, and errors of the user's as one line and exit code 2."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator

from absl import app, flags, logging
from ml_collections import config_flags

from gmlp_flax import config
from gmlp_flax.data.errors import DataError
from gmlp_flax.training import quiet
from gmlp_flax.training.errors import RunError

USER_ERRORS = (config.ConfigError, DataError, RunError)


def define_run_flags(checkpoint: str) -> None:
    """Defines --workdir and --checkpoint, for programs that read a run; the latter's default is given."""
    flags.DEFINE_string("workdir", None, "The run folder.")
    flags.DEFINE_string("checkpoint", checkpoint, "latest, best, or a step.")


def define_config_flag() -> None:
    """Defines --config, a file, and --config.KEY=VALUE."""
    config_flags.DEFINE_config_file(
        "config", None, "A config file, with an argument after a colon if it takes one, or a run's config.json.",
        lock_config=True,
    )


def define_multihost_flags() -> None:
    """Defines the flags of a program that may be one process of many."""
    flags.DEFINE_enum(
        "multihost", "auto", ["auto", "on", "off"], "Join other processes: where a TPU slice, SLURM, Open MPI or "
        "--coordinator says that there are some; always; never.",
    )
    flags.DEFINE_string("coordinator", "", "HOST:PORT at which all processes reach process 0; empty: as detected.")
    flags.DEFINE_integer("processes", None, "How many processes there are; with --coordinator.", lower_bound=1)
    flags.DEFINE_integer("process", None, "Which of them this is, from 0; with --coordinator.", lower_bound=0)


@contextlib.contextmanager
def among_processes() -> Iterator[None]:
    """Joins the processes of `define_multihost_flags`; to be entered before a device is touched.

    An error inside is shown, and ends one process of several at once.
    """
    from gmlp_flax.training import distributed  # imports JAX

    names = ("multihost", "coordinator", "processes", "process")
    distributed.initialize(*(flags.FLAGS[name].value for name in names))
    try:
        with explaining():
            yield
    except BaseException as error:
        distributed.end_failed(error)
        raise


def required(name: str, usage: str) -> str:
    """The value of a flag that must be given."""
    value = flags.FLAGS[name].value
    if not value:
        fail(f"--{name} is missing; usage: python -m gmlp_flax.{usage}")
    return value


def fail(message: object) -> None:
    """Ends the program with one line on standard error and exit code 2."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses a command line; a mistake ends the program with one line.

    `--config=RUN/config.json` is read by the config module, which is a config file for exactly that.
    """
    if "--help_config" in argv:
        explained(print, config.help_text())
        raise SystemExit(0)
    given = config_argument(argv)
    path = given.partition(":")[0]
    try:
        config.check_overrides(argv)
        if path and not os.path.exists(path):
            raise config.ConfigError(f"there is no config file {path}")
        if path.endswith(".json"):
            config.load(path)  # What is wrong with it is better said here than through absl.
            spelled = (given, f"-config={given}", f"--config={given}")
            argv = [word.replace(given, f"{config.__file__}:{given}") if word in spelled else word for word in argv]
        rest = flags.FLAGS(argv)
        if given and flags.FLAGS["config"].value is None:
            raise config.ConfigError(f"{given}: get_config() returned nothing: return the config")
        return rest
    except Exception as error:  # noqa: BLE001 - a config file is the user's code and may raise anything
        # ml_collections puts the traceback of a config file in the message of another error, absl wraps that.
        while "Error whilst parsing config file" in str(error):
            error = error.__context__
        plain = isinstance(error, (flags.Error, *USER_ERRORS))
        fail(config.in_words(error) if plain else config.explain(error, given or "the command line"))


def config_argument(argv: list[str]) -> str:
    """The config file, with its argument, that a command line names; empty if it names none."""
    return _argument(argv, "config")


def _argument(argv: list[str], name: str) -> str:
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.match(rf"--?{name}(?:=(.*))?$", argument):
            return match[1] or following
    return ""


def parse_flags_on_run(argv: list[str]) -> list[str]:
    """As `parse_flags`, with the config of the run that --workdir names, which --config.KEY=VALUE changes."""
    path = os.path.join(_argument(argv, "workdir"), "config.json")
    own = [f"--config={path}"] if os.path.isfile(path) and not config_argument(argv) else []
    return parse_flags([*argv[:1], *own, *argv[1:]])


def run(
    main: Callable[[list[str]], None], positional: bool = False, parser: Callable[[list[str]], list[str]] = parse_flags
) -> None:
    """Runs an entry point under absl; errors that are the user's to mend are shown as one line.

    Args:
        main: takes the program's name and, where `positional`, the arguments that are no flags.
        positional: whether there may be such arguments.
        parser: what parses the command line.
    """

    def guarded(argv: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.ERROR)  # Orbax reports thirty lines a checkpoint at INFO.
            quiet.install()
        if len(argv) > 1 and not positional:
            fail(f"{argv[1]!r} is no flag: flags are written --name=value")
        explained(main, argv)

    app.run(guarded, flags_parser=parser)


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Errors that are the user's to mend end the program with one line; it ends in silence where nobody reads it."""
    try:
        yield
        print(end="", flush=True)  # also where standard output is closed
    except USER_ERRORS as error:
        fail(error)
    except BrokenPipeError:
        if not _is_cut_off():
            raise
        # As where `head` has read enough. What is left goes nowhere, and the exit code is SIGPIPE's.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _is_cut_off() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


def explained(main: Callable, *args: object) -> None:
    """Calls a main function under `explaining`."""
    quiet.skip_libtpu()
    with explaining():
        main(*args)
