"""Models have the colour of their family."""

from __future__ import annotations

import pytest

from gmlp_flax.analysis import drawing
from gmlp_flax.models import blocks
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports import families


@pytest.mark.parametrize(
    ("row", "family"),
    [
        ("bert_rel_only", "Transformer"),
        ("vit_b16_384", "Transformer"),
        ("sgu", "gMLP"),
        ("gmlp_36,data=4", "gMLP"),
        ("amlp_36", "aMLP"),
        ("amlp_base", "aMLP"),
        ("mixer", "Mixer"),
        ("resmlp_s24", "ResMLP"),
        ("ff_base", "feed-forward"),
        ("fnet_hybrid", "FNet"),
        ("factorized", "Synthesizer"),
        ("growing", "convolution"),
    ],
)
def test_families(row, family):
    assert families.family(row) == family


def test_every_published_model_has_a_colour():
    assert {families.family(row) for row in PUBLISHED} == set(drawing.FAMILIES)
    assert set(families.NAMES) <= set(blocks.BLOCKS)


def test_looks_of_a_table():
    found = families.looks(("sgu", "mixer", "linear"))
    assert found["mixer"].colour == drawing.FAMILIES["Mixer"] and len(set(found.values())) == 3
