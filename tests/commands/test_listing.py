"""`gmlp list`, `gmlp sizes` and `gmlp completion`, as printed and as read by bash."""

import json
import shutil
import subprocess

import pytest

from gmlp_flax.__main__ import COMMANDS
from gmlp_flax.commands import listing
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.tables import TABLES
from tests import preloaded


def test_each_kind_lists_names_with_descriptions():
    found = {}
    for kind in listing.KINDS:
        found[kind] = listing.names_of(kind)
    assert found["blocks"].keys() == BLOCKS.keys()
    tables = {*TABLES, "recall"}
    assert found["tables"].keys() == tables
    assert {"quickstart_text", "own_text", "c4_bert"} <= found["configs"].keys()
    assert "sweeps" not in found["configs"]
    assert found["models"]["gmlp_s"] == "Table 1"
    for kind in ("configs", "blocks", "tasks", "optimizers", "tables", "pretrained"):
        for line in found[kind].values():
            assert len(line) > 3, kind
            assert "\n" not in line, kind
    assert "48" not in found["pretrained"]["digits"]
    assert "229,674 parameters" in found["pretrained"]["digits"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ((), "configs  "),
        (("blocks",), "gmlp                The gMLP block"),
        (("models", "gmlp_t*"), "gmlp_ti"),
        (("chips", "v5e"), "v5e:2x2"),
        (("chips", "gpu:h100"), "gpu:h100xN for N of them, 8 on a node"),
    ],
)
def test_printed_lists(words, printed):
    done = preloaded.gmlp("list", *words)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout, done.stderr


@pytest.mark.slow
def test_user_errors_are_one_line():
    assert "did you mean 'blocks'?" in preloaded.refused("list", "block")
    assert "no name of models matches 'zz*'" in preloaded.refused("list", "models", "zz*")
    assert "'fish': expected bash or zsh" in preloaded.refused("completion", "fish")


@pytest.fixture(scope="module")
def script():
    """The completion script for bash."""
    return preloaded.gmlp("completion", "bash").stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "number", "expected"),
    [
        ("gmlp eval", 1, ["evaluate"]),
        ("gmlp train --config = quick", 4, ["quickstart_image", "quickstart_text"]),
        ("gmlp train --config =", 3, sorted(listing.names_of("configs"))),
        ("gmlp reproduce table3", 2, ["table3"]),
    ],
)
def test_bash_completion(script, words, number, expected):
    command = f"{script}\nCOMP_WORDS=({words}); COMP_CWORD={number}; _gmlp; echo ${{COMPREPLY[@]}}"
    bash = ["bash", "-c", command]
    done = subprocess.run(bash, capture_output=True, text=True, cwd="/")
    assert sorted(done.stdout.split()) == expected
    assert done.stderr == ""


def test_completion_of_other_shells(script):
    assert preloaded.gmlp("completion", "zsh").stdout.startswith("autoload -U +X bashcompinit")
    for name in COMMANDS:
        assert name in script


@pytest.mark.smoke
def test_sizes_prints_a_table(printed_sizes):
    lines = printed_sizes.splitlines()
    titles = lines[0].split()[:2]
    assert titles == ["model", "parameters"]
    assert any(line.startswith("gmlp_xlarge") and "940,614,768" in line for line in lines)
    [unprinted] = [line for line in lines if line.startswith("amlp_36 ")]
    cells = unprinted.split()[:5]
    assert cells == ["amlp_36", "108,782,044", "108.8", "26.14", "ablation"]
    [doubled] = [line for line in lines if line.startswith("resmlp_s12 ")]
    words = ["resmlp_s12", "15,350,872", "15.4", "15", "6.02", "2x3", "Table", "2"]
    assert doubled.split() == words
    assert len(lines) == 1 + len(PUBLISHED)
    for line in lines:
        assert not line.endswith(" ")


def test_json_output():
    printed = preloaded.gmlp("list", "--json").stdout
    everything = json.loads(printed)
    expected = {kind: listing.names_of(kind) for kind in listing.KINDS}
    assert everything == expected
    printed_models = preloaded.gmlp("list", "models", "gmlp_*", "--json").stdout
    some = json.loads(printed_models)
    assert some["gmlp_s"] == "Table 1"
    for name in some:
        assert name.startswith("gmlp_")


JSON_PROGRAM = """
import sys
from gmlp_flax.commands import listing
from gmlp_flax.paper import published

for name in published.PUBLISHED.keys() - {"gmlp_xlarge", "resmlp_s12", "amlp_36"}:
    del published.PUBLISHED[name]
sys.argv = ["gmlp", "--json"]
listing.run_sizes()
"""


def assert_known_sizes(by_name: dict[str, dict]) -> None:
    assert by_name["gmlp_xlarge"]["parameters"] == 940_614_768
    assert by_name["resmlp_s12"]["paper_giga_multiply_adds"] == 3
    assert by_name["amlp_36"]["paper_million_parameters"] is None


def test_sizes_of_some_models_as_json():
    """The sizes of all models are counted for the table above."""
    done = preloaded.run("-c", JSON_PROGRAM)
    by_name = {row["model"]: row for row in json.loads(done.stdout)}
    assert by_name.keys() == {"gmlp_xlarge", "resmlp_s12", "amlp_36"}
    assert_known_sizes(by_name)


@pytest.mark.nightly
def test_sizes_as_json():
    rows = json.loads(preloaded.gmlp("sizes", "--json").stdout)
    by_name = {row["model"]: row for row in rows}
    assert by_name.keys() == PUBLISHED.keys()
    assert_known_sizes(by_name)
