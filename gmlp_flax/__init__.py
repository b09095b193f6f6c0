"""gMLP, aMLP and the token mixers they are compared with, in JAX and Flax ("Pay Attention to MLPs")."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gmlp_flax.training.loading import Trained

__version__ = "0.2.0"
__all__ = ["load"]


def load(run: str, checkpoint: str | int = "best") -> Trained:
    """A trained model, with its tokenizer or image transform, from a run folder.

        model = gmlp_flax.load("runs/text")
        model.predict(["The [MASK] statement is used to define a function."], top=3)

    Args:
        run: the run folder, the --workdir of `gmlp train`.
        checkpoint: "latest", "best", or a step.

    Raises:
        ConfigError, DataError, RunError: this is not a run folder, its files cannot be read, or the checkpoint does not
            exist or is damaged. The message is one line.
    """
    from gmlp_flax.processes import output, platforms

    platforms.choose()
    output.silence_orbax()
    from gmlp_flax.training import loading  # imports JAX: `import gmlp_flax` alone takes no time

    return loading.load(run, str(checkpoint))
