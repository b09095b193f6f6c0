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


def test_quoted_rows_of_table_2():
    """Against the sums of the paper's columns: parameters, multiply-adds, top-1."""
    rows = {row.name: row for row in QUOTED["Table 2"]}
    columns = zip(*((row.params_m, row.madds_g, row.top1) for row in rows.values()), strict=True)
    assert [sum(column) for column in columns] == pytest.approx([313, 83.59, 563.9])
    # The same model as ours, in another recipe: a better accuracy at the same size.
    mixer, ours = rows["Mixer-B/16 (our setup)"], PUBLISHED["mixer_b16"]
    assert (mixer.params_m, mixer.madds_g) == (ours.params_m, ours.madds_g) and mixer.top1 > ours.top1
    # With ten models of PUBLISHED and Table 1's three gMLPs, Table 2 has its 20 rows.
    assert len(rows) + sum(model.source == "Table 2" for model in PUBLISHED.values()) + 3 == 20


def test_quoted_rows_of_table_6():
    base, large = QUOTED["Table 6"]
    for row, printed, total in ((base, 4, 341.9), (large, 4, 353.0)):
        scores = [score for column in SCORE_COLUMNS if (score := row.score(column)) is not None]
        assert len(scores) == printed and sum(scores) == pytest.approx(total)
    assert (base.params_m, large.params_m) == (PUBLISHED["bert_base"].params_m, PUBLISHED["bert_large"].params_m)
    assert base.top1 is base.madds_g is None and "Devlin" in base.name
