"""The table of published sizes, as the command prints it."""

import json

import pytest

from gmlp_flax.paper.published import PUBLISHED
from tests import preloaded

EXACT = {"gmlp_ti": 5_867_328, "gmlp_s": 19_422_656, "gmlp_b": 73_075_392}


@pytest.mark.smoke
def test_sizes_prints_json():
    done = preloaded.gmlp("sizes", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert {name: rows[name]["params"] for name in EXACT} == EXACT
    for row in rows.values():
        assert {"name", "params", "paper_params_m", "flops", "paper_flops_g", "paper_perplexity"} <= row.keys()
        if row["paper_params_m"] is None:
            assert row["note"]
            continue
        digits = len(f"{row['paper_params_m']:g}".partition(".")[2])
        assert row["note"] or round(row["params"] / 1e6, digits) == row["paper_params_m"], row
    assert rows["deit_s"]["paper_madds_g"] == 4.6 and rows["deit_s"]["paper_flops_g"] is None
    assert rows["sgu"]["paper_perplexity"] == 4.35 and rows["gmlp_s"]["paper_perplexity"] is None


def test_sizes_prints_a_table(printed_sizes):
    lines = printed_sizes.splitlines()
    assert lines[0].split()[:2] == ["model", "parameters"]
    assert any(line.startswith("gmlp_xlarge") and "940,614,768" in line for line in lines)
    (unprinted,) = (line for line in lines if line.startswith("amlp_36 "))
    assert unprinted.split()[:5] == ["amlp_36", "108,782,044", "108.8", "26.14", "ablation"]
    (doubled,) = (line for line in lines if line.startswith("resmlp_s12 "))
    assert doubled.split() == ["resmlp_s12", "15,350,872", "15.4", "15", "6.02", "2x3", "Table", "2"]
    assert len(lines) == 1 + len(PUBLISHED) and not any(line.endswith(" ") for line in lines)
