"""Models have the color of their family."""

from gmlp_flax.analysis.looks import FAMILIES
from gmlp_flax.models import blocks
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports import report


def test_families():
    rows = {
        "bert_rel_only": "Transformer",
        "gmlp_36,data=4": "gMLP",
        "amlp_base": "aMLP",
        "fnet_hybrid": "FNet",
    }
    for row, family in rows.items():
        assert report.family(row) == family


def test_each_published_model_has_a_color():
    families = {report.family(row) for row in PUBLISHED}
    assert families == set(FAMILIES)
    assert set(report.FAMILY_NAMES) == {*blocks.BLOCKS, "amlp"}
