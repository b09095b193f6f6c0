"""Draws what tiny attention looks at in a sentence or a pair of them (the paper's Figure 10).

    python -m gmlp_flax.analysis.attention --workdir=RUN --text="A man plays." --second="Nobody plays." [--layers=all]

RUN/figures/attention.png shows how much each token (a row) looks at each token (a column): the largest weight that
the two have in any layer of the first half of the network, as in the paper, or of all layers. attention_layers.png has
these layers one by one. Of a Transformer's heads, the largest weight counts. A finetuned model reads its sequences
filled up with [PAD]; the pictures leave that out, so rows may add up to less than 1.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from gmlp_flax import cli
from gmlp_flax.analysis.drawing import save, subplots
from gmlp_flax.data import pairs
from gmlp_flax.models.attention import hide_padding
from gmlp_flax.models.blocks.gmlp import GMLPBlock
from gmlp_flax.tasks.finetuning import Finetuning
from gmlp_flax.training import folder
from gmlp_flax.training.errors import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_A_TOKEN, LABELS, LARGEST = 0.17, 1.5, 24.0  # of a picture's side: of each token, of the labels, of all at most
FIRST_HALF, ALL = "first_half", "all"  # layers
COLUMNS = 6  # of the picture of all layers


class Sentences(NamedTuple):
    """A sentence or pair as a model reads it.

    Attributes:
        tokens, segments: int32 [n].
        labels: what the tokens that are no padding say.
    """

    tokens: np.ndarray
    segments: np.ndarray
    labels: list[str]


def require_attention(trained: folder.Trained) -> None:
    """Raises RunError where a run's model has no attention between words."""
    task, model = trained.config.task, trained.config.model
    if task == "image_classification" or model.block not in ("gmlp", "transformer"):
        raise RunError(f"the run trained a {model.block} on {task}: give a text model with attention")
    if model.block == "gmlp" and not model.d_attn:
        raise RunError("the run's config.model.d_attn is 0: it has no tiny attention; give an aMLP or a Transformer")


def encode(trained: folder.Trained, first: str, second: str | None = None) -> Sentences:
    """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, filled up with [PAD] where the run's model needs it.

    Raises:
        RunError: a sentence has no tokens, or the model has no room for all of them.
    """
    tokenizer, model = trained.task.tokenizer, trained.config.model
    ids = [np.array(tokenizer.encode(text), np.int32) for text in (first, second) if text is not None]
    for flag, tokens in zip(("text", "second"), ids, strict=False):
        if not tokens.size:
            raise RunError(f"--{flag} has no words: give a sentence")
    count = sum(map(len, ids)) + 1 + len(ids)
    if count > model.length:
        raise RunError(f"the text has {count} tokens with [CLS] and [SEP], the model reads at most {model.length}")
    filled = isinstance(trained.task, Finetuning) or model.spatial == "dense"
    tokens, segments = pairs.assemble(
        ids[0], ids[1] if second is not None else None, model.length if filled else count, tokenizer
    )
    return Sentences(tokens, segments, [label(tokenizer.piece(token)) for token in tokens[:count]])


def label(piece: str) -> str:
    """A piece for reading: a word without the space before it, and what goes on with one after ##, as BERT has it."""
    if piece.startswith(" "):
        return piece[1:] or "␣"
    return f"##{piece}" if piece[0].isalnum() else piece


def maps(trained: folder.Trained, sentences: Sentences) -> np.ndarray:
    """The attention weights of all layers, float32 [layers, n, n]; each row is a softmax over all n tokens.

    Of several heads, the elementwise maximum.
    """
    definition = nnx.graphdef(nnx.eval_shape(lambda: trained.task.module(nnx.Rngs(0))))
    tokens, segments = sentences.tokens[None], sentences.segments[None]
    seen = tokens != trained.task.tokenizer.pad_id if trained.config.model.mask_padding else None

    def every_layer(params: Any) -> jax.Array:
        text_model = nnx.merge(definition, params)
        encoder = text_model.encoder
        # The model embeds the tokens; where its encoder would run them, the maps are taken.
        text_model.encoder = lambda x, key, seen: _maps(encoder.blocks, x, seen)
        return text_model.hidden(tokens, None, segments, seen)

    return np.asarray(jax.jit(every_layer)(trained.weights))[:, 0]


