"""The benchmark's part `transformers`: our Transformers and those of the package transformers, trained alike.

Both sides read the same batches with the same masks, at the same learning rates, and are scored on the same masked
tokens of the same held-out sequences.
"""

import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.benchmarks import torch_models
from gmlp_flax.benchmarks.timing import Row, row
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop.timm import import_beside_torch
from gmlp_flax.models import parameters
from gmlp_flax.tasks.masked_lm import Masked, MaskedLanguageModeling
from gmlp_flax.training import optimizer, step
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition

EVALUATIONS = 6
FIRST = 10  # steps whose training losses are compared
BIAS = "encoder/blocks/attention/relative/bias"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model that is trained.

    Attributes:
        row: of c4_ablation.
        about: what it is and, for a model in torch, how it differs from ours.
        bert: whether it has BERT's norm on the embedding and its transform layer before the logits.
        make: makes it in torch, from the config and our initial parameters; None for ours.
        ours: the candidate of ours that it is held against.
        copied: whether it starts from our initial values and is the same function.
    """

    row: str
    about: str
    bert: bool = False
    make: Callable[[ConfigDict, Any], torch_models.TorchModel] | None = None
    ours: str = ""
    copied: bool = False


_ALIKE = "ours in every layer, with our initial values; torch's arithmetic, gradients and AdamW"
_POST_NORM = "norms after the residuals, none before the head but the transform layer's; matrices start as N(0, 0.02)"
CANDIDATES = {
    "bert": Candidate("bert", "ours, as in c4_ablation"),
    "bert_rel": Candidate("bert_rel", "ours, as in c4_ablation"),
    "bert_full": Candidate("bert", "ours, with BERT's norm on the embedding and its transform layer", True),
    "bert_rel_full": Candidate("bert_rel", "ours, with BERT's norm on the embedding and its transform layer", True),
    "hf_bert": Candidate("bert", f"BertForMaskedLM: {_POST_NORM}", True, torch_models.bert, "bert_full"),
    "hf_prenorm": Candidate(
        "bert", f"RobertaPreLayerNormForMaskedLM: {_ALIKE}", True, torch_models.prenorm, "bert_full", True
    ),
    "hf_mpnet": Candidate(
        "bert_rel",
        f"MPNetForMaskedLM: {_POST_NORM}; T5's bias in 32 buckets, shared by all layers, in place of one "
        "per offset and layer",
        True,
        torch_models.mpnet,
        "bert_rel_full",
    ),
    "hf_prenorm_rel": Candidate(
        "bert_rel",
        f"RobertaPreLayerNormForMaskedLM and our relative bias: {_ALIKE}",
        True,
        torch_models.prenorm,
        "bert_rel_full",
        True,
    ),
}
DEFAULT = tuple(name for name in CANDIDATES if name not in ("bert", "bert_rel"))


@dataclasses.dataclass
class Curve:
    """What training gave: the loss of each step, before it, and the held-out perplexity after some steps."""

    losses: list[float] = dataclasses.field(default_factory=list)
    perplexities: dict[int, float] = dataclasses.field(default_factory=dict)


def bench_transformers(
    steps: int, seeds: Sequence[int], rate: Sequence[float], models: Sequence[str], data: str, bias_rate: float | None
) -> list[Row]:
    """Held-out perplexities of each model over its training, with the range over seeds.

    Args:
        steps: of each run.
        seeds: each fixes batches, masks and initial values; a run per seed.
        rate: peak learning rates; a run per rate.
        models: names in CANDIDATES; empty for DEFAULT.
        data: what config.data.train takes.
        bias_rate: factor on the learning rate of relative biases, of both sides; None for c4_ablation's.

    Raises:
        ConfigError: there is no such model.
        RunError: transformers or torch is not installed.
    """
    names = tuple(models) or DEFAULT
    if unknown := [name for name in names if name not in CANDIDATES]:
        raise ConfigError(f"--models: there is no model {unknown[0]!r}: expected some of {', '.join(CANDIDATES)}")
    import_beside_torch("transformers")
    for name in names:
        print(f"{name}: {CANDIDATES[name].about}", file=sys.stderr)
    rows: list[Row] = []
    for peak in rate:
        curves: dict[str, list[Curve]] = {name: [] for name in names}
        for seed, name in itertools.product(seeds, names):
            options = settings(name, steps, seed, peak, data, bias_rate)
            curves[name].append(trained(name, options, functools.partial(_say, f"{name}, rate {peak:g}, seed {seed}")))
        rows += rows_of(curves, peak)
    return rows


def settings(name: str, steps: int, seed: int, rate: float, data: str, bias_rate: float | None = None) -> ConfigDict:
    """The config of a run, of c4_ablation's small scale; fewer held-out sequences are scored after few steps."""
    candidate = CANDIDATES[name]
    options = config_lib.open_config(f"c4_ablation:{candidate.row},scale=small")
    options.data.train, options.seed, options.steps = data, seed, steps
    options.optimizer.update(learning_rate=rate, warmup=min(options.optimizer.warmup, steps // 9))
    options.log.every, options.eval.every = 1, max(1, steps // EVALUATIONS)
    options.eval.examples = min(options.eval.examples, 16 * steps)
    if candidate.bert:
        options.model.update(embedding_norm=True, transform=True)
    if bias_rate is not None:
        options.optimizer.lr_multipliers = (f"{BIAS}={bias_rate:g}",) if candidate.row == "bert_rel" else ()
    config_lib.validate(options)
    return options


def trained(name: str, options: ConfigDict, say: Callable[[str], None]) -> Curve:
    """Trains one candidate from the start; tells `say` each evaluation."""
    task = tasks.create(options, "")
    if not isinstance(task, MaskedLanguageModeling):
        raise AssertionError(f"{options.task} is no masked language modelling")
    advance, score = (torch_run if CANDIDATES[name].make else our_run)(name, task, say)
    curve, begin = Curve(), time.perf_counter()
    with task.train_batches(0, 0, 1) as batches:
        for place, batch in zip(range(options.steps), batches, strict=False):
            curve.losses.append(advance(place, batch))
            done = place + 1
            if done % options.eval.every == 0 or done == options.steps:
                curve.perplexities[done] = score()
                minutes = (time.perf_counter() - begin) / 60
                say(f"step {done}  perplexity {curve.perplexities[done]:.4g}  after {minutes:.1f} minutes")
    return curve


Run = tuple[Callable[[int, dict[str, np.ndarray]], float], Callable[[], float]]


def our_run(name: str, task: MaskedLanguageModeling, say: Callable[[str], None]) -> Run:
    """The training step, which returns the loss of a batch, and the evaluation, as `gmlp train` runs them."""
    training = step.Training(task, Partition.make(devices=jax.devices()[:1]))
    state, evaluator = [training.init(jax.random.key(task.config.seed))], Evaluator(task, training.partition)
    say(f"{parameters.count(task.shapes()):,} parameters")

    def advance(_place: int, batch: dict[str, np.ndarray]) -> float:
        state[0], window = training.step(state[0], training.partition.put_batch(batch))
        total, weight = jax.device_get(window["loss"])
        return float(total / weight)

    return advance, lambda: evaluator(state[0].params)[0]["perplexity"]


def initial_params(task: MaskedLanguageModeling) -> Any:
    """The parameters with which `gmlp train` would start."""
    return jax.jit(task.init)(jax.random.key(task.config.seed))


def torch_run(name: str, task: MaskedLanguageModeling, say: Callable[[str], None]) -> Run:
    """The same in torch, with its own gradients, clipping and AdamW."""
    import torch

    options, make = task.config, CANDIDATES[name].make
    assert make is not None
    made = make(options, initial_params(task))
    given = options.optimizer
    adamw = torch.optim.AdamW(
        made.groups(given.weight_decay, bias_factor(task)), given.learning_rate, (given.b1, given.b2), given.eps
    )
    trains = [parameter for group in adamw.param_groups for parameter in group["params"]]
    say(f"{sum(parameter.numel() for parameter in trains):,} parameters")
    rate, mask = optimizer.learning_rate(options), masks(task)
    fixed = jax.jit(lambda batch: task.fixed_mask(batch, options.eval.seed))

    def losses(masked: Masked) -> Any:
        """float32 [batch, predictions]."""
        inputs, positions, targets = (_long(x) for x in (masked.inputs, masked.positions, masked.targets))
        logits = made.logits(inputs, positions).transpose(1, 2)
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def advance(place: int, batch: dict[str, np.ndarray]) -> float:
        masked = mask(batch["tokens"], place)
        weights = torch.tensor(np.asarray(masked.weights))
        for group in adamw.param_groups:
            group["lr"] = float(rate(place)) * group["factor"]
        adamw.zero_grad()
        loss = (losses(masked) * weights).sum() / weights.sum()
        loss.backward()
        if given.clip:
            torch.nn.utils.clip_grad_norm_(trains, given.clip)
        adamw.step()
        return loss.item()

    def score() -> float:
        total = weight = 0.0
        with torch.no_grad(), task.evaluation_batches(0, 1) as batches:
            for batch in batches:
                masked = fixed(batch)
                weights = np.asarray(masked.weights, np.float64) * batch["weight"][:, None]
                total += float((losses(masked).numpy() * weights).sum())
                weight += float(weights.sum())
        return math.exp(total / weight)

    return advance, score


def masks(task: MaskedLanguageModeling) -> Callable[[Any, int], Masked]:
    """The masked sequences that our training step makes of a batch's tokens, from these and its number, from 0."""
    return jax.jit(lambda tokens, place: task.mask(step.draw_keys(task.config, place)[0], tokens))


def bias_factor(task: MaskedLanguageModeling) -> float:
    """The factor on the learning rate of relative biases, the only one that the models in torch are given.

    Raises:
        RunError: the config has other factors.
    """
    lines = task.config.optimizer.lr_multipliers
    found = optimizer.factors(task.shapes(), lines) if lines else {}
    factor = np.asarray(found.pop(BIAS, 1.0))
    if factor.ndim or any(np.any(np.asarray(other) != 1) for other in found.values()):
        raise RunError(
            f"config.optimizer.lr_multipliers={lines}: the models in torch know a factor on {BIAS} alone; "
            "give --bias_rate"
        )
    return factor.item()


def _long(x: jax.Array) -> Any:
    import torch

    return torch.tensor(np.asarray(x), dtype=torch.int64)


def rows_of(curves: dict[str, list[Curve]], rate: float) -> list[Row]:
    """The rows of one learning rate.

    Args:
        curves: of each model, in the order of the seeds.
        rate: for the names of the rows.
    """
    rows = []
    for name, of_seeds in curves.items():
        for done in of_seeds[0].perplexities:
            values = [curve.perplexities[done] for curve in of_seeds]
            rows.append(row(f"{name}, rate {rate:g}: perplexity after {done:,} steps", values, ""))
    for name, of_seeds in curves.items():
        candidate = CANDIDATES[name]
        if candidate.ours not in curves:
            continue
        pairs = list(zip(of_seeds, curves[candidate.ours], strict=True))
        last = max(of_seeds[0].perplexities)
        ratios = [theirs.perplexities[last] / ours.perplexities[last] for theirs, ours in pairs]
        rows.append(row(f"{name} / {candidate.ours}, rate {rate:g}: perplexity at the end", ratios, "x"))
        if candidate.copied:
            apart = [
                max(abs(a / b - 1) for a, b in zip(theirs.losses[:FIRST], ours.losses[:FIRST], strict=True))
                for theirs, ours in pairs
            ]
            title = f"{name} and {candidate.ours}, rate {rate:g}: first {FIRST} losses, apart"
            rows.append(row(title, apart, "", "<= 1e-4"))
    return rows


def _say(run: str, line: str) -> None:
    print(f"{run}: {line}", file=sys.stderr, flush=True)
