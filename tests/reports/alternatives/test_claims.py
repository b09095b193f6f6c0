"""The papers' claims on the alternatives, and whether runs support them."""

import pytest

from gmlp_flax.paper.alternatives import COLUMNS, FASTER, GROWS, ROWS, STATEMENTS
from gmlp_flax.reports.alternatives.claims import claims, late_starters
from gmlp_flax.reports.costs import read_costs
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns


def scores(**of_rows):
    return {row: Spread(sum(values) / len(values), values) for row, values in of_rows.items()}


def verdicts(made):
    return {claim.text.partition(". ")[2]: claim.verdict for claim in made}


def test_claims_name_existing_rows_and_columns():
    for source, better, worse, columns, share in STATEMENTS:
        assert {better, worse} <= set(ROWS)
        assert set(columns) <= set(COLUMNS)
        assert 0 < share <= 1.02
        assert source
    got = {row for _, *rows in (*FASTER, *GROWS) for row in rows}
    assert got <= set(ROWS)


@pytest.mark.parametrize(
    ("column", "values", "claim", "verdict"),
    [
        ("mlm", {"sgu": (50.0, 51.0), "bert": (60.0, 61.0)}, "sgu < 1.02 of bert", "holds"),
        (
            "mlm",
            {"random": (9.0, 70.0), "dynamic": (10.0,)},
            "random < dynamic",
            "is inside the spread",
        ),
        ("cifar10", {"sgu": (45.0,), "bert": (45.5,)}, "sgu > 0.98 of bert", "holds with one seed"),
        # 92 % of 80 is 73.6.
        ("sst2", {"fnet": (74.0, 75.0), "bert": (80.0, 80.0)}, "fnet > 0.92 of bert", "holds"),
        (
            "sst2",
            {"fnet": (73.0, 74.0), "bert": (80.0, 80.0)},
            "fnet > 0.92 of bert",
            "is inside the spread",
        ),
    ],
)
def test_lower_perplexities_and_higher_accuracies_are_better(column, values, claim, verdict):
    assert (
        verdicts(claims({column: scores(**values)}, {}))[f"{COLUMNS[column].title}: {claim}"]
        == verdict
    )


@pytest.mark.parametrize(
    ("examples", "verdict", "error"),
    # 45 and 50 % of 100 images: sqrt((0.45 * 0.55 + 0.5 * 0.5) / 100) = 0.0705; of 10,000 a tenth
    # of it.
    [
        (0, "holds with one seed", ""),
        (100, "is inside the spread", "7.1"),
        (10_000, "holds with one seed", "0.7"),
    ],
)
def test_accuracies_within_two_standard_errors_are_undecided(examples, verdict, error):
    made = {
        "cifar10": scores(sgu=(50.0,), mixer=(45.0,)),
        "mlm": scores(sgu=(50.0,), mixer=(50.1,)),
    }
    found = {
        claim.text.partition(": ")[2]: claim
        for claim in claims(made, {}, {}, dict.fromkeys(made, examples))
    }
    assert found["sgu > mixer"].verdict == verdict
    assert found["sgu < mixer"].verdict == "holds with one seed"
    said = f", standard error of the difference {error}" if error else ""
    assert found["sgu > mixer"].detail == f"50.0 and 45.0{said}"


def test_barely_trained_rows_are_not_judged():
    """Of ln(450 / 50) = 2.20 a third is 0.73, a perplexity of 216; of the accuracies' 58 - 52 a
    third is 2. If no row is better than the most frequent label, none has begun."""
    made = {
        "mlm": scores(sgu=(50.0, 50.0), bert=(217.0,), mixer=(215.0,)),
        "bytes": scores(sgu=(58.0,), fnet=(53.0,), bert=(47.0,)),
    }
    nothing = "is no better than a trivial model"
    assert late_starters(made["mlm"], 450.0, lower=True) == {"bert": "has hardly begun"}
    got = late_starters(scores(sgu=(50.0,), bert=(float("inf"),), fnet=(0.0,)), 450.0, lower=True)
    assert got == {"bert": nothing}
    assert late_starters(made["bytes"], 52.0, lower=False) == {
        "fnet": "has hardly begun",
        "bert": nothing,
    }
    assert late_starters(scores(fnet=(50.0,), bert=(51.0,)), 52.0, lower=False) == {
        "fnet": nothing,
        "bert": nothing,
    }
    found = {claim.text.partition(". ")[2]: claim for claim in claims(made, {}, {"mlm": 450.0})}
    late = found["masked LM, perplexity: sgu < 1.02 of bert"]
    assert late[1:] == ("cannot be judged yet", "50.0 ± 0 and 217; bert has hardly begun")
    assert found["masked LM, perplexity: sgu < mixer"].verdict == "holds with one seed"
    # without a baseline
    assert found["IMDB by bytes (%): fnet > bert"].verdict == "holds with one seed"


def test_speeds_and_growth(tmp_path):
    rows = {
        "bert": (0.8, 2),
        "fnet": (0.2, 1),
        "random": (0.5, 2),
        "dynamic": (0.3, 1),
        "lightweight": (0.3, 1.5),
    }
    made_up_columns.write_costs(tmp_path, rows, (512, 1024, 2048, 4096))
    made_up_columns.write_costs(tmp_path, {"external": (1.0, 1.0)}, (1024, 2048))
    found = claims({}, read_costs(str(tmp_path), ROWS))
    by_text = verdicts(found)
    assert by_text["A training step of 512 tokens: fnet takes less time than bert"] == "holds"
    # 1.2 times as fast: another process may find the opposite.
    assert (
        by_text["A training step of 512 tokens: random takes less time than dynamic"]
        == "is inside the spread"
    )
    assert by_text["Time grows by less than n^1.2: fnet"] == "holds"
    assert by_text["Time grows by less than n^1.2: lightweight"] == "is reversed"
    details = {claim.text.partition(". ")[2]: claim.detail for claim in found}
    # 0.8 / 2 / 4 of a sequence beside 0.2 / 2 / 2
    assert details["A training step of 512 tokens: fnet takes less time than bert"].startswith(
        "2.00 times"
    )
    two_points = "Time grows by less than n^1.2: external"
    assert by_text[two_points] == "is inside the spread"
    assert details[two_points][:6] == "n^1.00"
    # speeds of different lengths are not compared
    for row, tokens in {"fnet": 512, "bert": 1024}.items():
        made_up_columns.write_cost(tmp_path / "apart", row, tokens, (1.0,))
    assert claims({}, read_costs(str(tmp_path / "apart"), ROWS)) == []
