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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# A line of `gmlp sizes`: the model, its parameters, and the other columns that the page shows.
SIZES_LINE = re.compile(r"(\S+) +([\d,]+).{8}(.{9})(.{9})(.{8})  (.{12})(.*)$")

# What the range of an option says if the option names none, by the type of its default.
ANY = {bool: "True, False", int: "an integer", float: "a number", str: "text", tuple: "a tuple"}


def words(option: Option) -> str:
    """The values that make sense."""
    if isinstance(option.values, Range):
        return option.values.words
    if not option.values:
        return ANY[type(option.default)]
    return ", ".join(f"`{value or repr(value)}`" for value in option.values)


def table(options: Mapping[str, Option]) -> str:
    """A Markdown table of options."""
    rows = []
    for name, option in options.items():
        default = f"`{option.default!r}`"
        cells = (f"`{name}`", default, words(option), option.comment)
        rows.append([cell.replace("|", r"\|") for cell in cells])
    return markdown_table(("key", "default", "range", "meaning"), rows)


class Section(NamedTuple):
    """A heading of docs/keys.md, its level, and the options or the sentence below it."""

    level: int
    title: str
    body: Mapping[str, Option] | str


def sections() -> Iterator[Section]:
    """The sections of docs/keys.md."""
    sentence = (
        "The keys of the first table have no group, as in `config.steps`; the others are in groups."
    )
    yield Section(2, "Every run", sentence)
    groups: dict[str, dict[str, Option]] = defaultdict(dict)
    for name, option in schema.COMMON.items():
        group, _, _ = name.rpartition(".")
        groups[group][name] = option
    for group, options in groups.items():
        yield Section(3, group or "general", options)
    default_task = schema.COMMON[schema.TASK].default
    sentence = f"`config.task` chooses one; `{default_task}` is the default."
    yield Section(2, "By task", sentence)
    for task in tasks.TASKS:
        yield Section(3, task, schema.of_task(task))
    default_block = schema.COMMON[schema.BLOCK].default
    sentence = f"`config.model.block` chooses one; `{default_block}` is the default."
    yield Section(2, "By block", sentence)
    shared = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    yield Section(3, "every block", shared)
    for block in blocks.BLOCKS:
        specific = {}
        for name, option in schema.of_block(block).items():
            if option != shared.get(name):
                specific[name] = option
        yield Section(3, block, specific)


def keys_page() -> str:
    """docs/keys.md."""
    parts = [KEYS]
    for section in sections():
        body = section.body
        text = body if isinstance(body, str) else table(body)
        marks = "#" * section.level
        parts.append(f"{marks} {section.title}\n\n{text.rstrip()}\n")
    return "\n".join(parts)


def sizes_page(printed: str) -> str:
    """docs/sizes.md, from what `gmlp sizes` prints."""
    rows = []
    for line in printed.splitlines():
        match = SIZES_LINE.match(f"{line:<80}")
        if match is None:
            continue
        name, *figures = match.groups()
        cells = " | ".join(figure.strip() for figure in figures)
        row = f"| `{name}` | {cells} |"
        rows.append(row.replace("|  |", "| |"))
    return SIZES.format(rows="\n".join(rows))


def command_section(name: str, printed: str) -> str:
    """A command's part of docs/commands.md, from what its --help prints."""
    text, _, flags = printed.partition("\nflags:\n")
    flags = f"{flags.rstrip()}\n"
    for flag in SHARED:
        flags = re.sub(rf"^  --{flag}(=.*)?\n(      .*\n)+", "", flags, flags=re.M)
    parts = [f"## gmlp {name}\n\n```"]
    text = text.strip()
    if text:
        parts.append(text)
    flags = flags.rstrip()
    if flags:
        parts.append(f"\n{flags}")
    parts.append("```\n")
    return "\n".join(parts)


