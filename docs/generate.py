"""Writes the pages that are made from the code, docs/keys.md, docs/sizes.md, docs/commands.md and
docs/everything.md; the home page docs/README.md, which is README.md with other links; and the parts
of docs/results that reports make of the measured CSV files: between <!-- generated: NAME --> and
<!-- end -->.

python docs/generate.py
"""

import csv
import itertools
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gmlp_flax import tasks
from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.config import schema
from gmlp_flax.models import blocks
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import Option, Range, options_of
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports import claims
from gmlp_flax.reports.alternatives.claims import claims as claims_on_alternatives
from gmlp_flax.reports.alternatives.scores import RANDOM
from gmlp_flax.reports.costs import Cost
from gmlp_flax.reports.table import Spread

FOLDER = Path(__file__).parent
DATA = FOLDER / "results" / "data"

KEYS = """# Every config key

Look up every config key, with its default, its range and its meaning.

Set a key with `--config.KEY=VALUE` on a command line, or with `config.KEY = VALUE` in a config file. A config has the
keys of every run, and those that its task and its block declare. For example, [`config.model.heads`](#transformer)
exists if the block has heads.

```bash
gmlp train --config=quickstart_text --workdir=runs/text --config.model.layers=6
# prints the keys of this config with their values; without --config, all keys on this page
gmlp train --config=quickstart_text --help_config
gmlp train --help_config
```

A key that does not exist, or a value out of its range, ends a command with one line, before any data is read. Your own
block or task [declares its own keys](extending.md). `docs/generate.py` writes this page from the code.
"""

SIZES = """# Published sizes

Check an implementation: compare the parameters and FLOPs of every published model, as counted here, with the
numbers in its paper.

`gmlp sizes` builds every published configuration from shapes and counts it. The sources are tables of the gMLP
paper, or arXiv numbers of other papers. Some papers print multiply-adds, which are two operations each; their
figures are shown as 2x:

| model | parameters | the paper's, M | GFLOPs | the paper's | source | <span class="wide">note</span> |
|---|---|---|---|---|---|---|
{rows}

`docs/generate.py` writes this page from the command's output.
"""

COMMANDS_PAGE = """# Commands

Look up every subcommand of `gmlp`, with what `gmlp NAME --help` prints.

{listed}
Write flags as `--name=value`; `--dry-run` and `--dry_run` are the same. Errors are reported in one line with exit code
2, before any device is used. All commands have the flag `--trust=MODULE`, which names your own module whose classes a
run's config may name ([what is trusted](weights.md#what-is-trusted-and-what-is-not)). Commands with a config have
`--config`, its name or a file, `--config.KEY=VALUE` for [each of its keys](keys.md), and `--help_config`, which prints
them.

`docs/generate.py` writes this page from the commands.

{commands}"""
SHARED = ("trust", "config", "help_config")  # flags that most commands have

# What the range of an option says if the option names none, by the type of its default.
ANY = {bool: "True, False", int: "an integer", float: "a number", str: "text", tuple: "a tuple"}


def words(option: Option) -> str:
    """The values that make sense."""
    if isinstance(option.values, Range):
        return option.values.words
    values = ", ".join(f"`{value or repr(value)}`" for value in option.values or ())
    return values or ANY[type(option.default)]


