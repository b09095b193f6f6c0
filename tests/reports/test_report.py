"""What a report says."""

from __future__ import annotations

from gmlp_flax.reports.claims import HOLDS, Claim
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Setting
from gmlp_flax.reports.table import Table


def test_all_that_is_said():
    setting = Setting("cpu", "sgu", [("steps", "9", "100")])
    made = Report("A", Table((), ()), [Claim("a < b", HOLDS, "since 3 tokens")], [], setting, ["a note"])
    assert made.sentences() == [
        "1 claims: 1 hold for every pair of seeds, 0 are reversed for every pair, 0 are inside the spread.",
        "a < b holds; since 3 tokens.",
        "Scale cpu. Scaled down for sgu: steps 9 (paper: 100).",
        "a note",
    ]
    assert Setting("paper", "sgu").sentence() == "Scale paper: the paper's setting."