def commands_page(printed: Mapping[str, str]) -> str:
    """docs/commands.md, from what the --help of each command prints."""
    entries = []
    texts = []
    for name, text in printed.items():
        _, summary = COMMANDS[name]
        entries.append(f"- [`gmlp {name}`](#gmlp-{name}): {summary}\n")
        texts.append(command_section(name, text))
    return COMMANDS_PAGE.format(listed="".join(entries), commands="\n".join(texts))


def read(name: str, **only: str) -> list[dict[str, str]]:
    """The lines of a CSV file of docs/results/data, those whose columns are `only` these."""
    chosen = []
    with (DATA / f"{name}.csv").open() as file:
        for line in csv.DictReader(file):
            if all(line[column] == value for column, value in only.items()):
                chosen.append(line)
    return chosen


def scores() -> dict[str, dict[str, Spread]]:
    """What `gmlp reproduce alternatives` makes of its runs: column -> row -> score."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in read("alternatives"):
        name = line["column"]
        is_finetuned = bool(COLUMNS[name].starts)
        if is_finetuned and line["start"] == "random":
            name += RANDOM
        value = float(line["value"])
        seeds = values[name][line["row"]]
        seeds.append(value)
    means: dict[str, dict[str, Spread]] = {}
    for name, rows in values.items():
        means[name] = {row: Spread.mean(seeds) for row, seeds in rows.items()}
    return means


def costs() -> dict[str, dict[int, Cost]]:
    """The same of its measured steps, with their medians: row -> tokens -> step."""
    steps: dict[str, dict[int, Cost]] = defaultdict(dict)
    for line in read("alternatives-costs"):
        median = line["median_seconds"]
        seconds = (float(median),) if median else ()
        tokens = int(line["tokens"])
        batch = int(line["batch"])
        size = float(line["bytes"])
        steps[line["row"]][tokens] = Cost(tokens, batch, seconds, size)
    return steps


def rank_notes(scores: Mapping[str, Mapping[str, Spread]]) -> Iterator[str]:
    """Whether a low perplexity goes with a high score, column by column, over the rows that have
    both."""
    perplexities = scores.get("mlm", {})
    for name, scores_of_rows in scores.items():
        rows = [row for row in perplexities if row in scores_of_rows]
        count = len(rows)
        if name == "mlm" or count <= 2:
            continue
        low_perplexities = [-perplexities[row].centre for row in rows]
        high_scores = [scores_of_rows[row].centre for row in rows]
        rank = float(claims.spearman(low_perplexities, high_scores))
        p = claims.chance(low_perplexities, high_scores)
        title = COLUMNS[name.removesuffix(RANDOM)].title
        if name.endswith(RANDOM):
            title += ", from random parameters"
        yield (
            f"{title}: rank correlation with a low perplexity over {count} rows: {rank:.2f}; "
            f"one-sided permutation p = {p:.2g}."
        )


class TrivialModels(NamedTuple):
    """What models without learning reach in each column of the alternatives.

    Attributes:
        best: column -> the best score.
        examples: column -> the number of held-out examples.
    """

    best: dict[str, float]
    examples: dict[str, int]


def trivial_models() -> TrivialModels:
    """Those of docs/results/data."""
    scores_of: dict[str, list[float]] = defaultdict(list)
    examples: dict[str, int] = {}
    for line in read("alternatives-heldout"):
        name = line["column"]
        scores_of[name].append(float(line["score"]))
        examples[name] = int(line["examples"])
    best = {}
    for name, column_scores in scores_of.items():
        choose = min if COLUMNS[name].lower else max
        best[name] = choose(column_scores)
    return TrivialModels(best, examples)


def alternatives_claims() -> str:
    """The claims of the report of the alternatives, how many have which verdict, and the rank
    correlations."""
    trivial = trivial_models()
    judged = claims_on_alternatives(scores(), costs(), trivial.best, trivial.examples)
    lines = [f"{claims.tally(judged)}\n\n"]
    for verdict in claims.VERDICTS:
        with_verdict = [claim for claim in judged if claim.verdict == verdict]
        title = claims.counted(len(with_verdict), verdict)
        lines.append(f"{title}:\n\n")
        for claim in with_verdict:
            lines.append(f"- {claim.text} ({claim.detail}).\n")
        lines.append("\n")
    lines.append("Does a low perplexity go with a high score?\n\n")
    for note in rank_notes(scores()):
        lines.append(f"- {note}\n")
    return "".join(lines)


class Orderings(NamedTuple):
    """How far a table here has the order of the paper's column."""

    claims: list[claims.Claim]  # of each ordering
    agree: int  # orderings of the means
    agree_p: float  # one-sided permutation p of so many or more
    rank: float  # Spearman's, of the means
    rank_p: float