def table(found: Mapping[str, Option]) -> str:
    """A Markdown table of options."""
    rows = [
        (f"`{name}`", f"`{key.default!r}`", words(key), key.comment) for name, key in found.items()
    ]
    lines = [("key", "default", "range", "meaning"), ("---",) * 4, *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def sections() -> Iterator[tuple[int, str, Mapping[str, Option] | str]]:
    """The level of each heading, its words, and the options or the sentence below it."""
    yield (
        2,
        "Every run",
        "The keys of the first table have no group, as in `config.steps`; the others are in groups.",
    )
    groups = dict.fromkeys(name.rpartition(".")[0] for name in schema.COMMON)
    for group in groups:
        found = {
            name: option
            for name, option in schema.COMMON.items()
            if name.rpartition(".")[0] == group
        }
        yield 3, group or "general", found
    yield (
        2,
        "By task",
        f"`config.task` chooses one; `{schema.COMMON[schema.TASK].default}` is the default.",
    )
    for task in tasks.TASKS:
        yield 3, task, schema.of_task(task)
    yield (
        2,
        "By block",
        f"`config.model.block` chooses one; `{schema.COMMON[schema.BLOCK].default}` is the default.",
    )
    shared = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    yield 3, "every block", shared
    for block in blocks.BLOCKS:
        yield (
            3,
            block,
            {
                name: option
                for name, option in schema.of_block(block).items()
                if option != shared.get(name)
            },
        )


def keys_page() -> str:
    """docs/keys.md."""
    bodies = [
        (level, title, body if isinstance(body, str) else table(body))
        for level, title, body in sections()
    ]
    return "\n".join(
        [KEYS, *(f"{'#' * level} {title}\n\n{body.rstrip()}\n" for level, title, body in bodies)]
    )


def sizes_page(printed: str) -> str:
    """docs/sizes.md, from what `gmlp sizes` prints."""
    lines = "\n".join(f"{line:<80}" for line in printed.splitlines())
    cells = re.findall(r"^(\S+) +([\d,]+).{8}(.{9})(.{9})(.{8})  (.{12})(.*)$", lines, re.M)
    rows = [
        f"| `{name}` | {' | '.join(map(str.strip, others))} |".replace("|  |", "| |")
        for name, *others in cells
    ]
    return SIZES.format(rows="\n".join(rows))


def command_section(name: str, printed: str) -> str:
    """A command's part of docs/commands.md, from what its --help prints."""
    text, _, flags = printed.partition("\nflags:\n")
    for flag in SHARED:
        flags = re.sub(
            rf"^  --{flag}(=.*)?\n(      .*\n)+",
            "",
            flags + "\n" * (not flags.endswith("\n")),
            flags=re.M,
        )
    parts = (
        f"## gmlp {name}\n\n```",
        text.strip(),
        flags.strip() and f"\n{flags.rstrip()}",
        "```\n",
    )
    return "\n".join(part for part in parts if part)


def commands_page(printed: Mapping[str, str]) -> str:
    """docs/commands.md, from what the --help of each command prints."""
    listed = "".join(f"- [`gmlp {name}`](#gmlp-{name}): {COMMANDS[name][1]}\n" for name in printed)
    return COMMANDS_PAGE.format(
        listed=listed, commands="\n".join(command_section(*one) for one in printed.items())
    )


def read(name: str) -> list[dict[str, str]]:
    """The lines of a CSV file of docs/results/data."""
    with (DATA / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def scores() -> dict[str, dict[str, Spread]]:
    """What `gmlp reproduce alternatives` makes of its runs: column -> row -> score."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in read("alternatives"):
        finetuned = bool(COLUMNS[line["column"]].starts)
        name = line["column"] + RANDOM * (finetuned and line["start"] == "random")
        values[name][line["row"]].append(float(line["value"]))
    return {
        name: {row: Spread.mean(of_row) for row, of_row in rows.items()}
        for name, rows in values.items()
    }


def costs() -> dict[str, dict[int, Cost]]:
    """The same of its measured steps, with their medians: row -> tokens -> step."""
    found: dict[str, dict[int, Cost]] = defaultdict(dict)
    for line in read("alternatives-costs"):
        seconds = (float(line["median_seconds"]),) if line["median_seconds"] else ()
        cost = Cost(int(line["tokens"]), int(line["batch"]), seconds, float(line["bytes"]))
        found[line["row"]][cost.tokens] = cost
    return found


def rank_notes(scores: Mapping[str, Mapping[str, Spread]]) -> Iterator[str]:
    """Whether a low perplexity goes with a high score, column by column, over the rows that have
    both."""
    found = scores.get("mlm", {})
    for name, of_row in scores.items():
        rows = [row for row in found if row in of_row]
        if name != "mlm" and len(rows) > 2:
            low, high = (
                [sign * of[row].centre for row in rows] for sign, of in ((-1, found), (1, of_row))
            )
            rank = float(claims.spearman(low, high))
            over = f"over {len(rows)} rows: {rank:.2f}; one-sided permutation p = {claims.chance(low, high):.2g}"
            title = COLUMNS[
                name.removesuffix(RANDOM)
            ].title + ", from random parameters" * name.endswith(RANDOM)
            yield f"{title}: rank correlation with a low perplexity {over}."


def alternatives_claims() -> str:
    """The claims of the report of the alternatives, how many have which verdict, and the rank
    correlations."""
    floors: dict[str, list[float]] = defaultdict(list)
    for line in read("alternatives-heldout"):
        floors[line["column"]].append(float(line["score"]))
    best = {name: (min if COLUMNS[name].lower else max)(models) for name, models in floors.items()}
    examples = {line["column"]: int(line["examples"]) for line in read("alternatives-heldout")}
    made = claims_on_alternatives(scores(), costs(), best, examples)
    lines = [f"{claims.tally(made)}\n\n"]
    for verdict in claims.VERDICTS:
        of_verdict = [f"- {one.text} ({one.detail}).\n" for one in made if one.verdict == verdict]
        lines += [f"This {verdict}:\n\n", *of_verdict, "\n"]
    ranks = "Does a low perplexity go with a high score?\n\n"
    return "".join([*lines, ranks, *(f"- {note}\n" for note in rank_notes(scores()))])


class Orderings(NamedTuple):
    """How far a table here has the order of the paper's column."""

    claims: list[claims.Claim]  # of each ordering
    agree: int  # orderings of the means
    agree_p: float  # one-sided permutation p of so many or more
    rank: float  # Spearman's, of the means
    rank_p: float


def of_curves(by_row: Mapping[str, Sequence[claims.Curve]]) -> Orderings:
    """The orderings of the rows that the paper has, from the curve of each seed."""
    last = {row: [curve[-1][1] for curve in of_row] for row, of_row in by_row.items()}
    means = {row: statistics.mean(values) for row, values in last.items()}
    papers = {row: PUBLISHED[row].perplexity or 0 for row in last}
    column = list(papers.values())
    rank = float(claims.spearman(list(means.values()), list(papers.values())))
    agree = agreeing(list(means.values()), column)
    orders = list(itertools.permutations(means.values()))
    agree_p = sum(agreeing(order, column) >= agree for order in orders) / len(orders)
    return Orderings(
        claims.orderings(papers, last),
        agree,
        agree_p,
        rank,
        claims.chance(list(means.values()), column),
    )


def agreeing(values: Sequence[float], column: Sequence[float]) -> int:
    """How many pairs have the order of a column."""
    pairs = itertools.permutations(zip(values, column, strict=True), 2)
    return sum(one[1] < other[1] and one[0] < other[0] for one, other in pairs)


def orderings(name: str, **only: str) -> Orderings:
    """Of the runs of a table in a CSV file, those whose columns are `only` these."""
    curves: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in read(name):
        if (
            all(line[key] == value for key, value in only.items())
            and PUBLISHED[line["row"]].perplexity
        ):
            curves[line["row"]][line["seed"]].append(
                (int(line["tokens"]), float(line["perplexity"]))
            )
    return of_curves(
        {row: [sorted(curve) for curve in seeds.values()] for row, seeds in curves.items()}
    )


def depth_orderings() -> Orderings:
    """Of Table 4, whose middle depths are rows of Table 3."""
    curves: dict[str, list[claims.Curve]] = defaultdict(list)
    for line in (*read("settings-more"), *read("table3")):
        row = {"bert_rel": "transformer_12", "sgu": "gmlp_36"}.get(line["row"], line["row"])
        if line.get("experiment", "depth") == "depth" and re.fullmatch(
            r"(transformer|gmlp)_\d+", row
        ):
            curves[row].append([(1, float(line["perplexity"]))])
    return of_curves(curves)


def orderings_section(found: Orderings) -> str:
    """The same for a page: how many orderings have which verdict, and which of them do not hold."""
    lines = []
    count = len(found.claims)
    for verdict in claims.VERDICTS:
        which = [f"`{claim.text}`" for claim in found.claims if claim.verdict == verdict]
        told = "" if verdict in (claims.HOLDS, claims.ONE_HOLDS) else f": {', '.join(which)}"
        lines += [f"- {claims.counted(len(which), verdict)}{told}.\n"] if which else []
    return (
        f"Of the paper's {count} orderings, over all pairs of seeds, of which chance gives {count / 2:g}:\n\n"
        f"{''.join(lines)}\n"
        f"By the means alone {found.agree} agree, one-sided permutation p = {found.agree_p:.2g}; the rank correlation "
        f"with the paper's column is {found.rank:.2f}, p = {found.rank_p:.2g}. Both are exact, over all orders of the "
        "rows, of which the spread over seeds says nothing.\n"
    )


def csv_table(name: str) -> str:
    """A file of docs/results/data as a Markdown table, and a link to it."""
    lines = list(csv.reader((DATA / f"{name}.csv").read_text().splitlines()))
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines) + f"\n[CSV](data/{name}.csv)\n"


def _advice() -> str:
    from docs.results import advice  # which reads what this file makes

    return advice.section()


def _longer() -> str:
    from docs.results import longer  # which reads what this file makes

    return longer.section()


def _recall() -> str:
    from docs.results import recall  # which reads what this file makes

    return recall.section()


def _recall_mixers() -> str:
    from docs.results import recall  # which reads what this file makes

    return recall.mixers_section()


def _peers() -> str:
    from docs.results import peers  # which reads what this file makes

    return peers.section()


def _slices() -> str:
    from docs.results import slices  # which reads what this file makes

    return slices.section()


# Name of a generated part of a page of docs/results -> its text.
PARTS: dict[str, Callable[[], str]] = {
    "advice": _advice,
    "longer": _longer,
    "slices": _slices,
    "recall": _recall,
    "recall-mixers": _recall_mixers,
    "peers": _peers,
    "claims": alternatives_claims,
    "orderings table3": lambda: orderings_section(orderings("table3")),
    "orderings table3-longer": lambda: orderings_section(orderings("table3-longer")),
    "orderings table3-gpu": lambda: orderings_section(orderings("table3-gpu", steps="1800")),
    "orderings table4": lambda: orderings_section(depth_orderings()),
}
MARKED = re.compile(r"(<!-- generated: ([\w -]+) -->\n).*?(<!-- end -->)", re.S)
PAGES = [
    path.stem
    for path in sorted((FOLDER / "results").glob("*.md"))
    if MARKED.search(path.read_text())
]


def results_page(name: str) -> str:
    """A page of docs/results with its generated parts made anew: those of PARTS, and `csv NAME`, a
    file of DATA."""

    def part(found: re.Match) -> str:
        kind, _, argument = found[2].partition(" ")
        return (
            f"{found[1]}\n{csv_table(argument) if kind == 'csv' else PARTS[found[2]]()}\n{found[3]}"
        )

    return MARKED.sub(part, (FOLDER / "results" / f"{name}.md").read_text())


PICTURE = re.compile(
    r'<picture><source [^>]*srcset="docs/([^"]+)"><img src="docs/([^"]+)" [^>]*alt="([^"]*)"></picture>'
)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)")


