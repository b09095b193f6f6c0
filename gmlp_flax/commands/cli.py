"""What the subcommands share: flags, help, and user errors as one line with exit code 2."""

import contextlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict

from gmlp_flax import registry
from gmlp_flax.errors import ConfigError, StorageError, UserError
from gmlp_flax.io.logs import heartbeat, to_stderr
from gmlp_flax.processes import output, platforms

# What absl 2 adds to the help of a flag that may be repeated.
ABSL_REPEATS = ";\n    repeat this option"

# gmlp_flax.config is imported where it is needed: the help, and commands without a config, do
# without it.


def define(name: str, default: Any, meaning: str, least: int | None = None) -> None:
    """Defines a flag of the type of its default; a tuple's may be repeated. `least` bounds whole
    numbers."""
    if isinstance(default, tuple):
        flags.DEFINE_multi_string(name, list(default), meaning)
    elif type(default) is int:
        flags.DEFINE_integer(name, default, meaning, lower_bound=least, upper_bound=2**31 - 1)
    else:
        kinds: dict[type, Callable] = {
            bool: flags.DEFINE_bool,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }
        kinds[type(default)](name, default, meaning)


def define_run_flags(checkpoint: str) -> None:
    """Defines --workdir and --checkpoint, for commands that read a run; `checkpoint` is the
    default."""
    flags.DEFINE_string("workdir", None, "The run folder.")
    flags.DEFINE_string("checkpoint", checkpoint, "latest, best, or a step.")


def define_multihost_flags() -> None:
    """Defines the flags of a command that may be one process of many."""
    flags.DEFINE_enum(
        "multihost",
        "auto",
        ["auto", "on", "off"],
        "auto: join other processes if a TPU slice, SLURM, Open MPI or --coordinator says that they "
        "exist; on: always; off: never.",
    )
    flags.DEFINE_string(
        "coordinator", "", "HOST:PORT at which all processes reach process 0; empty: as detected."
    )
    flags.DEFINE_integer(
        "processes", None, "The number of processes; with --coordinator.", lower_bound=1
    )
    flags.DEFINE_integer(
        "process", None, "The number of this process, from 0; with --coordinator.", lower_bound=0
    )


@contextlib.contextmanager
def among_processes() -> Iterator[None]:
    """Joins the other processes, as the flags of `define_multihost_flags` say; enter it before
    touching a device.

    An error inside is shown, and ends one process of several at once.
    """
    from gmlp_flax.processes import distributed  # imports JAX

    values = flags.FLAGS
    distributed.initialize(values.multihost, values.coordinator, values.processes, values.process)
    try:
        with show_errors():
            yield
    except BaseException as error:
        distributed.end_failed(error)
        raise


def require(name: str) -> str:
    """The value of a flag that must be given. Raises ConfigError: it is not."""
    value = flags.FLAGS[name].value
    if not value:
        raise ConfigError(f"--{name} is missing: see {sys.argv[0]} --help")
    return value


def numbers(name: str, examples: Sequence[int] = (0, 97)) -> list[int]:
    """The whole numbers of a flag that lists them with commas; `examples` are for the message.
    Raises ConfigError: one is not a whole number."""
    words = flags.FLAGS[name].value or []
    try:
        return [int(number) for number in words]
    except ValueError:
        example = ",".join(map(str, examples))
        raise ConfigError(
            f"--{name}={','.join(words)}: expected numbers, as in --{name}={example}"
        ) from None


def waiting(what: str) -> contextlib.AbstractContextManager[None]:
    """Says what is done in the block, and how long it takes: at a terminal at once, in a log if it
    lasts some seconds."""
    if not what:
        return contextlib.nullcontext()
    return heartbeat(what, at_once=sys.stderr.isatty())


def fail(message: object) -> NoReturn:
    """Ends the program with one line on standard error and exit code 2, or 1 for a transient
    error."""
    line = " ".join(str(message).split())
    if len(line) > 2000:  # it quotes something long
        line = f"{line[:1000]} [...] {line[-1000:]}"
    to_stderr(f"error: {line}")
    raise SystemExit(1 if isinstance(message, StorageError) else 2)


