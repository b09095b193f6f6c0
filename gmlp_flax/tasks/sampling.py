"""From logits to the next token: temperature, top-k, top-p, and the draw. NumPy, without JAX."""

import dataclasses

import numpy as np

from gmlp_flax.errors import RunError
from gmlp_flax.options import AT_LEAST_0, AT_LEAST_1, PROBABILITY, option, options_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a text is generated.

    Raises:
        RunError: a value is out of range.
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


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities that the next token is drawn with.

    Of the softmax of logits / temperature, the `top_k` likeliest tokens are kept, and of these, renormalised, the
    fewest likeliest ones whose sum reaches `top_p` (Holtzman et al., arXiv 1904.09751). Of equal logits the first count
    as the likelier ones.

    Args:
        logits: [vocabulary]; -inf for tokens that are never drawn.
        sampling: its temperature, top_k and top_p.

    Returns:
        float64 [vocabulary], with sum 1.
    """
    order = np.argsort(-logits, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    best = logits[order].astype(np.float64)
    if sampling.temperature < 1e-6:  # the division would overflow
        kept = (np.arange(len(best)) == 0) * 1.0
    else:
        kept = np.exp((best - best[0]) / sampling.temperature)
    kept /= kept.sum()
    kept *= np.cumsum(kept) - kept < sampling.top_p
    result = np.zeros(logits.shape)
    result[order] = kept / kept.sum()
    return result


def draw(probabilities: np.ndarray, random: np.random.Generator) -> int:
    """A token, by one number of the generator."""
    sums = np.cumsum(probabilities)
    return int(np.searchsorted(sums, random.random() * sums[-1], "right"))
