"""From logits to the next token: temperature, the likeliest tokens alone, and the draw. NumPy, without JAX."""

from __future__ import annotations

import dataclasses

import numpy as np

from gmlp_flax.errors import RunError
from gmlp_flax.options import AT_LEAST_0, AT_LEAST_1, PROBABILITY, option, options_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a text is continued.

    Raises:
        RunError: a value makes no sense.
    """

    tokens: int = option(100, "tokens to add, at most: a model may end the text before", AT_LEAST_1)
    temperature: float = option(1.0, "what logits are divided by; 0: always the likeliest token", AT_LEAST_0)
    top_k: int = option(0, "draw among so many of the likeliest tokens; 0: among all", AT_LEAST_0)
    top_p: float = option(1.0, "draw among the fewest tokens that have this probability together", PROBABILITY)
    seed: int = option(0, "of the draws; each text is continued as if it were the only one", AT_LEAST_0)

    def __post_init__(self):
        for name, declared in options_of(type(self)).items():
            if problem := declared.problem(getattr(self, name)):
                raise RunError(f"{name} is {getattr(self, name)!r}: {problem}")


def shares(logits: np.ndarray, how: Sampling) -> np.ndarray:
    """The probabilities that the next token is drawn with.

    Of the softmax of logits / temperature, the `top_k` likeliest tokens are kept, and of these, renormalised, the
    fewest likeliest ones whose sum reaches `top_p` (Holtzman et al., arXiv 1904.09751). Of equal logits the first count
    as the likelier ones.

    Args:
        logits: [vocabulary]; -inf for tokens that are never drawn.
        how: its temperature, top_k and top_p.

    Returns:
        float64 [vocabulary], with sum 1.
    """
    order = np.argsort(-logits, kind="stable")
    if how.top_k:
        order = order[: how.top_k]
    best = logits[order].astype(np.float64)
    # A temperature near 0 would divide by it to infinity.
    kept = np.exp((best - best[0]) / how.temperature) if how.temperature >= 1e-6 else (np.arange(len(best)) == 0) * 1.0
    kept /= kept.sum()
    before = np.cumsum(kept) - kept
    kept *= before < how.top_p
    found = np.zeros(logits.shape)
    found[order] = kept / kept.sum()
    return found


def draw(probabilities: np.ndarray, random: np.random.Generator) -> int:
    """A token, by one number of the generator."""
    sums = np.cumsum(probabilities)
    return int(np.searchsorted(sums, random.random() * sums[-1], "right"))
