"""docs/everything.md has every registered name, and is up to date."""

import configparser
import re
from pathlib import Path

import pytest

import gmlp_flax
from docs import everything
from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.commands import benchmark, draw, listing
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.interop.formats import FORMATS
from gmlp_flax.launching.engines import ENGINES
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.paper import recall
from gmlp_flax.paper.tables import TABLES
from gmlp_flax.planning.chips import CHIPS
from gmlp_flax.tasks import TASKS
from gmlp_flax.training import pretrained
from gmlp_flax.weights.transformers_models import FAMILIES

PAGE = Path("docs/everything.md").read_text()
PACKAGE = Path(gmlp_flax.__file__).parent
SETUP = configparser.ConfigParser()
SETUP.read("setup.cfg")
EXTRAS = set(SETUP["options.extras_require"])


def section(title: str) -> str:
    """The text below a heading of the page."""
    _, _, after = PAGE.partition(f"\n## {title}\n")
    text, _, _ = after.partition("\n## ")
    return text


def stems(folder: Path, pattern: str) -> set[str]:
    """The names of the files that a pattern matches, without their suffixes."""
    return {path.stem for path in folder.glob(pattern)}


def called_scripts() -> list[Path]:
    """The scripts that users call: they start with `#!`."""
    return [path for path in Path("scripts").glob("*.sh") if path.read_text().startswith("#!")]


def test_scripts_that_only_other_scripts_call_have_no_row():
    named = set(re.findall(r"`scripts/([^`]+)`", section("Scripts")))
    assert named == {path.name for path in called_scripts()}


def test_the_page_is_up_to_date():
    assert everything.page() == PAGE, "run: python docs/generate.py"


@pytest.mark.parametrize(
    "title, expected",
    [
        ("Commands", {f"gmlp {name}" for name in COMMANDS}),
        ("Config files", stems(PACKAGE / "configs", "[!_]*.py")),
        ("Sweep files", stems(PACKAGE / "configs" / "sweeps", "[!_]*.py")),
        ("Blocks", set(BLOCKS)),
        ("Tasks", set(TASKS)),
        ("Reports", {*TABLES, recall.NAME}),
        ("Figures", {*draw.FIGURES, draw.AUGMENTATIONS}),
        ("Benchmarks", set(benchmark.PARTS)),
        ("Weights that are read", {*gmlp_flax.list_pretrained(), *FAMILIES}),
        ("Formats that are written", {f"--format={name}" for name in FORMATS}),
        ("Launchers", {f"--on={name}" for name in ENGINES}),
        ("Chips", set(CHIPS)),
        ("Optimizers", set(OPTIMIZERS)),
        ("Extras", EXTRAS),
        ("Scripts", {f"scripts/{path.name}" for path in called_scripts()}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_registered_name_has_a_row(title, expected):
    assert expected
    names = set(re.findall(r"`([^`]+)`", section(title)))
    assert names >= expected


def test_every_form_of_data_and_every_kind_of_weights_has_a_row():
    text = section("Forms of data")
    forms = re.findall(r"^\| \[", text, re.MULTILINE)
    files = stems(PACKAGE / "data" / "readers", "[!_]*.py")
    readers = files - {"images"}
    assert len(forms) == len(readers)
    for kind in pretrained.KINDS:
        assert f"[{kind.words}]" in section("Weights that are read")


def test_every_name_that_has_a_page_exists():
    configs = listing.names_of("configs")
    reports = {*TABLES, recall.NAME}
    figures = {*draw.FIGURES, draw.AUGMENTATIONS}
    scripts = stems(Path("scripts"), "*.sh")
    assert set(everything.CONFIG_PAGES) <= set(configs)
    assert set(everything.REPORT_PAGES) <= reports
    parts = set(everything.BENCHMARK_PAGES)
    assert parts <= set(benchmark.PARTS)
    assert set(everything.FIGURE_PAGES) <= figures
    assert set(everything.SCRIPT_PAGES) <= scripts


def test_the_table_of_extras_has_those_of_setup():
    _, _, after = Path("docs/first-run.md").read_text().partition("\n### Extras\n")
    text, _, _ = after.partition("\n### ")
    listed = set()
    for cell in re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE):
        listed |= set(re.findall(r"`([^`]+)`", cell))
    assert listed == EXTRAS


@pytest.mark.parametrize(
    "text, expected",
    [
        ("FNet (arXiv 1): mixed; and more.", "FNet: mixed"),
        ("One thing. Another thing.", "One thing"),
        ("a | b (c)", "a \\| b"),
    ],
)
def test_descriptions_are_shortened(text, expected):
    assert everything.short(text) == expected


def test_descriptions_in_help_texts_may_have_several_lines():
    text = "    one   a thing\n              of two lines\n    two   another\n"
    words = everything.described(text, "one", "    ").split()
    assert words == ["a", "thing", "of", "two", "lines"]
    with pytest.raises(ValueError, match="three"):
        everything.described(text, "three", "    ")
