"""Prints the names that other commands take, each with a line on what it is.

    gmlp list                      how many there are of each kind
    gmlp list configs              of gmlp train --config=NAME:ARGUMENT
    gmlp list models 'gmlp*'       of a kind, those that a pattern matches

Kinds: configs, models (of gmlp_flax.create), pretrained (which ship, of gmlp predict --model),
blocks (config.model.block), tasks (config.task), optimizers (config.optimizer.name), and tables (of
gmlp reproduce).
"""

import ast
import fnmatch
import importlib.resources
import inspect
import shutil
import textwrap
from pathlib import Path

import gmlp_flax
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, did_you_mean

KINDS = ("configs", "models", "pretrained", "blocks", "tasks", "optimizers", "tables")
SIZES = """Prints every published configuration: exact parameters and FLOPs per example beside its paper's figures.

    gmlp sizes

If a paper prints multiply-adds, two operations each, its figure is shown as 2x.
"""
COMPLETION = """Prints a script that completes subcommands and names of configs in a shell.

    source <(gmlp completion bash)     in ~/.bashrc
    source <(gmlp completion zsh)      in ~/.zshrc
"""
BASH = """_gmlp() {{
  local words="${{COMP_WORDS[*]:1:COMP_CWORD-1}}" word=${{COMP_WORDS[COMP_CWORD]}}
  if (( COMP_CWORD == 1 )); then COMPREPLY=($(compgen -W "{subcommands}" -- "$word"))
  elif [[ $words == *--config ]]; then COMPREPLY=($(compgen -W "{configs}"))
  elif [[ $words == *"--config =" ]]; then COMPREPLY=($(compgen -W "{configs}" -- "$word"))
  elif [[ $words == reproduce* ]]; then COMPREPLY=($(compgen -f -W "{tables}" -- "$word"))
  else COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -o filenames -o bashdefault -F _gmlp gmlp"""
SHELLS = {"bash": BASH, "zsh": f"autoload -U +X bashcompinit && bashcompinit\n{BASH}"}


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def names_of(kind: str) -> dict[str, str]:
    """Each name of a kind in KINDS, with a line on what it is. What imports JAX is imported for its
    kind alone."""
    match kind:
        case "configs":
            files = sorted(
                importlib.resources.files("gmlp_flax.configs").iterdir(), key=lambda file: file.name
            )
            named = {
                file.name.removesuffix(".py"): file for file in files if file.name.endswith(".py")
            }
            about = {
                name: ast.get_docstring(ast.parse(file.read_text())) for name, file in named.items()
            }
            return {
                name: _first_sentence(text) for name, text in about.items() if name != "__init__"
            }
        case "models":
            from gmlp_flax.paper.published import PUBLISHED

            return {
                name: PUBLISHED[name].source if name in PUBLISHED else ""
                for name in gmlp_flax.list_models()
            }
        case "pretrained":
            from gmlp_flax.weights import exports

            cards = {
                name: (Path(folder) / "README.md").read_text()
                for name, folder in exports.shipped().items()
            }
            return {
                name: _first_sentence(card.partition("\n# ")[2].partition("\n\n")[2])
                for name, card in cards.items()
            }
        case "blocks":
            from gmlp_flax.models.blocks import BLOCKS

            return {
                name: _first_sentence(inspect.getmodule(block).__doc__)
                for name, block in BLOCKS.items()
            }
        case "tasks":
            from gmlp_flax import tasks

            return {name: _first_sentence(tasks.find(name).__doc__) for name in tasks.TASKS}
        case "optimizers":
            from gmlp_flax.config.optimizers import OPTIMIZERS

            return {name: ", ".join(row.hyperparameters) for name, row in OPTIMIZERS.items()}
        case _:
            from gmlp_flax.paper.tables import TABLES

            return {name: table.title for name, table in TABLES.items()}


def main(argv: list[str]) -> None:
    """Prints the names of a kind, or how many there are of each."""
    kind, pattern = [*argv[1:], *("", "*")[len(argv) - 1 :]]
    if not kind:
        for name in KINDS:
            print(f"{name:<12}{len(names_of(name)):>4}  gmlp list {name}")
        return
    if kind not in KINDS:
        advice = did_you_mean(kind, KINDS, f"expected one of {', '.join(KINDS)}")
        raise ConfigError(f"there are no {kind!r} to list; {advice}")
    found = names_of(kind)
    names = fnmatch.filter(found, pattern)
    if not names:
        raise ConfigError(
            f"no name of {kind} matches {pattern!r}: gmlp list {kind} prints all {len(found)}"
        )
    width, room = max(map(len, names)), shutil.get_terminal_size((120, 24)).columns
    for name in names:
        about = textwrap.shorten(found[name], max(20, room - width - 2), placeholder=" \u2026")
        print(f"{name:<{width}}  {about}".rstrip())


def sizes(_argv: list[str]) -> None:
    """Prints the table."""
    from gmlp_flax.paper import published  # imports JAX

    print(
        f"{'model':<15}{'parameters':>13}{'M':>8}{'paper M':>9}{'GFLOPs':>9}{'paper':>8}  source      note"
    )
    for name, model in published.PUBLISHED.items():
        count, flops = published.param_count(model), published.forward_flops(model) / 1e9
        papers = "" if model.params_m is None else f"{model.params_m:g}"
        papers_flops = "" if model.flops_g is None else f"{model.flops_g:.1f}"
        papers_flops = papers_flops if model.madds_g is None else f"2x{model.madds_g:g}"
        figures = f"{count:>13,}{count / 1e6:>8.1f}{papers:>9}{flops:>9.2f}{papers_flops:>8}"
        print(f"{name:<15}{figures}  {model.source:<10}  {model.note}".rstrip())


def completion(argv: list[str]) -> None:
    """Prints the script."""
    from gmlp_flax.__main__ import COMMANDS

    if argv[1] not in SHELLS:
        raise ConfigError(f"there is no completion for {argv[1]!r}: expected {' or '.join(SHELLS)}")
    names = {"subcommands": COMMANDS, "configs": names_of("configs"), "tables": names_of("tables")}
    print(SHELLS[argv[1]].format(**{key: " ".join(value) for key, value in names.items()}))


def run() -> None:
    """The command line of `gmlp list`."""
    cli.run(main, "[KIND] [PATTERN]")


def run_sizes() -> None:
    """The command line of `gmlp sizes`."""
    cli.run(sizes, about=SIZES)


def run_completion() -> None:
    """The command line of `gmlp completion`."""
    cli.run(completion, "SHELL", about=COMPLETION)