def _maps(blocks: nnx.Module, x: jax.Array, seen: jax.Array | None) -> jax.Array:
    """Runs stacked blocks on [batch, n, d_model]; their weights [layers, batch, n, n]."""
    definition, stacked = nnx.split(blocks)

    def layer(x: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        block = nnx.merge(definition, params)
        normed = block.norm(x) if isinstance(block, GMLPBlock) else block.attention_norm(x)
        scores, _ = block.attention.scores_and_values(normed)
        scores = scores[:, None] if isinstance(block, GMLPBlock) else scores  # one head
        weights = jax.nn.softmax(hide_padding(scores, seen, heads=True), axis=-1)
        shown = jnp.broadcast_to(weights.max(-3), (len(x), *weights.shape[-2:]))
        return block(x, operator.add, seen), shown

    return jax.lax.scan(layer, x, stacked)[1]


def draw(
    trained: folder.Trained, workdir: str, first: str, second: str | None = None, layers: str = FIRST_HALF
) -> list[str]:
    """Draws the maps of a sentence or pair.

    Args:
        trained: a run.
        workdir: its folder.
        first, second: the sentences.
        layers: FIRST_HALF of the network (of one layer: that), or ALL of it.

    Returns:
        The paths of the pictures, RUN/figures/attention.png and RUN/figures/attention_layers.png.

    Raises:
        RunError: as in `require_attention` and `encode`.
    """
    require_attention(trained)
    sentences = encode(trained, first, second)
    count, found = len(sentences.labels), maps(trained, sentences)
    shown = found[: len(found) if layers == ALL else max(1, len(found) // 2), :count, :count]
    figures = {"attention.png": draw_largest(shown, sentences), "attention_layers.png": draw_layers(shown)}
    return [save(figure, workdir, name) for name, figure in figures.items()]


def draw_largest(shown: np.ndarray, sentences: Sentences) -> Figure:
    """The elementwise maximum of maps [layers, tokens, tokens], with the tokens beside it."""
    layers, count, _ = shown.shape
    side = min(LARGEST, LABELS + INCHES_A_TOKEN * count)
    figure, (axis,) = subplots(1, 1, side + LABELS, side)
    size = min(8.0, 60 * (side - LABELS) / count)  # points
    image = axis.imshow(shown.max(0), cmap="Blues", vmin=0)
    axis.xaxis.tick_top()
    axis.set_xticks(range(count), sentences.labels, rotation=90, fontsize=size, parse_math=False)
    axis.set_yticks(range(count), sentences.labels, fontsize=size, parse_math=False)
    for boundary in np.flatnonzero(np.diff(sentences.segments[:count])) + 0.5:
        axis.axhline(boundary, color="grey", linewidth=0.7)
        axis.axvline(boundary, color="grey", linewidth=0.7)
    where = "layer 1" if layers == 1 else f"layers 1 to {layers}"
    figure.colorbar(image, shrink=0.6, label=f"largest weight in {where}")
    return figure


def draw_layers(shown: np.ndarray) -> Figure:
    """Maps [layers, tokens, tokens] one by one, each in the colours of its own largest weight."""
    columns = min(COLUMNS, len(shown))
    figure, axes = subplots(math.ceil(len(shown) / columns), columns, 2.2, 2.4)
    for layer, axis in enumerate(axes):
        axis.set_axis_off()
        if layer < len(shown):
            axis.imshow(shown[layer], cmap="Blues", vmin=0)
            axis.set_title(f"layer {layer + 1}, to {shown[layer].max():.2g}", fontsize=8)
    return figure


def main(_argv: list[str]) -> None:
    """Draws the maps of a checkpoint and prints where."""
    usage = "analysis.attention --workdir=DIR --text=SENTENCE [--second=SENTENCE] [--layers=all]"
    workdir, first = cli.required("workdir", usage), cli.required("text", usage)
    trained = folder.load(workdir, flags.FLAGS.checkpoint)
    print(*draw(trained, workdir, first, flags.FLAGS.second, flags.FLAGS.layers), sep="\n")


if __name__ == "__main__":
    cli.define_run_flags(checkpoint="latest")
    flags.DEFINE_string("text", None, "A sentence.")
    flags.DEFINE_string("second", None, "Another, for a pair.")
    flags.DEFINE_enum("layers", FIRST_HALF, [FIRST_HALF, ALL], "The layers that are drawn.")
    cli.run(main)
