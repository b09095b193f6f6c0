"""What the subcommands share: their flags, their help, and the user's mistakes as one line with exit code 2."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from gmlp_flax.checkpoints.names import CONFIG_FILE
from gmlp_flax.errors import ConfigError, DataError, RunError, StorageError
from gmlp_flax.processes import output, platforms

TRUST_HELP = (
    "A module whose classes a run's config may name, as my_package.my_block. A run's config alone imports nothing from outside "
    "gmlp_flax; a config file of your own may"
)
HALF = 1000  # characters of an error's line from its beginning, and from its end
# gmlp_flax.config is imported where it is needed: the help, and commands without a config, do without it.

USER_ERRORS = (ConfigError, DataError, RunError)
CONFIG_HELP = "The name of a config or a file, with an argument after a colon; or a run's config.json."
CONFIG_FLAGS = (
    ("--config=CONFIG", CONFIG_HELP),
    ("--config.KEY=VALUE", "A value for one key of the config."),
    ("--help_config", "Print every config key with its default and meaning, and exit."),
)


def define_run_flags(checkpoint: str) -> None:
    """Defines --workdir and --checkpoint, for commands that read a run; `checkpoint` is the default."""
    flags.DEFINE_string("workdir", None, "The run folder.")
    flags.DEFINE_string("checkpoint", checkpoint, "latest, best, or a step.")


def define_multihost_flags() -> None:
    """Defines the flags of a command that may be one process of many."""
    flags.DEFINE_enum(
        "multihost",
        "auto",
        ["auto", "on", "off"],
        "auto: join other processes if a TPU slice, SLURM, Open MPI or "
        "--coordinator says that there are some; on: always; off: never.",
    )
    flags.DEFINE_string("coordinator", "", "HOST:PORT at which all processes reach process 0; empty: as detected.")
    flags.DEFINE_integer("processes", None, "How many processes there are; with --coordinator.", lower_bound=1)
    flags.DEFINE_integer("process", None, "The number of this process, from 0; with --coordinator.", lower_bound=0)


@contextlib.contextmanager
def among_processes() -> Iterator[None]:
    """Joins the other processes, as the flags of `define_multihost_flags` say; enter it before touching a device.

    An error inside is shown, and ends one process of several at once.
    """
    from gmlp_flax.processes import distributed  # imports JAX

    values = flags.FLAGS
    distributed.initialize(values.multihost, values.coordinator, values.processes, values.process)
    try:
        with explaining():
            yield
    except BaseException as error:
        distributed.end_failed(error)
        raise


def import_trusted(argv: list[str]) -> None:
    """Imports what --trust names, before the config of a run is read."""
    words = [re.match(r"--?trust(?:=(.*))?$", word) for word in argv]
    found = [
        following if match[1] is None else match[1]
        for match, following in zip(words, [*argv[1:], ""], strict=False)
        if match
    ]
    if found:
        from gmlp_flax import registry

        for module in found:
            registry.import_trusted(module)


def required(name: str, usage: str) -> str:
    """The value of a flag that must be given."""
    value = flags.FLAGS[name].value
    if not value:
        fail(f"--{name} is missing; usage: gmlp {usage}")
    return value


def fail(message: object) -> NoReturn:
    """Ends the program with one line on standard error and exit code 2, or 1 if it is an error that may pass."""
    line = " ".join(str(message).split())
    if len(line) > 2 * HALF:  # it quotes something long
        line = f"{line[:HALF]} [...] {line[-HALF:]}"
    print(f"error: {line}", file=sys.stderr, flush=True)
    raise SystemExit(1 if isinstance(message, StorageError) else 2)


class ArgumentParser(argparse.ArgumentParser):
    """A parser for subcommands that do without absl; the user's mistakes end in one line.

    Args:
        command: the subcommand.
        description: the docstring of its file.
    """

    def __init__(self, command: str, description: str | None):
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(f"gmlp {command}", description=description, formatter_class=formatter)

    def error(self, message: str) -> NoReturn:
        """Ends the program with one line."""
        fail(message)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses a command line without --config."""
    return _parsed(argv, "the command line")


def parse_flags_with_config(argv: list[str]) -> list[str]:
    """Parses a command line with --config=FILE[:ARGUMENT], or a run's config.json, and --config.KEY=VALUE.

    FLAGS.config is then the config, or None if none is given.
    """
    from gmlp_flax import config as config_lib
    from gmlp_flax.config import overrides

    given = argument(argv, "config")
    words = [word for word, before in zip(argv, ["", *argv], strict=False) if not _gives_config(word, before)]
    try:
        overrides.check_overrides(argv)
        config = config_lib.open_config(given) if given else None
        if config is not None:
            config = overrides.prepared_for(config, overrides.named_overrides(words))
        if "--help_config" in argv:
            explained(print, config_lib.help_text(config))
            raise SystemExit(0)
        if config is not None:
            config_flags.DEFINE_config_dict("config", config, CONFIG_HELP, sys_argv=words)
        else:
            flags.DEFINE_string("config", None, CONFIG_HELP)
    except USER_ERRORS as error:
        fail(error)
    return _parsed(words, given or "the command line")


