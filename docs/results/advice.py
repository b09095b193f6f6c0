"""What docs/results/which-mixer.md advises: ten sentences, whose numbers come from the measured CSV
files."""

import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from docs import generate
from docs.results import longer
from gmlp_flax.reports import claims
from gmlp_flax.reports import costs as costs_lib
from gmlp_flax.reports.costs import Cost

ADVICE = """
**Little text, any length: use a convolution.** `dynamic` and `lightweight` end at {ppl[dynamic]:.1f} and
{ppl[lightweight]:.1f} perplexity, the lowest of all rows, and 1,000 tokens take `lightweight` {short[lightweight]:.0f}
ms at 128 tokens and {long[lightweight]:.0f} at 8,192. Limit: 1.8 M tokens, 0.40 M parameters, three seeds. After 18 M
attention with relative positions is ahead, {ten[bert_rel]:.1f} to {ten[lightweight]:.1f}; two kernels of 7 let no token
see further than 6 away.

**If you use attention, give it relative positions.** It ends at {ppl[bert_rel]:.1f} with them and at {ppl[bert]:.0f}
with learned ones, hardly better than seeing no context ({no_context:.0f}). Limit: this is 1.8 M tokens; after 18 M the
two stand at {ten[bert_rel]:.1f} and {ten[bert]:.1f}, medians of three seeds, each at the best of five rates.

**gMLP stays cheap at any length, because its W is Toeplitz.** It ends at {ppl[sgu]:.1f}, and 1,000 tokens take
{short[sgu]:.0f} ms at 128 tokens, {middle[sgu]:.0f} at 1,024 and {long[sgu]:.0f} at 8,192: the time of a sequence grows
as n^{growth:.1f}, that of attention as n^{attention:.1f}. Limit: one core of one CPU; no gMLP was trained at 8,192.

**With more tokens, gMLP comes close to attention.** After 18 M tokens attention with relative positions has
{ten[bert_rel]:.1f} and gMLP {ten[sgu]:.1f}; with 3.16 M parameters and 59 M tokens {wide[bert_rel]:.2f} and
{wide[sgu]:.2f}. Limit: the last two are one seed each.

**Avoid attention at 8,192 tokens on a CPU.** With relative biases 1,000 tokens take {long[bert_rel]:,.0f} ms,
{times:.0f} times the convolution's. Limit: one core of one CPU; accelerators have faster kernels for attention.

**A mixer that learns each position separately needs more tokens and its own rate.** After 1.8 M tokens, {stuck} of
the {rows} rows, such as `mixer` ({ppl[mixer]:.0f}) and `resmlp` ({ppl[resmlp]:.0f}), are still on their plateau. After 18 M tokens
`resmlp` has {end[resmlp]:.1f}, `mixer` {ten[mixer]:.1f} and `feed_forward` {end[feed_forward]:.1f}; after 6 M the
last one has {tried[0.002]:.0f} at a rate of 2e-3 but {tried[0.004]:.0f} at 4e-3. Limit: one seed, except for the Mixer.

**For images the order is different: use ResMLP, gMLP or aMLP.** They reach {top1[resmlp]:.1f}, {top1[sgu]:.1f} and
{top1[amlp_36]:.1f} % on CIFAR-10 after 300 steps. Convolutions over the row of patches reach at most
{convolution:.1f} %, and attention {top1[bert]:.1f}. Limit: one seed and less than an epoch; chance is {chance:.0f} %, and over {shared} rows
text and images agree to a rank correlation of {agree:.2f}.

**Train longer before you choose for images.** After 3.7 epochs gMLP has {trained[gmlp]:.1f} %, ResMLP
{trained[resmlp]:.1f}, the Mixer {trained[mixer]:.1f} and ViT {trained[vit]:.1f}. Limit: two seeds, one or two rates
each, and ViT reads a class token where these others read the mean.

**For trees of symbols, use gMLP or the Mixer.** On short ListOps they have {trees[sgu]:.1f} and {trees[mixer]:.1f} %,
the convolution {trees[lightweight]:.1f}. Limit: trees of 4 to 29 symbols, where the standard error of a difference is
{error:.1f}; the published length of 2,000 was never run.

**For inputs longer than in training, use a convolution or T5's buckets.** At twice the length, the perplexity is
multiplied by {lengths[lightweight]:.2f} for `lightweight`, {lengths[amlp_36]:.2f} for aMLP, {lengths[sgu]:.2f} for gMLP,
{lengths[bert_rel]:.2f} for attention with relative biases, and {lengths[random]:.2f} for the Synthesizer `random`. Mixer
and ResMLP cannot read longer inputs. Limit: 256 tokens instead of 128, after 18 M tokens, one seed.
"""


def sentences() -> list[str]:
    """The advice, the most useful first, with its numbers and limits."""
    text = ADVICE.format_map(numbers()).strip()
    paragraphs = text.split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