def home_page(readme: str) -> str:
    """docs/README.md: README.md with links that start in docs/, and pictures as the site shows them.

    What is outside docs/ is named without a link, since the site does not have it.
    """

    def picture(found: re.Match) -> str:
        dark, light, words = found.groups()
        return f"![{words}]({light}#gh-light-mode-only)![{words}]({dark}#gh-dark-mode-only)\n"

    def link(found: re.Match) -> str:
        words, target = found.groups()
        inside = target.removeprefix("docs/")
        return words if inside == target else f"[{words}]({inside})"

    linked = LINK.sub(link, readme)
    figures = re.sub(r"<p>\s*", '<p class="figures" markdown>\n', linked)
    pictures = PICTURE.sub(picture, figures)
    return re.sub(r"\n\s+(?=!\[|</p>)", "\n", pictures)


def command(*words: str) -> str:
    """What `gmlp WORDS` prints."""
    given = [sys.executable, "-m", "gmlp_flax", *words]
    return subprocess.run(given, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.path.append(str(FOLDER.parent))
    for page in PAGES:
        (FOLDER / "results" / f"{page}.md").write_text(results_page(page))
    (FOLDER / "README.md").write_text(home_page((FOLDER.parent / "README.md").read_text()))
    (FOLDER / "keys.md").write_text(keys_page())
    helps = {name: command(name, "--help") for name in COMMANDS}
    (FOLDER / "commands.md").write_text(commands_page(helps))
    (FOLDER / "sizes.md").write_text(sizes_page(command("sizes")))
    from docs import everything  # which reads docs/data.md

    (FOLDER / "everything.md").write_text(everything.page())