def given_config(values: flags.FlagValues) -> ConfigDict | None:
    """The config of --config, for `run`; None if it is not given."""
    from gmlp_flax import config as config_lib

    return config_lib.open_config(values.config) if values.config else None


def config_of_run(values: flags.FlagValues) -> ConfigDict | None:
    """The config of --config, or else that of the model in --workdir, for `run`; None without
    both."""
    if values.config or not values.workdir:
        return given_config(values)
    from gmlp_flax import config as config_lib
    from gmlp_flax.training import pretrained

    return config_lib.mutable_copy(pretrained.config_of(values.workdir))


def run(
    main: Callable[..., None],
    positional: str = "",
    config: Callable[[flags.FlagValues], ConfigDict | None] | None = None,
    words: Callable[[list[str]], list[str]] = list,
    about: str | None = None,
    doing: str = "",
) -> None:
    """Runs a subcommand under absl; the user's mistakes are shown as one line.

    Args:
        main: takes the program's name with the positional arguments and, if the command takes a
            config, the config with --config.KEY=VALUE applied, or None if none is chosen.
        positional: their names as the help shows them, "[NAME]" if it may be missing, "[NAME]..."
            for any number.
        config: if the command takes a config, chooses it by the other flags: `given_config`,
            `config_of_run`.
        words: changes the command line before it is parsed.
        about: what the help says before the flags, if it is not the docstring of the command's
            file.
        doing: what the command is doing, for a terminal, if it prints nothing before its end.
    """
    _define_common_flags(has_config=config is not None)
    with show_errors():
        _expand_flagfiles()
        platforms.check_environment()
    sys.argv[1:] = with_underscores(sys.argv[1:])
    platforms.choose()
    platforms.keep_freed_memory()
    platforms.keep_programs()
    if not {"--help", "-help", "-h"}.isdisjoint(sys.argv[1:]):
        print(help_text(main, positional, about))
        return

    configs: list[ConfigDict | None] = []  # one, if the command takes a config

    def parse(argv: list[str]) -> list[str]:
        with show_errors(), heartbeat("loading", at_once=False):
            left, configs[:] = _parse(words(argv), config)
            _check_positional(left[1:], positional)
            return left

    def call_main(argv: list[str]) -> None:
        if not flags.FLAGS["verbosity"].present:
            # Orbax reports thirty lines per checkpoint at INFO.
            logging.set_verbosity(logging.ERROR)
            output.silence_orbax()
        with show_errors(), waiting(doing):
            main(argv, *configs)

    app.run(call_main, flags_parser=parse)


def _define_common_flags(has_config: bool) -> None:
    """Defines the flags that all subcommands have, and those of the ones that take a config."""
    flags.DEFINE_multi_string(
        "trust",
        [],
        "Your own module, such as my_package.my_block, whose classes a run's config may name.",
    )
    if not has_config:
        return
    flags.DEFINE_string(
        "config",
        None,
        "The name of a config or a file, with an argument after a colon; or a run's config.json. "
        "--config.KEY=VALUE sets a key.",
    )
    flags.DEFINE_bool(
        "help_config", False, "Print every config key with its default and meaning, and exit."
    )


def _expand_flagfiles() -> None:
    """Puts the words of each --flagfile in its place in the command line: some commands read
    --config.KEY there, or hand their words on to another machine. Raises ConfigError: a file cannot
    be read."""
    try:
        sys.argv[1:] = flags.FLAGS.read_flags_from_files(sys.argv[1:])
    except flags.Error as error:
        raise ConfigError(" ".join(str(error).split())) from None


def with_underscores(words: list[str]) -> list[str]:
    """A command line in which --dry-run is written as the flag --dry_run; what follows -- is left
    as it is."""
    end = words.index("--") if "--" in words else len(words)
    new = []
    for word in words[:end]:
        name, equals, value = word.partition("=")
        flag = name.replace("-", "_").removeprefix("__")
        if name.startswith("--") and flag in flags.FLAGS:
            word = f"--{flag}{equals}{value}"
        new.append(word)
    return new + words[end:]


