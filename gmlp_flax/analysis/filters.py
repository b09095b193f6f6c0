"""Learned spatial filters.

Text: for each layer, the row of W that mixes into the middle token (the paper's Figure 4). Images: for each layer, the
rows of some patches, laid out as the grid of patches (Figure 3); patches are counted row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from flax import nnx

from gmlp_flax.analysis.drawing import save, subplots
from gmlp_flax.errors import RunError
from gmlp_flax.models.image import patch_grid
from gmlp_flax.training import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS_SHOWN = 6  # columns of the image figure


def matrices(trained: run_folder.Trained) -> np.ndarray:
    """The spatial weights of all layers, float32 [layers, n, n]; rows are outputs.

    Raises:
        RunError: the run's blocks have none.
    """
    blocks = trained.task.blocks(trained.weights)
    definition, stacked = nnx.split(blocks)
    if nnx.merge(definition, jax.tree.map(lambda x: x[0], stacked)).spatial_matrix() is None:
        block = trained.config.model.block
        raise RunError(f"the run's config.model.block is {block!r}, which has no spatial matrices: give another run")
    return np.asarray(jax.vmap(lambda params: nnx.merge(definition, params).spatial_matrix())(stacked))


def draw(trained: run_folder.Trained, workdir: str, tokens: Sequence[int] = ()) -> str:
    """Draws the filters of a run.

    Args:
        trained: the run.
        workdir: its folder.
        tokens: the patches of an image model whose rows are shown; by default TOKENS_SHOWN of them.

    Returns:
        The path of the figure, RUN/figures/filters.png.

    Raises:
        RunError: the run's blocks have no filters, or there is no such patch.
    """
    images = trained.task.takes_files
    figure = draw_images(*between_patches(trained), tokens) if images else draw_text(matrices(trained))
    return save(figure, workdir, "filters.png")


def draw_text(weights: np.ndarray) -> Figure:
    """The middle token's row of each layer's W, [layers, n, n], as in the paper's Figure 4."""
    layers, n, _ = weights.shape
    columns = min(6, layers)
    figure, axes = subplots(math.ceil(layers / columns), columns, 2.2, 1.7)
    for layer, axis in enumerate(axes):
        if layer >= layers:
            axis.set_axis_off()
            continue
        axis.plot(np.arange(n), weights[layer, n // 2], linewidth=1)
        axis.axvline(n // 2, color="grey", linewidth=0.5, linestyle=":")
        axis.set_title(f"layer {layer + 1}", fontsize=8)
        axis.tick_params(labelsize=6)
    figure.supxlabel("token", fontsize=8)
    return figure


def between_patches(trained: run_folder.Trained) -> tuple[np.ndarray, tuple[int, int]]:
    """An image model's spatial weights without its cls token, [layers, patches, patches], and the patches' grid."""
    model = trained.config.model
    rows, columns = patch_grid(model.image_size, model.patch_size)
    return matrices(trained)[:, -rows * columns :, -rows * columns :], (rows, columns)


def draw_images(weights: np.ndarray, grid: tuple[int, int], tokens: Sequence[int] = ()) -> Figure:
    """Rows of each layer's W, [layers, patches, patches], as images on the grid (rows, columns), as in the paper's
    Figure 3. `tokens` as in `draw`.

    Raises:
        RunError: there is no such patch.
    """
    patches = math.prod(grid)
    if absent := [token for token in tokens if not 0 <= token < patches]:
        raise RunError(f"--tokens: there is no patch {absent[0]}; expected 0 to {patches - 1}")
    shown = tokens or np.linspace(0, patches - 1, min(TOKENS_SHOWN, patches)).round().astype(int)
    figure, axes = subplots(len(weights), len(shown), 1.0, 1.0)
    for place, axis in enumerate(axes):
        layer, token = divmod(place, len(shown))
        limit = np.abs(weights[layer]).max()
        axis.imshow(weights[layer, shown[token]].reshape(grid), cmap="RdBu", vmin=-limit, vmax=limit)
        axis.set(xticks=[], yticks=[])
        if token == 0:
            axis.set_ylabel(f"layer {layer + 1}", fontsize=7)
        if layer == 0:
            axis.set_title(f"token {shown[token]}", fontsize=7)
    return figure
