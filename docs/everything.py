"""Writes docs/everything.md, which lists all that is registered: commands, configs, blocks, tasks,
forms of data, reports, figures, benchmarks, weights, formats, launchers, chips, optimizers,
extras and scripts. `docs/generate.py` calls it.

A phrase comes from the code that it describes. This file only knows which page explains a name; a
name that it does not know links to the page of its kind.
"""

import ast
import configparser
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.commands import benchmark, draw, listing
from gmlp_flax.interop.formats import FORMATS
from gmlp_flax.launching.engines import ENGINES
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.tasks import TASKS
from gmlp_flax.training import pretrained
from gmlp_flax.weights import exports, transformers_models

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
PAGE = """# Everything there is

Find any command, config, block, task, form of data, report, benchmark, format, launcher or extra, and the page that
explains it.

{contents}

`gmlp list` prints the names that commands accept, and `gmlp list models` the architectures. The
[Python API](python/README.md) has its own index, and [Every config key](keys.md) lists the keys. `docs/generate.py`
writes this page from the code.

{sections}"""

BERT = "weights.md#bert-and-its-descendants"
_IMAGE_RECIPES = "data.md#imagenet-cifar-10-tiny-imagenet"
_LARGE_CORPUS = "data.md#a-large-corpus-tokenized-once"
_DEPTHS = "results/table3.md#depth-table-4-and-figures-5-and-8"
CONFIG_PAGES = {
    "c4_ablation": _LARGE_CORPUS,
    "c4_bert": _LARGE_CORPUS,
    "causal_text": "generation.md",
    "cifar10": _IMAGE_RECIPES,
    "finetune_glue": "finetuning.md",
    "finetune_image": _IMAGE_RECIPES,
    "finetune_squad": "finetuning.md",
    "imagenet": _IMAGE_RECIPES,
    "imagenet21k": _IMAGE_RECIPES,
    "long_text": _LARGE_CORPUS,
    "lra_image": "long-inputs.md",
    "lra_listops": "long-inputs.md",
    "lra_pathfinder": "long-inputs.md",
    "lra_retrieval": "long-inputs.md",
    "lra_text": "long-inputs.md",
    "own_images": "your-data.md#images",
    "own_text": "your-data.md#text",
    "quickstart_image": "first-run.md#images",
    "quickstart_text": "first-run.md#text",
    "synthetic": "recall.md",
    "tiny_imagenet": _IMAGE_RECIPES,
}
REPORT_PAGES = {
    "table1": "sizes.md",
    "table2": "sizes.md",
    "table3": "results/table3.md",
    "table4": _DEPTHS,
    "table5": "sizes.md",
    "figure2": "sizes.md",
    "figure3": "results/learned.md#figure-3-images",
    "figure4": "results/learned.md#figure-4-text-with-it",
    "figure5": _DEPTHS,
    "figure7": "results/table3.md#figure-7-accuracy-over-perplexity",
    "figure8": _DEPTHS,
    "figure9": "results/learned.md#figure-9-text-without-the-toeplitz-constraint",
    "figure10": "results/learned.md#figure-10-tiny-attention-in-a-pair-of-sentences",
    "alternatives": "reproducing.md#the-alternatives",
    "recall": "recall.md",
}
BENCHMARK_PAGES = {
    "step": "results/speed.md#a-training-step-of-gmlp-s",
    "peers": "results/speed.md#beside-timm-transformers-and-g-mlp-pytorch-on-a-cpu",
    "device": "results/speed.md#on-one-h100",
    "toeplitz": "mixers.md#which-toeplitz-algorithm",
    "fourier": "mixers.md#fnet",
    "mixers": "results/which-mixer.md#what-every-row-costs",
    "text": "results/speed.md#data",
    "images": "results/speed.md#data",
    "export": "weights.md#in-other-frameworks",
    "memory": "results/speed.md#compiled-for-tpus",
    "training": "results/speed.md#training-beside-transformers",
    "parity": "results/speed.md#parity-with-timm-and-transformers",
}
FIGURE_PAGES = {
    "curves": "runs.md#the-files-of-a-run",
    "filters": "results/learned.md#figure-4-text-with-it",
    "attention": "results/learned.md#figure-10-tiny-attention-in-a-pair-of-sentences",
    "shift-invariance": "results/learned.md#figure-9-text-without-the-toeplitz-constraint",
    "augmentations": "data.md#see-what-augmentation-does",
}
# A kind of trained model, as `training.pretrained` calls it -> its page, and how it is given.
WEIGHTS = {
    "a run": ("runs.md#the-files-of-a-run", "`RUN`, or one checkpoint: `RUN/checkpoints/STEP`"),
    "exported weights": ("weights.md#export-and-push", "a folder, or `hf-hub:OWNER/NAME`"),
    "a model of timm": ("weights.md#timm", "a folder, or `hf-hub:timm/NAME`"),
    "a file named after a model of timm": ("weights.md#timm", "`.safetensors`, `.pth` or `.npz`"),
    "a model of transformers": (
        BERT,
        "a folder as transformers saves it, or `hf-hub:OWNER/NAME`",
    ),
}
SCRIPT_PAGES = {
    "docs": "first-run.md#extras",
    "launch_tpu": "launch.md#plain-tpu-vms",
    "lock": "first-run.md#versions",
    "pretrained": "python/models.md#load",
    "quickstart": "first-run.md",
    "setup": "first-run.md#install",
    "table3": "results/table3.md",
    "test": "first-run.md#install",
}


