"""Whether the runs and measurements of the alternatives support the claims of the papers."""

import math
from collections.abc import Iterator, Mapping

from gmlp_flax.paper.alternatives import (
    COLUMNS,
    FASTER,
    GROWS,
    NOTHING,
    STATEMENTS,
    Column,
    Statement,
)
from gmlp_flax.reports import claims as verdicts
from gmlp_flax.reports.alternatives.scores import Scores
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.costs import Costs, growth, nearest
from gmlp_flax.reports.scaling import PowerLaw
from gmlp_flax.reports.table import Spread, shown

SPEED_AT = 512  # tokens, for which FNet's paper gives its speeds
# The factor by which two processes that time the same small step on shared cores may differ;
# repeats within one process do not show it.
NOISE = 1.7
LINEAR = 1.2  # a power of n up to which time counts as linear
# A share of the best row's gain over a trivial model: a row that gained less has hardly begun.
BEGUN = 1 / 3


def claims(
    scores: Scores,
    costs: Costs,
    baselines: Mapping[str, float] = NOTHING,
    examples: Mapping[str, int] = NOTHING,
) -> list[Claim]:
    """Every statement of the papers for which both rows are there, with our numbers.

    Args:
        scores: column -> row -> its score over seeds.
        costs: row -> tokens -> a measured step. Speeds within a factor NOISE count as equal.
        baselines: column -> the score of the best trivial model. Claims on a row that is hardly
            better are not judged: its score shows how fast that row starts, not how good it is.
        examples: column -> its held-out examples. Accuracies within two standard errors of each
            other decide nothing.
    """
    late = {}
    for name, baseline in baselines.items():
        column = COLUMNS[name]
        by_row = scores.get(name, {})
        late[name] = late_starters(by_row, baseline, column.lower)
    judged = []
    for statement in STATEMENTS:
        rows = {statement.better, statement.worse}
        for name in statement.columns:
            by_row = scores.get(name, {})
            if rows <= by_row.keys():
                count = examples.get(name, 0)
                claim = _claim(statement, COLUMNS[name], by_row, count)
                late_rows = late.get(name, {})
                claim = _unless_late(claim, statement, late_rows)
                judged.append(claim)
    return [*judged, *_speed_claims(costs), *_growth_claims(costs)]


def _claim(
    statement: Statement,
    column: Column,
    scores: Mapping[str, Spread],
    examples: int,
) -> Claim:
    """A statement on two rows in a column, with our verdict."""
    better = scores[statement.better]
    worse = scores[statement.worse]
    error = 0.0
    if not column.lower:
        error = _standard_error(better, worse, examples)
    detail = f"{shown(better)} and {shown(worse)}"
    if error > 0:
        detail += f", standard error of the difference {error:.1f}"
    bounds = [statement.share * value for value in worse.values]
    verdict = verdicts.verdict(better.values, bounds, column.lower, noise=2 * error)
    bound = statement.worse
    if statement.share != 1:
        bound = f"{statement.share:g} of {statement.worse}"
    sign = "<" if column.lower else ">"
    ordering = f"{statement.better} {sign} {bound}"
    text = f"{statement.source}. {column.title}: {ordering}"
    return Claim(text, verdict, detail)


def _standard_error(
    first: Spread,
    second: Spread,
    examples: int,
) -> float:
    """The standard error, in points, of the difference of two accuracies in percent on this number
    of examples; 0 without examples."""
    if not examples:
        return 0.0
    variance = 0.0
    for spread in (first, second):
        percent = spread.centre
        variance += percent * (100 - percent) / examples
    return math.sqrt(variance)


def late_starters(
    scores: Mapping[str, Spread],
    baseline: float,
    lower: bool,
) -> dict[str, str]:
    """Rows whose scores do not yet show how good they are, and why: they are no better than the
    best trivial model (for masked language models, one that sees no context), or have less than
    `BEGUN` of the best gain over it. Perplexities (`lower`) count by their logarithm."""
    gains = {}
    for row, spread in scores.items():
        if lower:
            gains[row] = _log(baseline) - _log(spread.centre)
        else:
            gains[row] = spread.centre - baseline
    best_gain = max(gains.values(), default=0)
    least = BEGUN * best_gain
    late = {}
    for row, gain in gains.items():
        if gain <= 0:
            late[row] = "is no better than a trivial model"
        elif gain < least:
            late[row] = "has hardly begun"
    return late


def _log(perplexity: float) -> float:
    """The logarithm of a perplexity, which is at least 1."""
    at_least_1 = max(perplexity, 1)
    return math.log(at_least_1)


def _unless_late(
    claim: Claim,
    statement: Statement,
    late: Mapping[str, str],
) -> Claim:
    """A claim; if one of its rows is late, with the verdict EARLY and the reason."""
    rows = (statement.better, statement.worse)
    for row, reason in late.items():
        if row in rows:
            detail = f"{claim.detail}; {row} {reason}"
            claim = claim._replace(verdict=EARLY, detail=detail)
    return claim


def _speed_claims(costs: Costs) -> Iterator[Claim]:
    """The papers' claims about speed."""
    for source, faster, slower in FASTER:
        steps = nearest(costs, (faster, slower), SPEED_AT)
        if len(steps) < 2:
            continue
        faster_step = steps[faster]
        slower_step = steps[slower]
        ratio = faster_step.speed / slower_step.speed
        step = f"A training step of {faster_step.tokens:,} tokens"
        text = f"{source}. {step}: {faster} takes less time than {slower}"
        verdict = _speed_verdict(ratio)
        detail = f"{ratio:.2f} times its speed here, where a factor of {NOISE} may be noise"
        yield Claim(text, verdict, detail)


def _speed_verdict(ratio: float) -> str:
    """Whether a row is faster, by the ratio of its speed to the other's."""
    if ratio >= NOISE:
        return HOLDS
    if ratio <= 1 / NOISE:
        return REVERSED
    return OPEN


def _growth_claims(costs: Costs) -> Iterator[Claim]:
    """The papers' claims about how time grows."""
    for source, row in GROWS:
        by_length = costs.get(row, {})
        law = growth(by_length)
        if law is None:
            continue
        text = f"{source}. Time grows by less than n^{LINEAR}: {row}"
        verdict = _growth_verdict(law)
        interval = law.interval()
        detail = f"n^{law.exponent:.2f}, 95 % interval: {interval}"
        yield Claim(text, verdict, detail)


def _growth_verdict(law: PowerLaw) -> str:
    """Whether time grows roughly linearly with the number of tokens."""
    if law.high < LINEAR:
        return HOLDS
    if law.low > LINEAR:
        return REVERSED
    return OPEN
