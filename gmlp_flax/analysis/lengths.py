"""What a masked language model scores on sequences of other lengths than it was trained on, without more training."""

import math
from collections.abc import Sequence
from typing import Any

import jax

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.errors import RunError
from gmlp_flax.training import evaluation, loading, record, warm_start


def score(workdir: str, lengths: Sequence[int]) -> dict[str, Any]:
    """Scores the newest checkpoint of a run at its own length and at others.

    Parameters that belong to tokens or offsets are fitted as finetuning at another length fits them: cut, or extended
    where the kind of parameter says how. The whole held-out text is scored at every length, cut into other sequences;
    every model sees the same sequences and masks.

    Args:
        workdir: of a run of masked_lm.
        lengths: numbers of tokens.

    Returns:
        "length", the run's own; "takes", by length as text, whether the model as it is takes so many tokens;
        "perplexity" by length as text, None if its parameters cannot be fitted, which "why" then explains.

    Raises:
        RunError: the run cannot be loaded, or its held-out data are no longer those that it was trained beside.
    """
    trained = loading.load(workdir)
    record.check_heldout(workdir, trained.task, ())
    own, spec = trained.config.model.length, trained.task.spec()
    scores: dict[str, Any] = {"length": own, "takes": {}, "perplexity": {}, "why": {}}
    for tokens in dict.fromkeys((own, *lengths)):
        scores["takes"][str(tokens)] = bool(spec.supports_length(tokens))
        try:
            value = _perplexity(trained, workdir, tokens)
        except RunError as error:
            value, scores["why"][str(tokens)] = None, str(error)
        scores["perplexity"][str(tokens)] = value
    return scores


def _perplexity(trained: loading.Trained, workdir: str, tokens: int) -> float:
    """Held-out perplexity at a number of tokens; raises RunError if the parameters cannot be fitted to it."""
    old = trained.config
    config = old.copy_and_resolve_references()
    share = old.model.length / tokens
    config.model.length = tokens
    config.masking.max_predictions = math.ceil(old.masking.max_predictions / share)
    config.eval.batch_size = max(1, round(old.eval.batch_size * share)) if old.eval.batch_size else 0
    config.eval.examples = 0  # all: some, evenly spread, would be another text at another length
    config_lib.validate(config)
    task = tasks.create(config, workdir)
    params = trained.weights
    if tokens != old.model.length:
        params = warm_start.adapt(params, task, old, workdir)
        params = jax.device_put(params, trained.partition.for_model(task.param_metadata()).shardings(params))
    metrics, _ = evaluation.Evaluator(task, trained.partition)(params)
    return metrics["perplexity"]
