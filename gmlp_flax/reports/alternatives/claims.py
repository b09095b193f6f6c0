"""What the papers of the alternatives claim, and whether our columns support it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.reports import claims as verdicts
from gmlp_flax.reports.alternatives import measured
from gmlp_flax.reports.claims import EARLY, HOLDS, OPEN, REVERSED, Claim
from gmlp_flax.reports.table import Spread, shown

SPEED_AT = 512  # tokens, where FNet's paper gives its speeds
NOISE = 1.7  # between two processes that time the same small step on shared cores; repeats within one do not show it
LINEAR = 1.2  # a power of n up to which time counts as linear
BEGUN = 1 / 3  # of the best row's gain over a trivial model: a row that gained less has hardly begun


class Statement(NamedTuple):
    """In each of some columns, `better` is better than `share` times `worse`; `KEEPS_UP` and `LEVEL` allow a
    difference of 2 %."""

    source: str
    better: str
    worse: str
    columns: Sequence[str]
    share: float = 1.0


KEEPS_UP, LEVEL = 0.98, 1.02  # of accuracies, of perplexities
_ACCURACIES = ("sst2", "imdb", "mnli")
STATEMENTS = (
    # The gMLP paper's Table 3: 4.35 and 4.37; 4.26; 5.34; 5.64.
    Statement("gMLP matches BERT, Table 3", "sgu", "bert", ("mlm",), LEVEL),
    Statement("gMLP is behind relative positions, Table 3", "bert_rel", "sgu", ("mlm",)),
    Statement("gMLP beats the Mixer, Table 3", "sgu", "mixer", ("mlm",)),
    Statement("gMLP beats positions alone, Table 3", "sgu", "bert_rel_only", ("mlm",)),
    Statement("gMLP is behind on pairs, Table 4", "bert_rel", "sgu", ("mnli",)),
    Statement("tiny attention helps on pairs, Figure 8", "amlp_36", "sgu", ("mnli",)),
    # The gMLP paper's Table 2: gMLP-S 79.6, DeiT-S 79.8, ResMLP-12 and -24 76.6 and 79.4; gMLP-B 81.6, Mixer-B 76.4.
    Statement("gMLP matches the Transformer on images, Table 2", "sgu", "bert", ("cifar10",), KEEPS_UP),
    Statement("gMLP beats the Mixer on images, Table 2", "sgu", "mixer", ("cifar10",)),
    Statement("gMLP beats ResMLP on images, Table 2", "sgu", "resmlp", ("cifar10",)),
    Statement("FNet has 92 % of BERT's accuracy, 2105.03824", "fnet", "bert", _ACCURACIES, 0.92),
    Statement("FNet is behind BERT, 2105.03824", "bert", "fnet", (*_ACCURACIES, "listops", "pixels")),
    Statement("FNet beats the Transformer on bytes, 2105.03824 (recalled)", "fnet", "bert", ("bytes",)),
    Statement("the random Synthesizer beats dynamic convolution, 2005.00743", "random", "dynamic", ("mlm",)),
    Statement("learned logits beat fixed ones, 2005.00743", "random", "fixed_random", ("mlm",)),
    Statement("random logits help attention, 2005.00743", "random_vanilla", "bert", ("mlm",)),
    Statement("random logits alone are behind attention, 2005.00743", "bert", "random", ("mlm",)),
    Statement("convolutions keep up on sentences, 2105.03322", "lightweight", "bert_t5", ("sst2", "imdb"), KEEPS_UP),
    Statement("convolutions fall behind on pairs, 2105.03322", "bert_t5", "lightweight", ("mnli",)),
)
# (source, faster, slower): time per token at SPEED_AT tokens.
FASTER = (
    ("FNet is faster than BERT, 2105.03824", "fnet", "bert"),
    ("the random Synthesizer is faster than dynamic convolution, 2005.00743", "random", "dynamic"),
)
GROWS = (
    ("external attention costs O(n), 2105.02358", "external"),
    ("convolutions cost O(n), 2105.03322", "lightweight"),
    ("FNet costs O(n log n), 2105.03824", "fnet"),
)


def claims(
    scores: Mapping[str, Mapping[str, Spread]],
    costs: measured.Costs,
    baselines: Mapping[str, float] = MappingProxyType({}),
) -> list[Claim]:
    """Every statement for which both rows are there, with our numbers.

    Args:
        scores: column -> row -> its score over seeds.
        costs: row -> tokens -> a measured step. Speeds within a factor NOISE count as equal.
        baselines: column -> the score of a trivial model. Claims on a row that is hardly better are not judged: its
            score says how fast that row starts, not what it is worth.
    """
    late = {
        name: late_starters(of_row, baselines[name], COLUMNS[name].lower)
        for name, of_row in scores.items()
        if name in baselines
    }
    return [*_of_scores(scores, late), *_of_speeds(costs), *_of_growth(costs)]


def late_starters(scores: Mapping[str, Spread], baseline: float, lower: bool) -> list[str]:
    """Rows that have hardly begun, by `BEGUN`: perplexities (`lower`) by their logarithm, accuracies as they are."""

    def gain_of(score: float) -> float:
        return math.log(max(baseline, 1)) - math.log(max(score, 1)) if lower else score - baseline

    gained = {row: gain_of(each.centre) for row, each in scores.items()}
    return [row for row, gain in gained.items() if gain <= 0 or gain < BEGUN * max(gained.values())]


def _of_scores(scores: Mapping[str, Mapping[str, Spread]], late: Mapping[str, Sequence[str]]) -> list[Claim]:
    found = []
    for source, better, worse, columns, share in STATEMENTS:
        for name in columns:
            of_row = scores.get(name, {})
            if better in of_row and worse in of_row:
                column, one, other = COLUMNS[name], of_row[better], of_row[worse]
                sign = 1 if column.lower else -1
                values = [sign * value for value in one.values], [sign * share * value for value in other.values]
                bound = f"{share:g} of {worse}" if share != 1 else worse
                text = f"{source}. {column.title}: {better} {'<' if column.lower else '>'} {bound}"
                slow = [row for row in (better, worse) if row in late.get(name, ())]
                detail = f"{shown(one)} and {shown(other)}" + "".join(f"; {row} has hardly begun" for row in slow)
                found.append(Claim(text, EARLY if slow else verdicts.verdict(*values), detail))
    return found


def _of_speeds(costs: measured.Costs) -> list[Claim]:
    found = []
    for source, faster, slower in FASTER:
        steps = [measured.nearest(costs.get(row, {}), SPEED_AT) for row in (faster, slower)]
        if steps[0] and steps[1] and steps[0].tokens == steps[1].tokens:
            ratio = steps[0].speed / steps[1].speed
            verdict = OPEN if 1 / NOISE < ratio < NOISE else HOLDS if ratio > 1 else REVERSED
            text = f"{source}. A training step of {steps[0].tokens:,} tokens: {faster} takes less time than {slower}"
            found.append(
                Claim(text, verdict, f"{ratio:.2f} times its speed here, where a factor of {NOISE} may be noise")
            )
    return found


def _of_growth(costs: measured.Costs) -> list[Claim]:
    found = []
    for source, row in GROWS:
        law = measured.growth(costs.get(row, {}))
        if law:
            verdict = HOLDS if law.high < LINEAR else REVERSED if law.low > LINEAR else OPEN
            detail = f"n^{law.exponent:.2f}, 95 % interval: {measured.interval(law)}"
            found.append(Claim(f"{source}. Time grows by less than n^{LINEAR}: {row}", verdict, detail))
    return found
