import pytest

from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.quoted import FINETUNED_SCORES, QUOTED, SCORE_COLUMNS, printed_score


def test_the_paper_has_the_finetuned_scores_of_its_tables():
    """Table 4 has two columns, Table 6 five; no table has RTE."""
    tables = ("Table 4", "Table 5")
    assert set(FINETUNED_SCORES) == {name for name, model in PUBLISHED.items() if model.source in tables}
    for name, values in FINETUNED_SCORES.items():
        assert len(values) == (2 if PUBLISHED[name].source == "Table 4" else 5)
    sst2, mnli, _, squad, *_ = SCORE_COLUMNS
    assert printed_score("amlp_base", squad) == 90.7 and printed_score("gmlp_36", mnli) == 80.9
    assert printed_score("gmlp_36", squad) is None and printed_score("sgu", sst2) is None
    assert {column.task for column in SCORE_COLUMNS} == set(recipes.FINETUNED)


# Table 2's rows without a model here: parameters (M), multiply-adds (G), top-1, side of the images.
QUOTED_IMAGE = {
    "ResNet-152": (60, 11.3, 78.3, 224),
    "RegNetY-8GF": (39, 8.0, 81.7, 224),
    "EfficientNet-B0": (5, 0.39, 77.1, 224),
    "EfficientNet-B3": (12, 1.8, 81.6, 300),
    "EfficientNet-B7": (66, 37.0, 84.3, 600),
    "NFNet-F0": (72, 12.4, 83.6, 192),
    "Mixer-B/16 (our setup)": (59, 12.7, 77.3, 224),
}


def test_quoted_rows_of_table_2():
    rows = {row.name: row for row in QUOTED["Table 2"]}
    found = {name: (row.params_m, row.madds_g, row.top1, row.image_size[0]) for name, row in rows.items()}
    assert found == QUOTED_IMAGE
    assert [row.group for row in QUOTED["Table 2"]] == ["ConvNet"] * 6 + ["MLP-like"]
    assert all(row.image_size[0] == row.image_size[1] and not row.scores for row in rows.values())
    # The same model as ours, in another recipe: a better accuracy at the same size.
    mixer, ours = rows["Mixer-B/16 (our setup)"], PUBLISHED["mixer_b16"]
    assert (mixer.params_m, mixer.madds_g) == (ours.params_m, ours.madds_g) and mixer.top1 > ours.top1
    # With ten models of PUBLISHED and Table 1's three gMLPs, Table 2 has its 20 rows.
    assert len(rows) + sum(model.source == "Table 2" for model in PUBLISHED.values()) + 3 == 20


def test_quoted_rows_of_table_6():
    base, large = QUOTED["Table 6"]
    sst2, mnli, mismatched, squad, squad2, _ = SCORE_COLUMNS
    assert [base.score(column) for column in SCORE_COLUMNS] == [92.7, 84.4, None, 88.5, 76.3, None]
    assert [large.score(column) for column in (sst2, mnli, mismatched, squad, squad2)] == [93.7, 86.6, None, 90.9, 81.8]
    assert (base.params_m, large.params_m) == (PUBLISHED["bert_base"].params_m, PUBLISHED["bert_large"].params_m)
    assert base.top1 is base.madds_g is base.image_size is None and "Devlin" in base.name
    assert printed_score("bert_large", squad) == pytest.approx(large.score(squad) + 1.1)
