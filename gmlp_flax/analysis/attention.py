"""What attention looks at in a sentence or a pair of sentences (the paper's Figure 10): weights and
figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from gmlp_flax.analysis import drawing
from gmlp_flax.data.finetuning import pairs
from gmlp_flax.errors import RunError
from gmlp_flax.models.attention import hide_padding
from gmlp_flax.models.blocks import Block, settings
from gmlp_flax.tasks.vocabulary import Finetuning
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INCHES_PER_TOKEN, LARGEST = 0.12, 24.0  # inches of a map's side: for each token, and at most


class EncodedText(NamedTuple):
    """A sentence or pair as a model reads it.

    Attributes:
        tokens, segments: int32 [n].
        labels: the text of each token, without padding.
    """

    tokens: np.ndarray
    segments: np.ndarray
    labels: list[str]


def encode(trained: loading.Trained, first: str, second: str | None = None) -> EncodedText:
    """`[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, filled up with [PAD] if the run's
    model needs it.

    Raises:
        RunError: the text has more tokens than the model reads.
    """
    task: Any = trained.task  # a task of text, which has a tokenizer
    tokenizer, model = task.tokenizer, trained.config.model
    if second is not None and getattr(task, "dual_encoder", False):
        raise RunError(
            "--second: the run reads the texts of a pair apart, without attention between them"
        )
    ids = [
        np.array(tokenizer.encode(text), np.int32) for text in (first, second) if text is not None
    ]
    count = sum(map(len, ids)) + 1 + len(ids)
    if count > model.length:
        raise RunError(
            f"the text has {count} tokens with [CLS] and [SEP], the model reads at most {model.length}"
        )
    spec = trained.task.spec()
    filled = isinstance(trained.task, Finetuning) or not spec.supports_length(count)
    tokens, segments = pairs.assemble(ids, model.length if filled else count, tokenizer)
    return EncodedText(
        tokens, segments, [label(tokenizer.piece(token)) for token in tokens[:count]]
    )


def label(piece: str) -> str:
    """A piece for reading, as BERT writes it: a word without its space, the continuation of a word
    after ##."""
    if piece.startswith(" "):
        return piece[1:] or "␣"
    return f"##{piece}" if piece[0].isalnum() else piece


class Attention(NamedTuple):
    """How much each token of a text looks at each other token, in the layers that have attention.

    Attributes:
        text: what the model read.
        weights: float32 [layers, n, n]; each row is a softmax over all n tokens, or the largest of
            several heads'.
        numbers: of these layers, from 1. Some blocks have attention in the last layers alone.
        depth: how many layers there are.
    """

    text: EncodedText
    weights: np.ndarray
    numbers: list[int]
    depth: int


def maps(trained: loading.Trained, sentences: EncodedText) -> Attention:
    """The attention between all tokens, also those that fill up. Raises RunError: the run's model
    has no attention."""
    task: Any = trained.task
    tokens, segments = sentences.tokens[None], sentences.segments[None]
    padding_mask = task.padding_mask(tokens)

    def of_all(params: Any) -> list[jax.Array | None]:
        """The weights of each stack, as `stack_weights` returns them."""
        model = task.bind(params)
        x = model.embed(tokens, segments).astype(model.spec.stream_dtype)
        return stack_weights(model.encoder.stacks, x, padding_mask)

    of_stacks, numbers, depth = jax.jit(of_all)(trained.weights), [], 0
    for stack, weights in zip(task.stacks(trained.weights), of_stacks, strict=True):
        first, depth = depth + 1, depth + len(jax.tree.leaves(nnx.state(stack))[0])
        numbers += [] if weights is None else range(first, depth + 1)
    if not numbers:
        model = settings(task.spec())
        what = ", ".join(f"{name} {model[name]}" for name in ("block", "d_attn") if name in model)
        raise RunError(f"the run's model has no attention ({what}): give an aMLP or a Transformer")
    weights = np.concatenate([weights[:, 0] for weights in of_stacks if weights is not None])
    return Attention(sentences, weights, numbers, depth)


def stack_weights(
    stacks: list[Block], x: jax.Array, padding_mask: jax.Array | None
) -> list[jax.Array | None]:
    """Runs stacked blocks on [batch, n, d_model]; of each stack its weights [layers, batch, n, n],
    None without any."""

    def layer(block: Block, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        y, scores = block(x, padding_mask=padding_mask), block.attention_scores(x)
        if scores is None:
            return y, None
        weights = jax.nn.softmax(hide_padding(scores, padding_mask, heads=True), axis=-1)
        return y, jnp.broadcast_to(weights.max(-3), (len(x), *weights.shape[-2:]))

    of_stacks = []
    for stack in stacks:
        definition, stacked = nnx.split(stack)

        def run_layer(x: jax.Array, params: Any, definition: Any = definition) -> Any:
            return layer(nnx.merge(definition, params), x)

        x, weights = jax.lax.scan(run_layer, x, stacked)
        of_stacks.append(weights)
    return of_stacks


def of_text(trained: loading.Trained, first: str, second: str | None = None) -> Attention:
    """The attention of a run in a sentence or pair, without padding.

    Raises RunError as `maps` and `encode`, or if the run reads no text.
    """
    if trained.task.predicts_files:
        raise RunError(f"the run trained {trained.config.task}: give a text model with attention")
    found = maps(trained, encode(trained, first, second))
    count = len(found.text.labels)
    return found._replace(weights=found.weights[:, :count, :count])


def figures(found: Attention) -> dict[str, Figure]:
    """The largest weights in the layers of the network's first half, at least in one layer; and all
    layers one by one, on one colour scale, with the largest weight of each in its title."""
    half = max(1, sum(number <= found.depth // 2 for number in found.numbers))
    layers = zip(found.numbers, found.weights, strict=True)
    titles = [f"layer {number}, to {weights.max():.2g}" for number, weights in layers]
    return {
        "attention": draw_largest(found.weights[:half], found.text, found.numbers[:half]),
        "attention_layers": drawing.draw_matrices(found.weights, titles, drawing.WEIGHTS),
    }


@drawing.style()
def draw_largest(shown: np.ndarray, sentences: EncodedText, numbers: Sequence[int]) -> Figure:
    """The elementwise maximum of maps [layers, tokens, tokens] of the layers `numbers`, with the
    tokens beside it."""
    count = shown.shape[1]
    side = min(LARGEST, max(2.4, INCHES_PER_TOKEN * count))
    figure, axes = drawing.subplots(1, 1, side + 1.6, side + 1.2)
    bar = drawing.scaled_images(figure, axes, [shown.max(0)], drawing.WEIGHTS)
    layers = f"layer {numbers[0]}" if len(numbers) == 1 else f"layers {numbers[0]} to {numbers[-1]}"
    bar.set_label(f"largest weight in {layers}")
    axis, size = axes[0], min(7.0, 60 * side / count)  # points
    axis.xaxis.tick_top()
    axis.set_xticks(range(count), sentences.labels, rotation=90, fontsize=size, parse_math=False)
    axis.set_yticks(range(count), sentences.labels, fontsize=size, parse_math=False)
    for boundary in np.flatnonzero(np.diff(sentences.segments[:count])) + 0.5:
        axis.axhline(boundary, color=drawing.GREY, linewidth=0.7)
        axis.axvline(boundary, color=drawing.GREY, linewidth=0.7)
    axis.set(xlabel="key: the token that is looked at", ylabel="query: the token that looks")
    return figure