def numbers() -> dict[str, Any]:
    """What ADVICE names."""
    means = mean_scores()
    costs = generate.costs()
    ppl = means["mlm"]
    top1 = means["cifar10"]
    trees = means["listops"]
    long = milliseconds(costs, 8192)
    no_context = floors("mlm")["the shown token alone, without context"]
    law = costs_lib.growth(costs["sgu"])
    law_of_attention = costs_lib.growth(costs["bert"])
    assert law
    assert law_of_attention
    shared = [row for row in top1 if row in ppl]
    low_perplexities = [-ppl[row] for row in shared]
    high_accuracies = [top1[row] for row in shared]
    rank_correlation = claims.spearman(low_perplexities, high_accuracies)
    search = longer.rows()["feed_forward"].rates
    best = trees["sgu"] / 100
    variance_of_difference = 2 * best * (1 - best) / 1000
    return {
        "ppl": ppl,
        "top1": top1,
        "trees": trees,
        "short": milliseconds(costs, 128),
        "middle": milliseconds(costs, 1024),
        "long": long,
        "no_context": no_context,
        "growth": law.exponent,
        "attention": law_of_attention.exponent,
        "times": long["bert_rel"] / long["lightweight"],
        "ten": longer.medians(),
        "end": longer.ends(),
        "tried": {f"{rate:g}": perplexity for rate, perplexity in search.items()},
        "wide": ends("table3-gpu", steps="1800"),
        "stuck": sum(value > 0.93 * no_context for value in ppl.values()),
        "rows": len(ppl),
        "convolution": max(top1["dynamic"], top1["lightweight"], top1["growing"]),
        "chance": floors("cifar10")["the most frequent class"],
        "shared": len(shared),
        "agree": float(rank_correlation),
        "trained": images(),
        "error": 100 * variance_of_difference**0.5,
        "lengths": other_lengths(),
    }


def mean_scores() -> dict[str, dict[str, float]]:
    """Column of the alternatives -> row -> mean score."""
    means: dict[str, dict[str, float]] = {}
    for column, scores in generate.scores().items():
        means[column] = {row: score.centre for row, score in scores.items()}
    return means


def milliseconds(costs: Mapping[str, Mapping[int, Cost]], tokens: int) -> dict[str, float]:
    """Row -> milliseconds of 1,000 tokens at a length, of the rows whose step was measured there."""
    times = {}
    for row, by_length in costs.items():
        if tokens not in by_length:
            continue
        time = by_length[tokens].per_thousand
        if time:
            times[row] = time.centre
    return times


def floors(column: str) -> dict[str, float]:
    """Trivial model -> its score."""
    scores = {}
    for line in generate.read("alternatives-heldout", column=column):
        model = line["trivial_model"]
        scores[model] = float(line["score"])
    return scores


class Point(NamedTuple):
    """An evaluation of a run: after how many tokens or steps, and its score."""

    after: int
    score: float


def keep_last(last: dict[str, Point], seed: str, point: Point) -> None:
    """Sets a seed's point to the later one."""
    last[seed] = max(point, last.get(seed, point))


def mean_of_last(last: Mapping[str, Point]) -> float:
    """The mean over seeds of the scores."""
    return statistics.mean(point.score for point in last.values())


def ends(name: str, tokens: str = "tokens", **only: str) -> dict[str, float]:
    """Row -> the mean over seeds of its last perplexity, of the lines whose columns are `only`
    these."""
    last: dict[str, dict[str, Point]] = defaultdict(dict)
    for line in generate.read(name, **only):
        after = int(line[tokens])
        point = Point(after, float(line["perplexity"]))
        seeds = last[line["row"]]
        keep_last(seeds, line["seed"], point)
    return {row: mean_of_last(seeds) for row, seeds in last.items()}


def images() -> dict[str, float]:
    """Model -> the mean over seeds of its last top-1 on CIFAR-10, at the rate that has two
    seeds."""
    last: dict[tuple[str, str], dict[str, Point]] = defaultdict(dict)
    for line in generate.read("cifar10"):
        step = int(line["step"])
        point = Point(step, float(line["top1"]))
        seeds = last[line["model"], line["rate"]]
        keep_last(seeds, line["seed"], point)
    means = {}
    for (model, _), seeds in last.items():
        if len(seeds) > 1:
            means[model] = mean_of_last(seeds) + 1e-6  # so that halves are rounded up
    return means


def other_lengths() -> dict[str, float]:
    """Row -> perplexity at 256 tokens over that at 128, without more training; of those that can
    read it."""
    perplexities: dict[str, dict[str, float]] = defaultdict(dict)
    for line in generate.read("alternatives-lengths"):
        if line["perplexity"]:
            by_length = perplexities[line["row"]]
            by_length[line["tokens"]] = float(line["perplexity"])
    ratios = {}
    for row, by_length in perplexities.items():
        if "256" in by_length:
            ratios[row] = by_length["256"] / by_length["128"]
    return ratios


def section() -> str:
    """The sentences as a numbered list."""
    lines = []
    for number, sentence in enumerate(sentences(), start=1):
        lines.append(f"{number}. {sentence}\n")
    return "".join(lines)
