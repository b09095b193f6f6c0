"""Verdicts on the papers' claims, from made-up scores and costs."""

from __future__ import annotations

import pytest

from gmlp_flax.paper.alternatives import COLUMNS, ROWS
from gmlp_flax.reports.alternatives import measured
from gmlp_flax.reports.alternatives.claims import FASTER, STATEMENTS, claims, late_starters
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns


def scores(**of_rows):
    return {row: Spread(sum(values) / len(values), values) for row, values in of_rows.items()}


def verdicts(made):
    return {claim.text.partition(". ")[2]: claim.verdict for claim in made}


def test_statements_are_about_rows_and_columns_that_there_are():
    for source, better, worse, columns, share in STATEMENTS:
        assert {better, worse} <= set(ROWS) and set(columns) <= set(COLUMNS) and 0 < share <= 1.02 and source
    assert {row for _, *rows in FASTER for row in rows} <= set(ROWS)


def test_lower_perplexities_and_higher_accuracies_are_better():
    found = verdicts(
        claims(
            {
                "mlm": scores(
                    sgu=(50.0, 51.0), bert=(60.0, 61.0), bert_rel=(70.0,), random=(9.0, 70.0), dynamic=(10.0,)
                ),
                "mnli": scores(bert_rel=(50.0,), sgu=(40.0, 41.0), amlp_36=(39.0,)),
                "cifar10": scores(sgu=(45.0,), bert=(45.5,), resmlp=(46.0,)),
            },
            {},
        )
    )
    assert found["CIFAR-10, top-1 (%): sgu > 0.98 of bert"] == "holds with one seed"
    assert found["CIFAR-10, top-1 (%): sgu > resmlp"] == "is reversed with one seed"
    assert found["masked LM, perplexity: sgu < 1.02 of bert"] == "holds"
    assert found["masked LM, perplexity: bert_rel < sgu"] == "is reversed with one seed"
    assert found["masked LM, perplexity: random < dynamic"] == "is inside the spread"
    assert found["MNLI-m (%): bert_rel > sgu"] == "holds with one seed"
    assert found["MNLI-m (%): amlp_36 > sgu"] == "is reversed with one seed"
    assert not any("fnet" in text for text in found)


def test_what_has_hardly_begun_is_not_judged():
    """Of ln(450 / 50) = 2.20 a third is 0.73, which is a perplexity of 216."""
    perplexities = scores(sgu=(50.0, 50.0), bert=(217.0,), mixer=(215.0,), bert_rel=(60.0,))
    made = {"mlm": perplexities, "sst2": scores(fnet=(9.0,), bert=(8.0,))}
    assert late_starters(made["mlm"], 450.0, lower=True) == ["bert"]
    assert late_starters(scores(sgu=(50.0,), bert=(float("inf"),), fnet=(0.0,)), 450.0, lower=True) == ["bert"]
    found = {claim.text.partition(". ")[2]: claim for claim in claims(made, {}, {"mlm": 450.0})}
    assert found["masked LM, perplexity: sgu < 1.02 of bert"].verdict == "cannot be judged yet"
    assert found["masked LM, perplexity: sgu < 1.02 of bert"].detail == "50.0 ± 0 and 217; bert has hardly begun"
    assert found["masked LM, perplexity: sgu < mixer"].verdict == "holds with one seed"
    assert found["SST-2 (%): fnet > 0.92 of bert"].verdict == "holds with one seed"
    assert verdicts(claims(made, {}))["masked LM, perplexity: sgu < 1.02 of bert"] == "holds with one seed"


def test_an_accuracy_near_the_most_frequent_label_is_not_judged():
    """A third of 58 - 52 is 2. If no row is better than the label, none has begun."""
    made = {"bytes": scores(sgu=(58.0,), fnet=(53.0,), bert=(47.0,)), "sst2": scores(fnet=(75.0,), bert=(74.0,))}
    assert late_starters(made["bytes"], 52.0, lower=False) == ["fnet", "bert"]
    assert late_starters(scores(fnet=(50.0,), bert=(51.0,)), 52.0, lower=False) == ["fnet", "bert"]
    found = {claim.text.partition(". ")[2]: claim for claim in claims(made, {}, {"bytes": 52.0, "sst2": 54.0})}
    assert found["IMDB by bytes (%): fnet > bert"].verdict == "cannot be judged yet"
    assert (
        found["IMDB by bytes (%): fnet > bert"].detail == "53.0 and 47.0; fnet has hardly begun; bert has hardly begun"
    )
    assert found["SST-2 (%): bert > fnet"].verdict == "is reversed with one seed"


def test_a_share_of_the_others_accuracy():
    """92 % of 80 is 73.6."""
    for fnet, verdict in {
        (74.0, 75.0): "holds",
        (73.0, 73.5): "is reversed",
        (73.0, 74.0): "is inside the spread",
    }.items():
        found = claims({"sst2": scores(fnet=fnet, bert=(80.0, 80.0))}, {})
        assert verdicts(found)["SST-2 (%): fnet > 0.92 of bert"] == verdict
        assert verdicts(found)["SST-2 (%): bert > fnet"] == "holds"


def test_keeping_up_is_within_two_per_cent():
    for lightweight, verdict in {98.1: "holds with one seed", 97.9: "is reversed with one seed"}.items():
        found = claims({"imdb": scores(lightweight=(lightweight,), bert_t5=(100.0,))}, {})
        assert verdicts(found)["IMDB (%): lightweight > 0.98 of bert_t5"] == verdict


def test_speeds_and_growth(tmp_path):
    made_up_columns.write_costs(
        tmp_path,
        {
            "bert": (0.8, 2.0),
            "fnet": (0.2, 1.0),
            "random": (0.5, 2.0),
            "dynamic": (0.3, 1.0),
            "lightweight": (0.3, 1.5),
        },
        (512, 1024, 2048, 4096),
    )
    found = claims({}, measured.costs(str(tmp_path), ROWS))
    by_text = verdicts(found)
    assert by_text["A training step of 512 tokens: fnet takes less time than bert"] == "holds"
    # 1.2 times as fast: another process may find the opposite.
    assert by_text["A training step of 512 tokens: random takes less time than dynamic"] == "is inside the spread"
    assert by_text["Time grows by less than n^1.2: fnet"] == "holds"
    assert by_text["Time grows by less than n^1.2: lightweight"] == "is reversed"
    [fnet] = [
        claim for claim in found if "fnet takes less" in claim.text
    ]  # 0.8 / 2 / 4 of a sequence beside 0.2 / 2 / 2
    assert fnet.detail == "2.00 times its speed here, where a factor of 1.7 may be noise"
    assert not any("external" in claim.text for claim in found)


def test_speeds_of_different_lengths_are_not_compared(tmp_path):
    made_up_columns.write_cost(tmp_path, "fnet", 512, (1.0,))
    made_up_columns.write_cost(tmp_path, "bert", 1024, (1.0,))
    assert claims({}, measured.costs(str(tmp_path), ROWS)) == []


@pytest.mark.parametrize("lengths", [(1024, 2048)])
def test_two_points_leave_a_growth_open(tmp_path, lengths):
    made_up_columns.write_costs(tmp_path, {"external": (1.0, 1.0)}, lengths)
    [claim] = claims({}, measured.costs(str(tmp_path), ROWS))
    assert claim.verdict == "is inside the spread" and claim.detail == (
        "n^1.00, 95 % interval: two lengths, no interval"
    )
