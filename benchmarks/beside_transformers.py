"""The benchmark's part `training`: our Transformers and those of the package transformers, trained
in the same way (extra `parity`).

Both read the same batches with the same masks, at the same learning rates, and are scored on the
same masked tokens of the same held-out sequences.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.benchmarks import torch_models
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.benchmarks.timing import Row, row
from gmlp_flax.benchmarks.torch_models import TorchModel
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.masked_lm import Masked, MaskedLanguageModeling
from gmlp_flax.training import optimizer, step
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition

EVALUATIONS = 6  # over a run
FIRST = 10  # steps whose training losses are compared
BIAS = "encoder/blocks/attention/relative/bias"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A model that is trained.

    Attributes:
        row: of the config c4_ablation.
        about: what it is and, for a model in torch, how it differs from ours.
        make: makes it in torch, from the config and our initial parameters; None for ours.
        ours: the candidate of ours that it is compared with.
        is_copy: whether it starts from our initial values and is the same function.
    """

    row: str
    about: str
    make: Callable[[ConfigDict, Any], TorchModel] | None = None
    ours: str = ""
    is_copy: bool = False


_FULL = "ours, with BERT's norm on the embedding and its transform layer"
_COPY = "ours in every layer, with our initial values; torch's arithmetic, gradients and AdamW"
_POST_NORM = (
    "norms after the residuals, none before the head but the transform layer's; matrices start as "
    "N(0, 0.02)"
)
CANDIDATES = {
    "bert_full": Candidate("bert", _FULL),
    "hf_prenorm": Candidate(
        "bert",
        f"RobertaPreLayerNormForMaskedLM: {_COPY}",
        torch_models.prenorm,
        "bert_full",
        is_copy=True,
    ),
    "hf_bert": Candidate("bert", f"BertForMaskedLM: {_POST_NORM}", torch_models.bert, "bert_full"),
    "bert_rel_full": Candidate("bert_rel", _FULL),
    "hf_prenorm_rel": Candidate(
        "bert_rel",
        f"RobertaPreLayerNormForMaskedLM and our relative bias: {_COPY}",
        torch_models.prenorm,
        "bert_rel_full",
        is_copy=True,
    ),
    "hf_mpnet": Candidate(
        "bert_rel",
        f"MPNetForMaskedLM: {_POST_NORM}; T5's bias in 32 buckets, shared by all layers, in place "
        "of one per offset and layer",
        torch_models.mpnet,
        "bert_rel_full",
    ),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """The course of a training.

    Attributes:
        losses: the loss of each step, before its update.
        perplexities: held out, by the number of steps.
    """

    losses: list[float] = dataclasses.field(default_factory=list)
    perplexities: dict[int, float] = dataclasses.field(default_factory=dict)


def bench_training(steps: int, rate: float, models: Sequence[str], data: str) -> list[Row]:
    """Held-out perplexities of each model over its training.

    Args:
        steps: of each run.
        rate: the peak learning rate.
        models: names in CANDIDATES; empty for all.
        data: what config.data.train takes.

    Raises:
        ConfigError: there is no such model.
        RunError: transformers or torch is not installed.
    """
    names = tuple(models) or tuple(CANDIDATES)
    for name in names:
        if name not in CANDIDATES:
            raise ConfigError(f"--models: there is no {name!r}; {did_you_mean(name, CANDIDATES)}")
    import_beside_torch("transformers")
    curves = {}
    for name in names:
        _say(name, CANDIDATES[name].about)
        curves[name] = train(name, settings(name, steps, rate, data))
    return rows_of(curves)


def settings(name: str, steps: int, rate: float, data: str) -> ConfigDict:
    """The config of a run, of c4_ablation's small scale; fewer held-out sequences are scored after
    few steps."""
    config = config_lib.open_config(f"c4_ablation:{CANDIDATES[name].row},scale=small")
    config.data.train = data
    config.steps = steps
    config.optimizer.learning_rate = rate
    config.optimizer.warmup = min(config.optimizer.warmup, steps // 9)
    config.log.every = 1
    config.eval.every = max(1, steps // EVALUATIONS)
    config.eval.examples = min(config.eval.examples, 16 * steps)
    config.model.embedding_norm = True
    config.model.transform = True
    config_lib.validate(config)
    return config


def train(name: str, config: ConfigDict) -> Curve:
    """Trains a candidate from the start; prints each evaluation."""
    make = CANDIDATES[name].make
    with tempfile.TemporaryDirectory() as folder:
        data: Any = MaskedLanguageModeling.Data(config, RunFiles(folder))
        task = MaskedLanguageModeling(config, data.assets())
        trainer: Trainer
        if make is None:
            trainer = OurTrainer(task, data)
        else:
            model = make(config, initial_params(task))
            trainer = TorchTrainer(task, data, model)
        _say(name, f"{trainer.parameters:,} parameters")
        curve = Curve()
        start = time.perf_counter()
        with data.train_batches(0, 0, 1) as batches:
            for number, batch in zip(range(config.steps), batches, strict=False):
                loss = trainer.advance(number, batch)
                curve.losses.append(loss)
                done = number + 1
                if done % config.eval.every and done < config.steps:
                    continue
                perplexity = trainer.score()
                curve.perplexities[done] = perplexity
                minutes = (time.perf_counter() - start) / 60
                _say(name, f"step {done}  perplexity {perplexity:.4g}  {minutes:.1f} minutes")
    return curve


def initial_params(task: MaskedLanguageModeling) -> Any:
    """The parameters with which `gmlp train` would start."""
    return jax.jit(task.init)(jax.random.key(task.config.seed))


class Trainer(abc.ABC):
    """A model that is trained step by step; `parameters` is their number."""

    parameters: int

    @abc.abstractmethod
    def advance(self, number: int, batch: dict[str, np.ndarray]) -> float:
        """Takes step `number`, from 0; returns the loss before it."""

    @abc.abstractmethod
    def score(self) -> float:
        """The held-out perplexity."""


class OurTrainer(Trainer):
    """The training step and the evaluation as `gmlp train` runs them."""

    def __init__(self, task: MaskedLanguageModeling, data: Any):
        first_device, *_ = jax.devices()
        partition = Partition.make(devices=[first_device])
        self.training = step.Training(task, partition)
        self.state = self.training.init(jax.random.key(task.config.seed))
        self.evaluator = Evaluator(task, data, self.training.partition)
        self.parameters = sum(leaf.size for leaf in jax.tree.leaves(self.state.params))

    def advance(self, number: int, batch: dict[str, np.ndarray]) -> float:
        """See Trainer."""
        on_device = self.training.partition.put_batch(batch)
        self.state, window = self.training.step(self.state, on_device)
        total, weight = jax.device_get(window["loss"])
        return float(total / weight)

    def score(self) -> float:
        """See Trainer."""
        metrics, _ = self.evaluator(self.state.params)
        return metrics["perplexity"]


class TorchTrainer(Trainer):
    """The same in torch, with its own gradients, clipping and AdamW."""

    def __init__(self, task: MaskedLanguageModeling, data: Any, model: TorchModel):
        import torch

        self.task = task
        self.data = data
        self.model = model
        options = task.config.optimizer
        self.clip = options.clip
        self.adamw = torch.optim.AdamW(
            model.groups(options.weight_decay, bias_factor(task)),
            lr=options.learning_rate,
            betas=(options.b1, options.b2),
            eps=options.eps,
        )
        self.trained = []
        for group in self.adamw.param_groups:
            self.trained += group["params"]
        self.parameters = sum(parameter.numel() for parameter in self.trained)
        self.rate = optimizer.learning_rate(task.config)
        self._mask = jax.jit(self._training_mask)
        self._fixed_mask = jax.jit(self._heldout_mask)

    def _training_mask(self, tokens: Any, number: Any) -> Masked:
        """The masked sequences that our step of a number makes of the tokens of its batch."""
        keys, _ = step.draw_keys(self.task.config, number)
        return self.task.mask(keys, tokens)

    def _heldout_mask(self, batch: Any) -> Masked:
        """The masked sequences of our evaluation."""
        return self.task.fixed_mask(batch, self.task.config.eval.seed)

    def losses(self, masked: Masked) -> Any:
        """The loss of each prediction, float32 [batch, predictions]."""
        import torch

        logits = self.model.logits(_long(masked.inputs), _long(masked.positions))
        classes_second = logits.transpose(1, 2)
        targets = _long(masked.targets)
        return torch.nn.functional.cross_entropy(classes_second, targets, reduction="none")

    def advance(self, number: int, batch: dict[str, np.ndarray]) -> float:
        """See Trainer."""
        import torch

        masked = self._mask(batch["tokens"], number)
        weights = torch.tensor(np.asarray(masked.weights))
        rate = np.asarray(self.rate(number)).item()
        for group in self.adamw.param_groups:
            group["lr"] = rate * group["factor"]
        self.adamw.zero_grad()
        weighted = self.losses(masked) * weights
        loss = weighted.sum() / weights.sum()
        loss.backward()
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.trained, self.clip)
        self.adamw.step()
        return loss.item()

    def score(self) -> float:
        """See Trainer."""
        import torch

        total = 0.0
        weight = 0.0
        with torch.no_grad(), self.data.evaluation_batches(0, 1) as batches:
            for batch in batches:
                masked = self._fixed_mask(batch)
                weights = np.asarray(masked.weights, np.float64) * batch["weight"][:, None]
                losses = self.losses(masked).numpy()
                total += float(np.sum(losses * weights))
                weight += float(weights.sum())
        return math.exp(total / weight)


def bias_factor(task: MaskedLanguageModeling) -> float:
    """The factor on the learning rate of relative biases, the only one that the models in torch
    have; raises RunError if the config has other factors."""
    lines = task.config.optimizer.lr_multipliers
    if not lines:
        return 1.0
    factors = optimizer.factors(task.shapes(), lines, task.param_metadata())
    factor = np.asarray(factors.pop(BIAS, 1.0))
    others = [np.asarray(other) for other in factors.values()]
    if factor.ndim or any(np.any(other != 1) for other in others):
        raise RunError(
            f"config.optimizer.lr_multipliers={lines}: the models in torch have a factor on {BIAS} "
            "alone"
        )
    return factor.item()


def _long(array: jax.Array) -> Any:
    import torch

    return torch.tensor(np.asarray(array), dtype=torch.int64)


def rows_of(curves: dict[str, Curve]) -> list[Row]:
    """The rows of the table: each perplexity, and each model in torch next to ours."""
    rows = []
    for name, curve in curves.items():
        for steps, perplexity in curve.perplexities.items():
            title = f"{name}: perplexity after {steps:,} steps"
            rows.append(row(title, [perplexity], ""))
    for name, curve in curves.items():
        candidate = CANDIDATES[name]
        if candidate.ours not in curves:
            continue
        ours = curves[candidate.ours]
        last = max(curve.perplexities)
        ratio = curve.perplexities[last] / ours.perplexities[last]
        title = f"{name} / {candidate.ours}: perplexity at the end"
        rows.append(row(title, [ratio], "x"))
        if candidate.is_copy:
            first_losses = curve.losses[:FIRST]
            distance = _distance(first_losses, ours.losses[:FIRST])
            title = f"{name} and {candidate.ours}: first {FIRST} losses, largest difference"
            rows.append(row(title, [distance], "", "<= 1e-4"))
    return rows


def _distance(losses: Sequence[float], ours: Sequence[float]) -> float:
    """The largest relative difference of two runs' losses."""
    relative = np.array(losses) / np.array(ours) - 1
    return float(np.max(np.abs(relative)))


def _say(name: str, line: str) -> None:
    print(f"{name}: {line}", file=sys.stderr, flush=True)
