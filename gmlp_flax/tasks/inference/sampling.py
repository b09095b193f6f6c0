"""How a text is generated. Importing this file does not import JAX, so that the help of the commands
that generate answers at once."""

import dataclasses

from gmlp_flax.errors import RunError
from gmlp_flax.options import AT_LEAST_0, AT_LEAST_1, PROBABILITY, option, options_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a text is generated.

    Raises:
        RunError: a value is out of range.
    """

    tokens: int = option(
        100, "the most tokens to add; the model may end the text earlier", AT_LEAST_1
    )
    temperature: float = option(
        1.0, "what logits are divided by; 0: always the most likely token", AT_LEAST_0
    )
    top_k: int = option(
        0, "sample from this many of the most likely tokens; 0: from all", AT_LEAST_0
    )
    top_p: float = option(
        1.0, "sample from the fewest tokens whose total probability reaches this", PROBABILITY
    )
    seed: int = option(
        0, "seed of the sampling; each text is continued as if it were the only one", AT_LEAST_0
    )

    def __post_init__(self):
        for name, declared in options_of(type(self)).items():
            value = getattr(self, name)
            problem = declared.problem(value)
            if problem:
                raise RunError(f"{name} is {value!r}: {problem}")