def _parse(
    argv: list[str], choose: Callable[[flags.FlagValues], ConfigDict | None] | None
) -> tuple[list[str], list[ConfigDict | None]]:
    """Parses a command line, and imports what --trust names.

    Returns:
        The program's name with the positional arguments; and, if the command takes a config, the
        config or None.

    Raises:
        ConfigError: a flag or a config is wrong.
    """
    values = flags.FLAGS
    try:
        words = values(argv, known_only=choose is not None)
        for module in values.trust:
            registry.load(module, f"--trust={module}")
        if not choose:
            return words, []
        from gmlp_flax import config as config_lib

        config = choose(values)
        if config is not None:
            config, words = config_lib.apply_overrides(config, words)
        else:
            for key, value in config_lib.named_overrides(words).items():
                raise ConfigError(
                    f"--config.{key}={value} changes no config: give --config=FILE:ARGUMENT as well"
                )
        if values.help_config:
            print(config_lib.help_text(config))
            raise SystemExit(0)
        return values(words), [config]
    except flags.Error as error:
        raise ConfigError(str(error)) from None


def _check_positional(arguments: list[str], positional: str) -> None:
    """Raises ConfigError if there are too few or too many positional arguments."""
    names = positional.split()
    required = [name for name in names if not name.startswith("[")]
    missing = required[len(arguments) :]
    extra = arguments[len(names) :]
    if missing:
        raise ConfigError(f"{missing[0]} is missing: see {sys.argv[0]} --help")
    if extra and not positional.endswith("..."):
        raise ConfigError(f"{extra[0]!r} is not a flag: flags are written --name=value")


def help_text(main: Callable, positional: str = "", about: str | None = None) -> str:
    """A subcommand's usage, the docstring of its file, its flags, and those of this folder's files
    that it uses."""
    module = sys.modules[main.__module__]
    words = ["usage:", sys.argv[0], *positional.split(), "[--FLAG=VALUE ...]"]
    usage = " ".join(words)
    description = about or str(module.__doc__)
    lines = [usage, "", description, "flags:"]
    for flag in _flags_of(module.__name__):
        setting = _with_default(flag)
        filled = textwrap.fill(_meaning(flag), 96)
        meaning = textwrap.indent(filled, " " * 6)
        lines.append(f"  {setting}")
        lines.append(meaning)
    return "\n".join(lines)


def _flags_of(module: str) -> list[flags.Flag]:
    """The flags of a subcommand's file, then those of the other files of this folder."""
    defined = flags.FLAGS.flags_by_module_dict()
    listed = list(defined.get(module, ()))
    for name, others in defined.items():
        if name != module and name.startswith(f"{__package__}."):
            listed += others
    return listed


def _meaning(flag: flags.Flag) -> str:
    """The help of a flag; absl adds to one that may be repeated that it may be."""
    meaning, repeats, _ = flag.help.partition(ABSL_REPEATS)
    if not repeats:
        return meaning
    return f"{meaning} Repeat the flag for several."


def _with_default(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--{flag.name}"
    default = flag.default
    if isinstance(default, list):
        default = ",".join(default)
    if default in (None, ""):
        default = "..."
    return f"--{flag.name}={default}"


@contextlib.contextmanager
def show_errors() -> Iterator[None]:
    """The user's mistakes, and a lack of memory, end the program with one line."""
    try:
        yield
    except UserError as error:
        fail(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except MemoryError:
        fail(
            "this machine's memory is full: give the program more, or fewer workers or smaller files "
            "at once"
        )
    except Exception as error:
        is_of_xla = type(error).__name__ == "JaxRuntimeError"
        if is_of_xla and re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)):
            reason, *_ = str(error).splitlines()
            fail(
                f"out of memory ({reason}): make the batch or the model smaller, or use more devices"
            )
        problem = platforms.environment_problem(error)
        if problem:
            fail(problem)
        raise