def of_curves(by_row: Mapping[str, Sequence[claims.Curve]]) -> Orderings:
    """The orderings of the rows that the paper has, from the curve of each seed."""
    last: dict[str, list[float]] = {}
    papers: dict[str, float] = {}
    for row, curves in by_row.items():
        ends = [curve[-1] for curve in curves]
        last[row] = [perplexity for _, perplexity in ends]
        papers[row] = PUBLISHED[row].perplexity or 0
    means = [statistics.mean(values) for values in last.values()]
    column = list(papers.values())
    agree = agreeing(means, column)
    return Orderings(
        claims=claims.orderings(papers, last),
        agree=agree,
        agree_p=chance_of_agreeing(agree, means, column),
        rank=float(claims.spearman(means, column)),
        rank_p=claims.chance(means, column),
    )


def agreeing(values: Sequence[float], column: Sequence[float]) -> int:
    """How many pairs have the order of a column."""
    count = 0
    pairs = zip(values, column, strict=True)
    for (value, published), (other, other_published) in itertools.permutations(pairs, 2):
        if value < other and published < other_published:
            count += 1
    return count


def chance_of_agreeing(agree: int, means: Sequence[float], column: Sequence[float]) -> float:
    """The share of all orders of the means in which as many pairs or more agree with a column."""
    orders = list(itertools.permutations(means))
    as_good = 0
    for order in orders:
        if agreeing(order, column) >= agree:
            as_good += 1
    return as_good / len(orders)


def orderings(name: str, **only: str) -> Orderings:
    """Of the runs of a table in a CSV file, those whose columns are `only` these."""
    curves: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in read(name, **only):
        row = line["row"]
        if PUBLISHED[row].perplexity:
            tokens = int(line["tokens"])
            perplexity = float(line["perplexity"])
            curve = curves[row][line["seed"]]
            curve.append((tokens, perplexity))
    by_row = {}
    for row, seeds in curves.items():
        by_row[row] = [sorted(curve) for curve in seeds.values()]
    return of_curves(by_row)


# Rows of Table 3 that are the middle depths of Table 4.
MIDDLE_DEPTHS = {"bert_rel": "transformer_12", "sgu": "gmlp_36"}


def depth_orderings() -> Orderings:
    """Of Table 4, whose middle depths are rows of Table 3."""
    curves: dict[str, list[claims.Curve]] = defaultdict(list)
    for line in (*read("settings-more"), *read("table3")):
        row = MIDDLE_DEPTHS.get(line["row"], line["row"])
        is_about_depth = line.get("experiment", "depth") == "depth"
        if is_about_depth and re.fullmatch(r"(transformer|gmlp)_\d+", row):
            perplexity = float(line["perplexity"])
            curves[row].append([(1, perplexity)])
    return of_curves(curves)