class Row(NamedTuple):
    """A thing that there is.

    Attributes:
        name: Markdown, without a link.
        page: the address of what explains it; "" if the phrase has links of its own.
        phrase: Markdown: what it is.
    """

    name: str
    page: str
    phrase: str

    def markdown(self) -> str:
        """A line of a table."""
        name = f"[{self.name}]({self.page})" if self.page else self.name
        return f"| {name} | {self.phrase} |\n"


def bare(text: str) -> str:
    """A text on one line, without what stands in parentheses and without a last full stop."""
    joined = " ".join(text.split())
    without = re.sub(r" \([^()]*\)", "", joined)
    return without.rstrip(".").replace("|", "\\|")


def short(text: str) -> str:
    """The first clause of the first sentence, as `bare`."""
    sentence, _, _ = bare(text).partition(". ")
    clause, _, _ = sentence.partition("; ")
    return clause


def docstring(path: Path) -> str:
    """The first paragraph of the docstring of a file of Python."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph, _, _ = text.partition("\n\n")
    return paragraph


def described(text: str, name: str, indent: str) -> str:
    """The description of a name in the list of a help text, where later lines are indented more."""
    escaped = re.escape(name)
    pattern = rf"^{indent}{escaped}  +(\S.*(?:\n {{10,}}.*)*)"
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise ValueError(f"the help text describes no {name!r}: add a line to it")
    return match[1]


def commands() -> Iterator[Row]:
    """The subcommands of `gmlp`."""
    for name, (_, what) in COMMANDS.items():
        yield Row(f"`gmlp {name}`", f"commands.md#gmlp-{name}", what)


def configs() -> Iterator[Row]:
    """The files of `--config`."""
    for name, about in listing.names_of("configs").items():
        yield Row(f"`{name}`", CONFIG_PAGES.get(name, "runs.md#configs"), short(about))


def sweeps() -> Iterator[Row]:
    """The files of `--sweep`."""
    for path in sorted((ROOT / "gmlp_flax" / "configs" / "sweeps").glob("[!_]*.py")):
        yield Row(f"`{path.stem}`", "reproducing.md#sweeps", short(docstring(path)))


def block_rows() -> Iterator[Row]:
    """The values of `config.model.block`."""
    about = listing.names_of("blocks")
    for name in BLOCKS:
        yield Row(f"`{name}`", f"keys.md#{name}", short(about[name]))


def task_rows() -> Iterator[Row]:
    """The values of `config.task`."""
    about = listing.names_of("tasks")
    for name in TASKS:
        yield Row(f"`{name}`", f"keys.md#{name}", short(about[name]))


def data_forms() -> Iterator[Row]:
    """The readers of `gmlp_flax/data/readers`, each with its section of docs/data.md."""
    sections = re.split(r"^## (.*)\n", (FOLDER / "data.md").read_text(), flags=re.MULTILINE)
    rows = []
    for path in reader_files():
        form = " ".join(docstring(path).split())
        separator = ": " if ": " in form else " as "
        name, _, files = bare(form).partition(separator)
        if separator == " as ":
            files = f"as {files}"
        rows.append(Row(name, section_of(form, sections), files))
    titles = sections[1::2]
    yield from sorted(rows, key=lambda row: titles.index(title_of(row.page, titles)))


def reader_files() -> list[Path]:
    """The files of readers, without the one that chooses among those of images."""
    files = sorted((ROOT / "gmlp_flax" / "data" / "readers").glob("[!_]*.py"))
    return [path for path in files if path.stem != "images"]


def anchor(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def title_of(page: str, titles: Sequence[str]) -> str:
    """The heading that an address ends with."""
    _, _, name = page.partition("#")
    return next(title for title in titles if anchor(title) == name)


def section_of(form: str, sections: Sequence[str]) -> str:
    """The address of the section of docs/data.md that documents a form."""
    plain = form.replace("`", "")
    for title, text in zip(sections[1::2], sections[2::2], strict=True):
        if plain in " ".join(text.split()).replace("`", ""):
            return f"data.md#{anchor(title)}"
    raise ValueError(f"docs/data.md has no section with the form {form!r}: add it there")


def reports() -> Iterator[Row]:
    """The reports of `gmlp reproduce`."""
    for name, title in listing.names_of("tables").items():
        page = REPORT_PAGES.get(name, "reproducing.md#the-papers-tables-and-figures")
        yield Row(f"`{name}`", page, short(title))


def figures() -> Iterator[Row]:
    """What `gmlp draw` draws."""
    text = inspect.cleandoc(draw.__doc__ or "")
    for name in (*draw.FIGURES, draw.AUGMENTATIONS):
        page = FIGURE_PAGES.get(name, "commands.md#gmlp-draw")
        sentence, _, _ = short(described(text, name, "")).partition(": ")
        yield Row(f"`{name}`", page, sentence)


def benchmarks() -> Iterator[Row]:
    """The parts of `gmlp benchmark`."""
    text = benchmark.__doc__ or ""
    for name in benchmark.PARTS:
        page = BENCHMARK_PAGES.get(name, "commands.md#gmlp-benchmark")
        yield Row(f"`{name}`", page, short(described(text, name, "    ")))


def weights() -> Iterator[Row]:
    """The trained models that are opened."""
    tasks = listing.names_of("tasks")
    for name, folder in exports.shipped().items():
        config = json.loads((Path(folder) / "config.json").read_text())
        task = config["task"]
        about = short(tasks[task])
        predicts = about[0].lower() + about[1:]
        phrase = f"comes with the package; {predicts}"
        yield Row(f"`{name}`", "python/models.md#load", phrase)
    for kind in pretrained.KINDS:
        page, phrase = WEIGHTS[kind.words]
        yield Row(kind.words, page, phrase)
    families = ", ".join(f"`{family}`" for family in transformers_models.FAMILIES)
    yield Row("its `model_type`", BERT, families)


def formats() -> Iterator[Row]:
    """What `gmlp export` writes."""
    always = f"`{exports.WEIGHTS}`: every parameter by its path"
    yield Row("always", "weights.md#export-and-push", always)
    for name, target in FORMATS.items():
        needs = f", with the extra `{target.extra}`" if target.extra else ""
        phrase = f"`{target.file}`{needs}"
        yield Row(f"`--format={name}`", "weights.md#in-other-frameworks", phrase)


def launchers() -> Iterator[Row]:
    """The engines of `gmlp launch`."""
    for name, engine in ENGINES.items():
        yield Row(f"`--on={name}`", "launch.md", engine.summary)


def chips() -> Iterator[Row]:
    """The kinds of `gmlp plan --topology`."""
    for name, about in listing.names_of("chips").items():
        slices = about.split(", ")
        is_tpu = slices[0].startswith(f"{name}:")
        phrase = f"`{slices[0]}` to `{slices[-1]}`" if is_tpu else about
        yield Row(f"`{name}`", "scale.md#known-chips", phrase)


def optimizers() -> Iterator[Row]:
    """The values of `config.optimizer.name`."""
    for name, hyperparameters in listing.names_of("optimizers").items():
        yield Row(f"`{name}`", "choices.md#optimizers", hyperparameters)


def extras() -> Iterator[Row]:
    """The extras of setup.cfg, as the table of docs/first-run.md describes them."""
    about = {}
    table = re.compile(r"^\| (`[\w-]+`(?:, `[\w-]+`)*) \| (.*) \|$", re.MULTILINE)
    for cell, phrase in table.findall((FOLDER / "first-run.md").read_text()):
        for name in re.findall(r"[\w-]+", cell):
            about[name] = phrase
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for name in setup["options.extras_require"]:
        if name not in about:
            raise ValueError(f"the table of extras in docs/first-run.md has no {name}: add a line")
        yield Row(f"`{name}`", "", about[name])


def scripts() -> Iterator[Row]:
    """The scripts of a checkout that users call. The others have no first line `#!...`: scripts
    source them."""
    for path in sorted((ROOT / "scripts").glob("*.sh")):
        first, _, header = path.read_text().partition("\n")
        if not first.startswith("#!"):
            continue
        lines = re.match(r"(?:#.*\n)+", header)
        text = re.sub(r"^# ?", "", lines[0] if lines else "", flags=re.MULTILINE)
        sentence = re.split(r"\.\s|:\s|\n\n", text)[0]
        page = SCRIPT_PAGES.get(path.stem, "first-run.md#install")
        yield Row(f"`scripts/{path.name}`", page, short(sentence))


class Section(NamedTuple):
    """A list of the page.

    Attributes:
        title: its heading.
        about: a sentence below it.
        head: the two names of the columns.
        rows: makes the rows.
    """

    title: str
    about: str
    head: tuple[str, str]
    rows: Callable[[], Iterator[Row]]

    def markdown(self) -> str:
        """The section as Markdown."""
        lines = "".join(row.markdown() for row in self.rows())
        first, second = self.head
        head = f"| {first} | {second} |\n|---|---|\n"
        return f"## {self.title}\n\n{self.about}\n\n{head}{lines}"

    def link(self) -> str:
        """A link to the section."""
        return f"[{self.title}](#{anchor(self.title)})"


SECTIONS = (
    Section(
        "Commands",
        "`gmlp NAME --help` prints the flags of a command.",
        ("command", "what it does"),
        commands,
    ),
    Section(
        "Config files",
        "`gmlp train --config=NAME` trains with one, and [your own config can start from it](runs.md#configs).",
        ("`--config`", "what it trains"),
        configs,
    ),
    Section(
        "Blocks",
        "`--config.model.block=NAME` chooses one. [Token mixers](mixers.md) explains them; each name links to its keys.",
        ("`model.block`", "what it is"),
        block_rows,
    ),
    Section(
        "Tasks",
        "`config.task` names one, and config files set it. Each name links to its keys.",
        ("`task`", "what it predicts"),
        task_rows,
    ),
    Section(
        "Forms of data",
        "`--config.data.train=PATH` reads any of these.",
        ("form", "files"),
        data_forms,
    ),
    Section(
        "Reports",
        "`gmlp reproduce NAME` trains what is missing, and [writes a report](reproducing.md#the-report).",
        ("report", "what it shows"),
        reports,
    ),
    Section(
        "Sweep files",
        "`gmlp sweep --sweep=NAME` trains the points of one.",
        ("`--sweep`", "its runs"),
        sweeps,
    ),
    Section(
        "Figures",
        "`gmlp draw NAME RUN` draws one.",
        ("figure", "what it shows"),
        figures,
    ),
    Section(
        "Benchmarks",
        "`gmlp benchmark NAME` measures one part.",
        ("part", "what is measured"),
        benchmarks,
    ),
    Section(
        "Weights that are read",
        "`gmlp_flax.load`, `--workdir`, `--model` and `config.init_from` [open all of these](weights.md).",
        ("trained model", "how it is named, or what it is"),
        weights,
    ),
    Section(
        "Formats that are written",
        "`gmlp export --model=RUN --out=FOLDER` writes these, and `gmlp push` uploads them.",
        ("flag", "file"),
        formats,
    ),
    Section(
        "Launchers",
        "`gmlp launch --on=NAME` starts a run; [several machines by hand](launch.md#several-machines-by-hand) need no launcher.",
        ("launcher", "machines"),
        launchers,
    ),
    Section(
        "Chips",
        "`gmlp plan --topology=SLICE` plans for these.",
        ("chip", "its usual slices"),
        chips,
    ),
    Section(
        "Optimizers",
        "`--config.optimizer.name=NAME` chooses one, or [your own function](extending.md#an-optimizer).",
        ("`optimizer.name`", "its keys"),
        optimizers,
    ),
    Section(
        "Extras",
        "`./scripts/setup.sh EXTRA` in a checkout, or `pip install 'gmlp_flax[EXTRA]'`, [installs one](first-run.md#extras).",
        ("extra", "what it is for"),
        extras,
    ),
    Section(
        "Scripts",
        "They come with a checkout. `--help` prints how to call one.",
        ("script", "what it does"),
        scripts,
    ),
)


def page() -> str:
    """docs/everything.md."""
    links = " · ".join(section.link() for section in SECTIONS)
    contents = textwrap.fill(links, 120, break_long_words=False, break_on_hyphens=False)
    sections = "\n".join(section.markdown() for section in SECTIONS)
    return PAGE.format(contents=contents, sections=sections)