def parse_flags_on_run(argv: list[str]) -> list[str]:
    """As `parse_flags_with_config`, with the config of the run in --workdir unless --config is given."""
    workdir = argument(argv, "workdir")
    path = os.path.join(workdir, CONFIG_FILE)
    own = [f"--config={path}"] if workdir and _is_there(path) and not argument(argv, "config") else []
    return parse_flags_with_config([*argv[:1], *own, *argv[1:]])


def _is_there(path: str) -> bool:
    from gmlp_flax.io import files

    with explaining():
        return files.exists(path)


def _parsed(argv: list[str], where: str) -> list[str]:
    """The words of a command line that are no flags; a mistake ends the program with one line."""
    from gmlp_flax import config as config_lib
    from gmlp_flax.config import overrides

    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        fail(overrides.in_words(error))
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # what ml_collections raises for a value
        fail(config_lib.explain(error, where))


def argument(argv: list[str], name: str) -> str:
    """The value of --NAME=VALUE or --NAME VALUE in a command line that is not parsed yet, the last one, as absl takes it; empty
    if there is none."""
    found = ""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.match(rf"--?{name}(?:=(.*))?$", word):
            found = following if match[1] is None else match[1]
    return found


def _gives_config(word: str, before: str) -> bool:
    return bool(re.match(r"--?config(=|$)", word) or re.match(r"--?config$", before))


def run(
    main: Callable[[list[str]], None], positional: bool = False, parser: Callable[[list[str]], list[str]] = parse_flags
) -> None:
    """Runs a subcommand under absl; the user's mistakes are shown as one line.

    Args:
        main: takes the program's name and, if `positional`, the arguments that are no flags.
        positional: whether there may be such arguments.
        parser: parses the command line.
    """
    flags.DEFINE_multi_string("trust", [], TRUST_HELP)
    if {"--help", "-help", "-h"} & set(sys.argv[1:]):
        explained(print, help_text(main, () if parser is parse_flags else CONFIG_FLAGS))
        return
    with explaining():
        import_trusted(sys.argv[1:])

    def guarded(argv: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.ERROR)  # Orbax reports thirty lines per checkpoint at INFO.
            output.silence_orbax()
        if len(argv) > 1 and not positional:
            fail(f"{argv[1]!r} is no flag: flags are written --name=value")
        explained(main, argv)

    app.run(guarded, flags_parser=parser)


def help_text(main: Callable, more: tuple[tuple[str, str], ...] = ()) -> str:
    """The docstring of a subcommand's file, its flags, the flags of this folder's files that it uses, and `more`."""
    module, defined = sys.modules[main.__module__], flags.FLAGS.flags_by_module_dict()
    owners = dict.fromkeys((module.__name__, *(name for name in defined if name.startswith(f"{__package__}."))))
    listed = [flag for owner in owners for flag in defined.get(owner, ())]
    lines = [(_with_default(flag), flag.help) for flag in listed]
    shown = [f"  {words}\n{textwrap.indent(textwrap.fill(meaning, 96), ' ' * 6)}" for words, meaning in (*lines, *more)]
    return "\n".join([str(module.__doc__), "flags:", *shown])


def _with_default(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--{flag.name}"
    default = ",".join(flag.default) if isinstance(flag.default, list) else flag.default
    return f"--{flag.name}={'...' if default in (None, '') else default}"


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """The user's mistakes, and a lack of memory, end the program with one line."""
    try:
        yield
    except USER_ERRORS as error:
        fail(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if not _is_out_of_memory(error):
            raise
        if isinstance(error, MemoryError):
            fail(
                "this machine's memory is full: give the program more, or give it less at once (smaller files, fewer workers)"
            )
        fail(f"out of memory ({str(error).splitlines()[0]}): make the batch or the model smaller, or use more devices")


def _is_out_of_memory(error: Exception) -> bool:
    """Of this machine or, as JAX tells it, of a device."""
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "JaxRuntimeError"
        and re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)) is not None
    )


def explained(main: Callable, *args: object) -> None:
    """Calls a main function under `explaining`."""
    platforms.choose()
    platforms.keep_freed_memory()
    with explaining():
        main(*args)
