"""The papers' claims about the alternatives, and whether runs support them."""

import pytest

from gmlp_flax.paper.alternatives import COLUMNS, FASTER, GROWS, ROWS, STATEMENTS
from gmlp_flax.reports.alternatives.claims import claims, late_starters
from gmlp_flax.reports.costs import read_costs
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns


def scores(**values_of_rows):
    """The mean over seeds of each row."""
    means = {}
    for row, values in values_of_rows.items():
        means[row] = Spread(sum(values) / len(values), values)
    return means


def by_text(found) -> dict:
    """Claims by their text without the source before it."""
    texts = {}
    for claim in found:
        _, _, text = claim.text.partition(". ")
        texts[text] = claim
    return texts


def test_claims_name_existing_rows_and_columns():
    for source, better, worse, columns, share in STATEMENTS:
        assert {better, worse} <= set(ROWS)
        assert set(columns) <= set(COLUMNS)
        assert 0 < share <= 1.02
        assert source
    for _, *rows in (*FASTER, *GROWS):
        assert set(rows) <= set(ROWS)


@pytest.mark.parametrize(
    ("column", "values", "claim", "verdict"),
    [
        (
            "mlm",
            {"sgu": (50.0, 51.0), "bert": (60.0, 61.0)},
            "sgu < 1.02 of bert",
            "holds",
        ),
        (
            "mlm",
            {"random": (9.0, 70.0), "dynamic": (10.0,)},
            "random < dynamic",
            "is inside the spread",
        ),
        (
            "cifar10",
            {"sgu": (45.0,), "bert": (45.5,)},
            "sgu > 0.98 of bert",
            "holds with one seed",
        ),
        # 92 % of 80 is 73.6.
        (
            "sst2",
            {"fnet": (74.0, 75.0), "bert": (80.0, 80.0)},
            "fnet > 0.92 of bert",
            "holds",
        ),
        (
            "sst2",
            {"fnet": (73.0, 74.0), "bert": (80.0, 80.0)},
            "fnet > 0.92 of bert",
            "is inside the spread",
        ),
    ],
)
def test_lower_perplexities_and_higher_accuracies_are_better(column, values, claim, verdict):
    found_claims = claims({column: scores(**values)}, {})
    found = by_text(found_claims)
    title = COLUMNS[column].title
    found_claim = found[f"{title}: {claim}"]
    assert found_claim.verdict == verdict


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
    columns = {
        "cifar10": scores(sgu=(50.0,), mixer=(45.0,)),
        "mlm": scores(sgu=(50.0,), mixer=(50.1,)),
    }
    examples_of_columns = dict.fromkeys(columns, examples)
    found = {}
    for claim in claims(columns, {}, {}, examples_of_columns):
        _, _, text = claim.text.partition(": ")
        found[text] = claim
    assert found["sgu > mixer"].verdict == verdict
    assert found["sgu < mixer"].verdict == "holds with one seed"
    end = f", standard error of the difference {error}" if error else ""
    assert found["sgu > mixer"].detail == f"50.0 and 45.0{end}"


def test_barely_trained_rows_are_not_judged():
    """A row has hardly begun if it has made less than a third of the best row's progress from the
    trivial model: of ln(450 / 50) = 2.20 a third is 0.73, a perplexity of 216; of the accuracies'
    58 - 52 a third is 2. If no row is better than the most frequent label, none has begun."""
    perplexities = scores(sgu=(50.0, 50.0), bert=(217.0,), mixer=(215.0,))
    accuracies = scores(sgu=(58.0,), fnet=(53.0,), bert=(47.0,))
    trivial = "is no better than a trivial model"
    late = late_starters(perplexities, 450.0, lower=True)
    assert late == {"bert": "has hardly begun"}
    diverged = scores(sgu=(50.0,), bert=(float("inf"),), fnet=(0.0,))
    assert late_starters(diverged, 450.0, lower=True) == {"bert": trivial}
    late = late_starters(accuracies, 52.0, lower=False)
    assert late == {"fnet": "has hardly begun", "bert": trivial}
    untrained = scores(fnet=(50.0,), bert=(51.0,))
    late = late_starters(untrained, 52.0, lower=False)
    assert late == {"fnet": trivial, "bert": trivial}
    columns = {"mlm": perplexities, "bytes": accuracies}
    found = by_text(claims(columns, {}, {"mlm": 450.0}))
    unjudged = found["masked LM, perplexity: sgu < 1.02 of bert"]
    assert unjudged.verdict == "cannot be judged yet"
    assert unjudged.detail == "50.0 ± 0 and 217; bert has hardly begun"
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
    found = by_text(claims({}, read_costs(str(tmp_path), ROWS)))
    faster = found["A training step of 512 tokens: fnet takes less time than bert"]
    assert faster.verdict == "holds"
    # a sequence of 1,024 tokens takes 0.8 / 2 and 0.2 / 2 s, so 512 take 0.8 / 2 / 4 and 0.2 / 2 / 2
    assert faster.detail.startswith("2.00 times")
    # 1.2 times as fast: another process may find the opposite.
    close = found["A training step of 512 tokens: random takes less time than dynamic"]
    assert close.verdict == "is inside the spread"
    assert found["Time grows by less than n^1.2: fnet"].verdict == "holds"
    assert found["Time grows by less than n^1.2: lightweight"].verdict == "is reversed"
    two_points = found["Time grows by less than n^1.2: external"]
    assert two_points.verdict == "is inside the spread"
    assert two_points.detail.startswith("n^1.00")
    # speeds of different lengths are not compared
    apart = tmp_path / "apart"
    made_up_columns.write_cost(apart, "fnet", 512, (1.0,))
    made_up_columns.write_cost(apart, "bert", 1024, (1.0,))
    costs = read_costs(str(apart), ROWS)
    assert claims({}, costs) == []
