"""Prints the names that other commands accept, each with a line that describes it.

    gmlp list                      the number of names of each kind
    gmlp list configs              for gmlp train --config=NAME:ARGUMENT
    gmlp list models 'gmlp*'       the names of a kind that a pattern matches
    gmlp list models --json        an object of names and lines, for programs

The kinds are configs, models (for gmlp_flax.create), pretrained (models that come with the package,
for gmlp predict --model), blocks (config.model.block), tasks (config.task), optimizers
(config.optimizer.name), tables (for gmlp reproduce), and chips (for gmlp plan --topology).
"""

import ast
import fnmatch
import importlib.resources
import inspect
import json
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

from absl import flags

import gmlp_flax
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, did_you_mean

SIZES = """Prints exact parameters and FLOPs per example for every published configuration, beside
the figures in its paper.

    gmlp sizes
    gmlp sizes --json              a list of objects, for programs

If a paper prints multiply-adds, which are two operations each, its figure is shown as 2x.
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
    first, _, _ = (text or "").partition("\n\n")
    return " ".join(first.split())


def _configs() -> dict[str, str]:
    lines = {}
    folder = importlib.resources.files("gmlp_flax.configs")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        name, dot, suffix = file.name.rpartition(".")
        is_python = dot and suffix == "py"
        if is_python and name != "__init__":
            tree = ast.parse(file.read_text())
            docstring = ast.get_docstring(tree)
            lines[name] = _first_sentence(docstring)
    return lines


def _models() -> dict[str, str]:
    from gmlp_flax.paper.published import PUBLISHED

    lines = {}
    for name in gmlp_flax.list_models():
        lines[name] = PUBLISHED[name].source if name in PUBLISHED else ""
    return lines


def _pretrained() -> dict[str, str]:
    """The first paragraph of each model's card."""
    from gmlp_flax.weights import exports

    lines = {}
    for name, folder in exports.shipped().items():
        card = (Path(folder) / "README.md").read_text()
        _, _, after_title = card.partition("\n# ")
        _, _, text = after_title.partition("\n\n")
        lines[name] = _first_sentence(text)
    return lines


def _blocks() -> dict[str, str]:
    from gmlp_flax.models.blocks import BLOCKS

    lines = {}
    for name, block in BLOCKS.items():
        lines[name] = _first_sentence(inspect.getmodule(block).__doc__)
    return lines


def _tasks() -> dict[str, str]:
    from gmlp_flax import tasks

    return {name: _first_sentence(tasks.find(name).__doc__) for name in tasks.TASKS}


def _optimizers() -> dict[str, str]:
    from gmlp_flax.config.optimizers import OPTIMIZERS

    return {name: ", ".join(row.hyperparameters) for name, row in OPTIMIZERS.items()}


def _tables() -> dict[str, str]:
    from gmlp_flax.paper import recall
    from gmlp_flax.paper.tables import TABLES

    titles = {name: table.title for name, table in TABLES.items()}
    return titles | {recall.NAME: recall.TITLE}


def _chips() -> dict[str, str]:
    """The kinds of --topology, each with its usual slices, or how GPUs are counted."""
    from gmlp_flax.planning.chips import CHIPS

    lines = {}
    for kind, chip in CHIPS.items():
        if chip.slices:
            lines[kind] = ", ".join(f"{kind}:{shape}" for shape in chip.slices)
        else:
            lines[kind] = f"{kind}xN for N of them, {chip.node} on a node"
    return lines


# What imports JAX is imported for its kind alone.
KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "configs": _configs,
    "models": _models,
    "pretrained": _pretrained,
    "blocks": _blocks,
    "tasks": _tasks,
    "optimizers": _optimizers,
    "tables": _tables,
    "chips": _chips,
}


def names_of(kind: str) -> dict[str, str]:
    """Each name of a kind in KINDS, with a line on what it is."""
    return KINDS[kind]()


def main(argv: list[str]) -> None:
    """Prints the names of a kind, or how many there are of each."""
    kind = argv[1] if len(argv) > 1 else ""
    pattern = argv[2] if len(argv) > 2 else "*"
    if not kind and flags.FLAGS.json:
        print(json.dumps({name: names_of(name) for name in KINDS}, indent=2))
        return
    if not kind:
        for name in KINDS:
            print(f"{name:<12}{len(names_of(name)):>4}  gmlp list {name}")
        return
    if kind not in KINDS:
        raise ConfigError(f"there are no {kind!r} to list; {did_you_mean(kind, KINDS)}")
    lines = names_of(kind)
    names = fnmatch.filter(lines, pattern)
    if not names:
        raise ConfigError(
            f"no name of {kind} matches {pattern!r}: gmlp list {kind} prints all {len(lines)}"
        )
    if flags.FLAGS.json:
        print(json.dumps({name: lines[name] for name in names}, indent=2))
        return
    width = max(map(len, names))
    room = shutil.get_terminal_size((120, 24)).columns - width - 2
    for name in names:
        about = textwrap.shorten(lines[name], max(20, room), placeholder=" \u2026")
        print(f"{name:<{width}}  {about}".rstrip())


def sizes(_argv: list[str]) -> None:
    """Prints the table, or the same as JSON."""
    from gmlp_flax.paper import published  # imports JAX

    if flags.FLAGS.json:
        rows = []
        for name, model in published.PUBLISHED.items():
            row = {
                "model": name,
                "parameters": published.param_count(model),
                "flops": published.forward_flops(model),
                "paper_million_parameters": model.params_m,
                "paper_gflops": model.flops_g,
                "paper_giga_multiply_adds": model.madds_g,
                "source": model.source,
                "note": model.note,
            }
            rows.append(row)
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{'model':<15}{'parameters':>13}{'M':>8}{'paper M':>9}{'GFLOPs':>9}{'paper':>8}  source      "
        "note"
    )
    for name, model in published.PUBLISHED.items():
        count = published.param_count(model)
        flops = published.forward_flops(model) / 1e9
        papers = "" if model.params_m is None else f"{model.params_m:g}"
        papers_flops = ""
        if model.madds_g is not None:
            papers_flops = f"2x{model.madds_g:g}"
        elif model.flops_g is not None:
            papers_flops = f"{model.flops_g:.1f}"
        figures = f"{count:>13,}{count / 1e6:>8.1f}{papers:>9}{flops:>9.2f}{papers_flops:>8}"
        print(f"{name:<15}{figures}  {model.source:<10}  {model.note}".rstrip())


def completion(argv: list[str]) -> None:
    """Prints the script."""
    from gmlp_flax.__main__ import COMMANDS

    shell = argv[1]
    if shell not in SHELLS:
        raise ConfigError(f"there is no completion for {shell!r}: expected {' or '.join(SHELLS)}")
    script = SHELLS[shell].format(
        subcommands=" ".join(COMMANDS),
        configs=" ".join(names_of("configs")),
        tables=" ".join(names_of("tables")),
    )
    print(script)


def _define_json() -> None:
    flags.DEFINE_bool("json", False, "Print JSON.")


def run() -> None:
    """The command line of `gmlp list`."""
    _define_json()
    cli.run(main, "[KIND] [PATTERN]")


def run_sizes() -> None:
    """The command line of `gmlp sizes`."""
    _define_json()
    cli.run(sizes, about=SIZES)


def run_completion() -> None:
    """The command line of `gmlp completion`."""
    cli.run(completion, "SHELL", about=COMPLETION)
