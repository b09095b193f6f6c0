"""What the entry points share: flags with a config, and errors of the user's as one line and exit code 2."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from absl import app, flags, logging

from gmlp_flax import config
from gmlp_flax.data.errors import DataError
from gmlp_flax.training.errors import RunError

USER_ERRORS = (config.ConfigError, DataError, RunError)


def fail(message: object) -> None:
    """Ends the program with one line on standard error and exit code 2."""
    print(f"error: {' '.join(str(message).split())}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def parse_flags(argv: list[str]) -> list[str]:
    """Parses a command line; a mistake ends the program with one line.

    `--config=RUN/config.json` is read by the config module, which is a config file for exactly that.
    """
    if "--help_config" in argv:
        print(config.help_text())
        raise SystemExit(0)
    saved = re.compile(r"(--?config=)(.+\.json)$")
    argv = [saved.sub(rf"\1{config.__file__}:\2", argument) for argument in argv]
    try:
        config.check_overrides(argv)
        path = config_argument(argv).partition(":")[0]
        if path and not os.path.exists(path):
            raise config.ConfigError(f"there is no config file {path}")
        return flags.FLAGS(argv)
    except (flags.Error, *USER_ERRORS) as error:
        fail(error)
    except Exception as error:  # noqa: BLE001 - a config file is the user's code and may raise anything
        fail(config.explain(error, config_argument(argv) or "the command line"))


def config_argument(argv: list[str]) -> str:
    """The config file, with its argument, that a command line names; empty if it names none."""
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.match(r"--?config(?:=(.*))?$", argument):
            return match[1] or following
    return ""


def run(main: Callable[[list[str]], None]) -> None:
    """Runs an entry point under absl; errors that are the user's to mend are shown as one line."""

    def guarded(argv: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # Orbax reports thirty lines a checkpoint at INFO.
        if len(argv) > 1:
            fail(f"{argv[1]!r} is no flag: flags are written --name=value")
        try:
            main(argv)
        except USER_ERRORS as error:
            fail(error)
        except KeyboardInterrupt:
            print("interrupted before the first step", file=sys.stderr)
            raise SystemExit(130) from None

    app.run(guarded, flags_parser=parse_flags)
