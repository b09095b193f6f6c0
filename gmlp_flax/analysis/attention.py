"""Attention in a sentence or a pair of sentences (the paper's Figure 10): weights and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.looks import GREY
from gmlp_flax.data.finetuning import pairs
from gmlp_flax.errors import RunError
from gmlp_flax.models.attention.dot_product import hide_padding
from gmlp_flax.models.blocks import Block, settings
from gmlp_flax.tasks.finetuning import Finetuning
from gmlp_flax.tasks.text import TextTask
from gmlp_flax.training.model import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches of a map's side.
INCHES_PER_TOKEN = 0.12
SMALLEST = 2.4
LARGEST = 24.0


class EncodedText(NamedTuple):
    """A sentence or pair as a model reads it.

    Attributes:
        tokens, segments: int32 [n].
        labels: the text of each token, without padding.
    """

    tokens: np.ndarray
    segments: np.ndarray
    labels: list[str]


def encode(
    model: Model,
    first: str,
    second: str | None = None,
) -> EncodedText:
    """Encodes `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, filled up with [PAD] if the
    run's model needs it.

    Raises:
        RunError: the text has more tokens than the model reads, or the model reads the texts of a
            pair apart.
    """
    task: Any = model.task  # a task of text, which has a tokenizer
    tokenizer = task.tokenizer
    length = model.config.model.length
    texts = [first]
    if second is not None:
        if model.config.model.get("pairs") == "apart":
            raise RunError(
                "--second: the run reads the texts of a pair apart, without attention between "
                "them; leave it out"
            )
        texts.append(second)
    ids = []
    count = 1  # [CLS]
    for text in texts:
        text_ids = np.array(tokenizer.encode(text), np.int32)
        ids.append(text_ids)
        count += len(text_ids) + 1  # [SEP]
    if count > length:
        raise RunError(
            f"the text has {count} tokens with [CLS] and [SEP], the model reads at most {length}: "
            "give a shorter one"
        )
    is_free = task.spec().supports_length(count) and not isinstance(task, Finetuning)
    padded_to = count if is_free else length
    tokens, segments = pairs.assemble(ids, padded_to, tokenizer)
    labels = []
    for token in tokens[:count]:
        piece = tokenizer.piece(token)
        labels.append(label(piece))
    return EncodedText(tokens, segments, labels)


def label(piece: str) -> str:
    """A piece for reading, as BERT writes it: a word without its space, the continuation of a word
    after ##."""
    if piece.startswith(" "):
        return piece[1:] or "␣"
    if piece[0].isalnum():
        return f"##{piece}"
    return piece


class Attention(NamedTuple):
    """How much each token of a text attends to each other token, in the layers with attention.

    Attributes:
        text: the input of the model.
        weights: float32 [layers, n, n]; each row is a softmax over all n tokens, or the maximum
            over several heads.
        numbers: the numbers of these layers, from 1. Some blocks have attention only in the last
            layers.
        depth: the number of all layers.
    """

    text: EncodedText
    weights: np.ndarray
    numbers: list[int]
    depth: int


def maps(model: Model, text: EncodedText) -> Attention:
    """The attention between all tokens, padding included.

    Raises:
        RunError: the run's model has no attention.
    """
    task: Any = model.task
    tokens = text.tokens[None]
    segments = text.segments[None]
    padding_mask = task.padding_mask(tokens)

    @jax.jit
    def all_weights(params: Any) -> list[jax.Array | None]:
        """The weights of each stack, as `stack_weights` returns them."""
        module = task.bind(params)
        embedded = module.embed(tokens, segments)
        x = embedded.astype(module.spec.stream_dtype)
        return stack_weights(task.stacks(params), x, padding_mask)

    stacks = task.stacks(model.params)
    of_stacks = all_weights(model.params)
    weights = []
    numbers = []
    depth = 0
    for stack, stack_maps in zip(stacks, of_stacks, strict=True):
        first = depth + 1
        depth += _layer_count(stack)
        if stack_maps is not None:
            weights.append(stack_maps[:, 0])
            numbers += range(first, depth + 1)
    if not weights:
        message = _no_attention(task)
        raise RunError(message)
    return Attention(text, np.concatenate(weights), numbers, depth)


def _layer_count(stack: Block) -> int:
    """The layers of stacked blocks: the leading axis of any of their parameters."""
    state = nnx.state(stack)
    first, *_ = jax.tree.leaves(state)
    return len(first)


def _no_attention(task: Any) -> str:
    """The message on a model without attention."""
    model = settings(task.spec())
    kind = f"block {model['block']}"
    if "d_attn" in model:
        kind += f", d_attn {model['d_attn']}"
    return f"the run's model has no attention ({kind}): give an aMLP or a Transformer"


def stack_weights(
    stacks: list[Block],
    x: jax.Array,
    padding_mask: jax.Array | None,
) -> list[jax.Array | None]:
    """Runs stacked blocks on [batch, n, d_model]; returns the weights of each stack, [layers, batch,
    n, n], or None without attention."""
    of_stacks = []
    for stack in stacks:
        definition, stacked = nnx.split(stack)

        def run_layer(
            x: jax.Array,
            params: Any,
            definition: Any = definition,
        ) -> Any:
            block = nnx.merge(definition, params)
            y = block(x, padding_mask=padding_mask)
            return y, _block_weights(block, x, padding_mask)

        x, weights = jax.lax.scan(run_layer, x, stacked)
        of_stacks.append(weights)
    return of_stacks


def _block_weights(
    block: Block,
    x: jax.Array,
    padding_mask: jax.Array | None,
) -> jax.Array | None:
    """The attention of a block to its input [batch, n, d_model], the maximum over its heads: [batch,
    n, n]; None if it has none."""
    scores = block.attention_scores(x)
    if scores is None:
        return None
    hidden = hide_padding(scores, padding_mask, heads=True)
    weights = jax.nn.softmax(hidden, axis=-1)
    largest = weights.max(-3)  # of the heads
    return jnp.broadcast_to(largest, (len(x), *largest.shape[-2:]))


def of_text(
    model: Model,
    first: str,
    second: str | None = None,
) -> Attention:
    """The attention of a run in a sentence or pair, without padding.

    Raises:
        RunError: as `maps` and `encode`, or the run reads no text.
    """
    if not isinstance(model.task, TextTask):
        raise RunError(f"the run trained {model.config.task}: give a text model with attention")
    text = encode(model, first, second)
    padded = maps(model, text)
    count = len(text.labels)
    weights = padded.weights[:, :count, :count]
    return padded._replace(weights=weights)


# Figures.


def figures(attention: Attention) -> dict[str, Figure]:
    """The largest weights in the layers of the network's first half, at least in one layer; and all
    layers one by one, on one colour scale, with the largest weight of each in its title."""
    weights = attention.weights
    numbers = attention.numbers
    first_half = [number for number in numbers if number <= attention.depth // 2]
    half = max(1, len(first_half))
    titles = []
    for number, layer in zip(numbers, weights, strict=True):
        titles.append(f"layer {number}, to {layer.max():.2g}")
    return {
        "attention": draw_largest(weights[:half], attention.text, numbers[:half]),
        "attention_layers": drawing.draw_matrices(weights, titles, drawing.WEIGHTS),
    }


@drawing.style()
def draw_largest(
    weights: np.ndarray,
    text: EncodedText,
    numbers: Sequence[int],
) -> Figure:
    """Draws the elementwise maximum of maps [layers, tokens, tokens] of the layers `numbers`, with
    the tokens as labels."""
    count = weights.shape[1]
    side = max(SMALLEST, INCHES_PER_TOKEN * count)
    side = min(LARGEST, side)
    figure, [axis] = drawing.subplots(1, 1, side + 1.6, side + 1.2)
    largest = weights.max(0)
    bar = drawing.scaled_images(figure, [axis], [largest], drawing.WEIGHTS)
    if len(numbers) == 1:
        bar.set_label(f"largest weight in layer {numbers[0]}")
    else:
        bar.set_label(f"largest weight in layers {numbers[0]} to {numbers[-1]}")
    size = min(7.0, 60 * side / count)  # points
    axis.xaxis.tick_top()
    axis.set_xticks(
        range(count),
        text.labels,
        rotation=90,
        fontsize=size,
    )
    axis.set_yticks(range(count), text.labels, fontsize=size)
    axis.set(xlabel="key: the token that is looked at", ylabel="query: the token that looks")
    _draw_boundaries(axis, text.segments[:count])
    return figure


def _draw_boundaries(axis: Axes, segments: np.ndarray) -> None:
    """Draws lines between the sentences, over the image."""
    look: dict[str, Any] = {"color": GREY, "linewidth": 0.7, "gid": drawing.ON_IMAGE}
    last_tokens = np.flatnonzero(np.diff(segments))
    for token in last_tokens:
        boundary = token + 0.5
        axis.axhline(boundary, **look)
        axis.axvline(boundary, **look)