def orderings_section(result: Orderings) -> str:
    """The same for a page: how many orderings have which verdict, and which of them do not hold."""
    lines = []
    for verdict in claims.VERDICTS:
        texts = [f"`{claim.text}`" for claim in result.claims if claim.verdict == verdict]
        if not texts:
            continue
        line = f"- {claims.counted(len(texts), verdict)}"
        if verdict not in (claims.HOLDS, claims.ONE_HOLDS):
            names = ", ".join(texts)
            line += f": {names}"
        lines.append(f"{line}.\n")
    count = len(result.claims)
    by_chance = count / 2
    verdicts = "".join(lines)
    return (
        f"The paper's table orders {count} pairs of rows. A guess agrees with {by_chance:g}. Compared over all pairs of seeds:\n\n"
        f"{verdicts}\n"
        f"By the means alone, {result.agree} pairs agree (one-sided permutation test, p = {result.agree_p:.2g}), and the "
        f"rank correlation with the paper's column is {result.rank:.2f} (p = {result.rank_p:.2g}). Both tests are exact: "
        "they try every order of the rows. They do not account for the spread over seeds.\n"
    )


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rule = ["---"] * len(titles)
    lines = []
    for cells in (titles, rule, *rows):
        joined = " | ".join(cells)
        lines.append(f"| {joined} |\n")
    return "".join(lines)


def csv_table(name: str) -> str:
    """A file of docs/results/data as a Markdown table, and a link to it."""
    text = (DATA / f"{name}.csv").read_text()
    titles, *rows = csv.reader(text.splitlines())
    table = markdown_table(titles, rows)
    return f"{table}\n[CSV](data/{name}.csv)\n"


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


def _costs() -> str:
    from docs.results import costs  # which reads what this file makes

    return costs.section()


# Name of a generated part of a page of docs/results -> its text.
PARTS: dict[str, Callable[[], str]] = {
    "advice": _advice,
    "longer": _longer,
    "costs": _costs,
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

    def part(match: re.Match) -> str:
        start, title, end = match.groups()
        kind, _, file = title.partition(" ")
        text = csv_table(file) if kind == "csv" else PARTS[title]()
        return f"{start}\n{text}\n{end}"

    page = (FOLDER / "results" / f"{name}.md").read_text()
    return MARKED.sub(part, page)


PICTURE = re.compile(
    r'<picture><source [^>]*srcset="docs/([^"]+)"><img src="docs/([^"]+)" [^>]*alt="([^"]*)"></picture>'
)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)([^)]+)\)")


def home_page(readme: str) -> str:
    """docs/README.md: README.md with links that start in docs/, and pictures as the site shows them.

    What is outside docs/ is named without a link, since the site does not have it.
    """

    def picture(match: re.Match) -> str:
        dark, light, words = match.groups()
        light_image = f"![{words}]({light}#gh-light-mode-only)"
        dark_image = f"![{words}]({dark}#gh-dark-mode-only)"
        return f"{light_image}{dark_image}\n"

    def link(match: re.Match) -> str:
        words, target = match.groups()
        inside = target.removeprefix("docs/")
        return words if inside == target else f"[{words}]({inside})"

    linked = LINK.sub(link, readme)
    figures = re.sub(r"<p>\s*", '<p class="figures" markdown>\n', linked)
    pictures = PICTURE.sub(picture, figures)
    return re.sub(r"\n\s+(?=!\[|</p>)", "\n", pictures)


def command(*words: str) -> str:
    """What `gmlp WORDS` prints."""
    process = [sys.executable, "-m", "gmlp_flax", *words]
    done = subprocess.run(process, capture_output=True, text=True, check=True)
    return done.stdout


def write_pages() -> None:
    """Writes all pages but docs/everything.md, which is made of another page."""
    results = FOLDER / "results"
    for page in PAGES:
        text = results_page(page)
        (results / f"{page}.md").write_text(text)
    readme = (FOLDER.parent / "README.md").read_text()
    (FOLDER / "README.md").write_text(home_page(readme))
    (FOLDER / "keys.md").write_text(keys_page())
    helps = {name: command(name, "--help") for name in COMMANDS}
    (FOLDER / "commands.md").write_text(commands_page(helps))
    sizes = command("sizes")
    (FOLDER / "sizes.md").write_text(sizes_page(sizes))


if __name__ == "__main__":
    sys.path.append(str(FOLDER.parent))
    write_pages()
    from docs import everything  # which reads docs/data.md

    (FOLDER / "everything.md").write_text(everything.page())
