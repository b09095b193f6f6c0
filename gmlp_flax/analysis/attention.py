"""What tiny attention looks at in a sentence or a pair of sentences (the paper's Figure 10).

RUN/figures/attention.png shows how much each token (a row) looks at each token (a column): the largest weight that
the two have in any layer of the first half of the network, as in the paper, or of all layers. attention_layers.png
shows these layers one by one. Of a Transformer's heads, the largest weight counts. A finetuned model reads sequences
that are filled up with [PAD]; the figures leave the padding out, so rows may add up to less than 1.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gmlp_flax.analysis.drawing import save, subplots
from gmlp_flax.data.finetuning import pairs
from gmlp_flax.errors import RunError
from gmlp_flax.models.attention import hide_padding
from gmlp_flax.models.blocks import settings
from gmlp_flax.tasks.finetuning import Finetuning
from gmlp_flax.training import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_PER_TOKEN, LABELS, LARGEST = 0.17, 1.5, 24.0  # inches of a figure's side: one token, the labels, at most
FIRST_HALF, ALL = "first_half", "all"  # layers
COLUMNS = 6  # of the figure of all layers


class EncodedText(NamedTuple):
    """A sentence or pair as a model reads it.

    Attributes:
        tokens, segments: int32 [n].
        labels: the text of each token, without padding.
    """

    tokens: np.ndarray
    segments: np.ndarray
    labels: list[str]


def require_attention(trained: run_folder.Trained) -> None:
    """Raises RunError if a run's model has no attention between words."""
    task = trained.task
    if task.takes_files:
        raise RunError(f"the run trained {trained.config.task}: give a text model with attention")
    blocks = nnx.eval_shape(lambda params: task.blocks(params), task.shapes())
    x = jax.ShapeDtypeStruct((1, task.length, trained.config.model.d_model), task.spec().compute_dtype)
    definition, stacked = nnx.split(blocks)
    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)
    if jax.eval_shape(lambda params, x: nnx.merge(definition, params).attention_scores(x), first, x) is None:
        model = settings(task.spec())
        what = ", ".join(f"{name} {model[name]}" for name in ("block", "d_attn") if name in model)
        raise RunError(f"the run's model has no attention ({what}): give an aMLP or a Transformer")


def encode(trained: run_folder.Trained, first: str, second: str | None = None) -> EncodedText:
    """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, filled up with [PAD] if the run's model needs it.

    Raises:
        RunError: a sentence has no tokens, or the text has more tokens than the model reads.
    """
    task: Any = trained.task  # a task of text, which has a tokenizer
    tokenizer, model = task.tokenizer, trained.config.model
    ids = [np.array(tokenizer.encode(text), np.int32) for text in (first, second) if text is not None]
    for flag, tokens in zip(("text", "second"), ids, strict=False):
        if not tokens.size:
            raise RunError(f"--{flag} has no words: give a sentence")
    count = sum(map(len, ids)) + 1 + len(ids)
    if count > model.length:
        most = f"the model reads at most {model.length}: give a shorter text"
        raise RunError(f"the text has {count} tokens with [CLS] and [SEP], {most}")
    spec = trained.task.spec()
    filled = isinstance(trained.task, Finetuning) or not spec.block.takes(spec, count)
    tokens, segments = pairs.assemble(
        ids[0], ids[1] if second is not None else None, model.length if filled else count, tokenizer
    )
    return EncodedText(tokens, segments, [label(tokenizer.piece(token)) for token in tokens[:count]])


def label(piece: str) -> str:
    """A piece for reading, as BERT writes it: a word without its space, the continuation of a word after ##."""
    if piece.startswith(" "):
        return piece[1:] or "␣"
    return f"##{piece}" if piece[0].isalnum() else piece


def maps(trained: run_folder.Trained, sentences: EncodedText) -> np.ndarray:
    """The attention weights of all layers, float32 [layers, n, n]; each row is a softmax over all n tokens.

    Of several heads, the elementwise maximum.
    """
    task: Any = trained.task
    tokens, segments = sentences.tokens[None], sentences.segments[None]
    seen = task.seen(tokens)

    def every_layer(params: Any) -> jax.Array:
        text_model = task.merged(params)
        encoder = text_model.encoder
        # The model embeds the tokens; a function that returns the maps stands in for its encoder.
        text_model.encoder = lambda x, key, seen: _maps(encoder.blocks, x, seen)
        return text_model.hidden(tokens, None, segments, seen)

    return np.asarray(jax.jit(every_layer)(trained.weights))[:, 0]


def _maps(blocks: nnx.Module, x: jax.Array, seen: jax.Array | None) -> jax.Array:
    """Runs stacked blocks on [batch, n, d_model]; their weights [layers, batch, n, n]."""
    definition, stacked = nnx.split(blocks)

    def layer(x: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
        block: Any = nnx.merge(definition, params)
        weights = jax.nn.softmax(hide_padding(block.attention_scores(x), seen, heads=True), axis=-1)
        shown = jnp.broadcast_to(weights.max(-3), (len(x), *weights.shape[-2:]))
        return block(x, operator.add, seen), shown

    return jax.lax.scan(layer, x, stacked)[1]


def draw(
    trained: run_folder.Trained, workdir: str, first: str, second: str | None = None, layers: str = FIRST_HALF
) -> list[str]:
    """Draws the maps of a sentence or pair.

    Args:
        trained: a run.
        workdir: its folder.
        first, second: the sentences.
        layers: FIRST_HALF of the network, at least one layer, or ALL.

    Returns:
        The paths of the figures, RUN/figures/attention.png and RUN/figures/attention_layers.png.

    Raises:
        RunError: as in `require_attention` and `encode`.
    """
    require_attention(trained)
    sentences = encode(trained, first, second)
    count, found = len(sentences.labels), maps(trained, sentences)
    shown = (found if layers == ALL else first_half(found))[:, :count, :count]
    figures = {"attention.png": draw_largest(shown, sentences), "attention_layers.png": draw_layers(shown)}
    return [save(figure, workdir, name) for name, figure in figures.items()]


def first_half(found: np.ndarray) -> np.ndarray:
    """The maps of the first half of the layers, at least one: [layers, n, n]."""
    return found[: max(1, len(found) // 2)]


def draw_largest(shown: np.ndarray, sentences: EncodedText) -> Figure:
    """The elementwise maximum over layers of maps [layers, tokens, tokens], with the tokens beside it."""
    layers, count, _ = shown.shape
    side = min(LARGEST, LABELS + INCHES_PER_TOKEN * count)
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
    """Maps [layers, tokens, tokens] one by one; each has its own colour scale, up to its largest weight."""
    columns = min(COLUMNS, len(shown))
    figure, axes = subplots(math.ceil(len(shown) / columns), columns, 2.2, 2.4)
    for layer, axis in enumerate(axes):
        axis.set_axis_off()
        if layer < len(shown):
            axis.imshow(shown[layer], cmap="Blues", vmin=0)
            axis.set_title(f"layer {layer + 1}, to {shown[layer].max():.2g}", fontsize=8)
    return figure
