"""The benchmark's part `parity`: our models next to timm's and transformers', with the same random
weights: logits, and gradients of the pixels or of the embeddings (extra `parity`)."""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from gmlp_flax import tasks
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.benchmarks.timing import Row, row
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.weights import imagenet, transformers
from gmlp_flax.weights import timm as timm_models

COMPARED = (
    "gmlp_ti16_224",
    "gmlp_s16_224",
    "gmlp_b16_224",
    "mixer_b16_224",
    "resmlp_12_224",
    "resmlp_24_224",
    "deit_tiny_patch16_224",
    "deit_small_patch16_224",
    "vit_base_patch16_224",
)
BATCH = 2
CLASSES = 1000
MOST_TOKENS = 512  # of a text
NOTHING: Mapping[str, Any] = MappingProxyType({})


class TextModel(NamedTuple):
    """A model of transformers.

    Attributes:
        name: with which its classes begin.
        head: with which the class of the model ends.
        sizes: keys of its config that differ from the defaults of transformers.
    """

    name: str
    head: str = "ForMaskedLM"
    sizes: Mapping[str, Any] = NOTHING


# Family of `transformers.FAMILIES` -> its base model, if the defaults are not those; Llama is a
# small one with grouped queries.
TEXT_MODELS = {
    "bert": TextModel("Bert", sizes={"pad_token_id": None}),
    "fnet": TextModel("FNet", sizes={"pad_token_id": None}),
    "roberta": TextModel(
        "Roberta",
        sizes={
            "vocab_size": 50_265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
    ),
    "distilbert": TextModel("DistilBert"),
    "modernbert": TextModel("ModernBert"),
    "llama": TextModel(
        "Llama",
        "ForCausalLM",
        {
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
        },
    ),
}


class Errors(NamedTuple):
    """The largest differences from timm, relative to timm's largest value, in the logits and in the
    pixels' gradient."""

    logits: float
    gradient: float


class TextErrors(NamedTuple):
    """The largest differences from transformers, relative to its largest value, in the hidden
    states, in the logits and in the gradient of the embeddings."""

    hidden: float
    logits: float
    gradient: float


def bench_parity() -> list[Row]:
    """The largest relative errors of hidden states, logits and gradients, in float32; the tests hold
    them to the same limits.

    Raises:
        RunError: torch or timm is not installed.
    """
    rows = []
    for name in COMPARED:
        errors = compare(name)
        rows.append(row(f"{name}: logits", [errors.logits], "", "<= 1e-4"))
        rows.append(row(f"{name}: gradient of the pixels", [errors.gradient], "", "<= 1e-3"))
    try:
        for name in TEXT_MODELS:
            errors = compare_text(name)
            title = f"{name}, of transformers"
            rows.append(row(f"{title}: hidden states", [errors.hidden], "", "<= 1e-5"))
            rows.append(row(f"{title}: logits", [errors.logits], "", "<= 1e-4"))
            limit = "<= 1e-3"
            rows.append(row(f"{title}: gradient of the embeddings", [errors.gradient], "", limit))
    except RunError as error:
        print(f"transformers is left out: {error}", file=sys.stderr)
    return rows


def randomise(model: Any, seed: int) -> None:
    """Gives every tensor of a torch model random values that keep activations near 1.

    Initial values would hide mistakes: timm's head starts at zero, its norms at one, its spatial
    weights near zero.
    """
    import torch

    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            noise = torch.randn(tensor.shape, generator=numbers, dtype=torch.float64)
            # a matrix or a convolution, scaled by its inputs
            if tensor.ndim > 1 and tensor.shape[0] > 1:
                inputs = tensor[0].numel()
                tensor.copy_(noise / inputs**0.5)
            else:
                tensor.add_(0.2 * noise)


def compare(
    name: str, dtype: str = "float32", image_size: tuple[int, int] = (224, 224), seed: int = 0
) -> Errors:
    """Runs both models on the same random pixels.

    Args:
        name: a key of `weights.timm.MODELS`.
        dtype: "float32", or "float64" if jax_enable_x64 is on.
        image_size: height and width.
        seed: for the weights, the pixels, and the direction in which the logits are differentiated.

    Raises:
        RunError: torch or timm is not installed.
    """
    timm = import_beside_torch("timm")

    config = timm_models.config_for(name)
    config.model.update(dtype=dtype, image_size=image_size)
    model = timm.create_model(name, img_size=image_size, num_classes=CLASSES)
    model = frozen(model, dtype)
    randomise(model, seed)
    numbers = np.random.default_rng(seed)
    shape = (BATCH, *image_size, config.model.channels)
    pixels = numbers.uniform(0, 255, shape).astype(dtype)
    direction = numbers.standard_normal((BATCH, model.num_classes)).astype(dtype)
    theirs = _theirs(model, config, pixels, direction)

    task = ImageClassification(config, imagenet.class_files(model.num_classes))
    state = numpy_state(model)
    params = timm_models.from_timm(state, name, task.shapes(), name)

    @jax.jit
    def forward_and_back(params, pixels, direction):
        logits, pullback = jax.vjp(lambda pixels: task.apply(params, pixels), pixels)
        [gradient] = pullback(direction)
        return logits, gradient

    logits, gradient = forward_and_back(params, pixels, direction)
    return Errors(relative(logits, theirs.logits), relative(gradient, theirs.gradient))


class _Outputs(NamedTuple):
    """Logits, and the gradient of the pixels."""

    logits: np.ndarray
    gradient: np.ndarray


def frozen(model: Any, dtype: str) -> Any:
    """A torch model for inference in a type, whose parameters have no gradients."""
    import torch

    inference = model.eval().requires_grad_(False)
    return inference.to(getattr(torch, dtype))


def numpy_state(model: Any) -> dict[str, np.ndarray]:
    """The tensors of a torch model."""
    return {key: tensor.numpy() for key, tensor in model.state_dict().items()}


def _theirs(model: Any, config: ConfigDict, pixels: np.ndarray, direction: np.ndarray) -> _Outputs:
    """timm's logits, and the pixels' gradient of logits times direction. timm normalizes pixels
    outside the model."""
    import torch

    x = torch.tensor(pixels, requires_grad=True)
    mean = torch.tensor(config.data.mean, dtype=x.dtype)
    std = torch.tensor(config.data.std, dtype=x.dtype)
    normalized = (x / 255 - mean) / std
    channels_first = normalized.permute(0, 3, 1, 2)
    logits = model(channels_first)
    projection = (logits * torch.tensor(direction)).sum()
    [gradient] = torch.autograd.grad(projection, x)
    return _Outputs(logits.detach().numpy(), gradient.numpy())


def relative(ours: Any, theirs: np.ndarray) -> float:
    """The largest difference, relative to the largest value of theirs."""
    difference = np.abs(np.asarray(ours) - theirs)
    return float(difference.max() / np.abs(theirs).max())


def compare_text(name: str, dtype: str = "float32", seed: int = 0, **sizes: Any) -> TextErrors:
    """Runs a model of the package transformers and ours on the same weights and tokens.

    Args:
        name: in TEXT_MODELS.
        dtype: "float32", or "float64" if jax_enable_x64 is on.
        seed: for the weights, the tokens, and the direction in which the logits are differentiated.
        sizes: keys of the model's config in transformers; by default those in TEXT_MODELS.

    Raises:
        RunError: torch or transformers is not installed.
    """
    library = import_beside_torch("transformers")

    known = TEXT_MODELS[name]
    make_config = getattr(library, f"{known.name}Config")
    make_model = getattr(library, known.name + known.head)
    settings = {**known.sizes, **sizes}
    options = make_config(**settings, attn_implementation="eager")
    model = frozen(make_model(options), dtype)
    randomise(model, seed)
    model.tie_weights()
    state = numpy_state(model)
    shapes = {key: array.shape for key, array in state.items()}
    config = transformers.config_for(name, shapes, options.to_dict(), "the random model")
    config.model.dtype = dtype
    task = tasks.find(config.task)(config)
    params = transformers.from_transformers(name, state, config, "the random model")

    numbers = np.random.default_rng(seed)
    vocabulary = config.model.vocab_size
    length = min(config.model.length, MOST_TOKENS)
    tokens = numbers.integers(0, vocabulary, (BATCH, length))
    if options.pad_token_id is not None:  # torch leaves out the gradient of its embedding
        is_padding = tokens == options.pad_token_id
        next_tokens = (tokens + 1) % vocabulary
        tokens = np.where(is_padding, next_tokens, tokens)
    direction = numbers.standard_normal((BATCH, length, vocabulary)).astype(dtype)
    theirs = _their_text(model, tokens, direction)
    ours = _our_text(task, params, tokens, direction)
    return TextErrors(
        relative(ours.hidden, theirs.hidden),
        relative(ours.logits, theirs.logits),
        relative(ours.gradient, theirs.gradient),
    )


class _TextOutputs(NamedTuple):
    """The last hidden states, the logits, and the gradient of the embeddings."""

    hidden: Any
    logits: Any
    gradient: Any


def _our_text(task: Any, params: Any, tokens: np.ndarray, direction: np.ndarray) -> _TextOutputs:
    """The outputs of our model, and the gradient of logits times direction."""

    def project(
        embedding: jax.Array, others: Any, tokens: Any, direction: Any
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        module: Any = task.bind(others | {"embedding": embedding})
        hidden = module.hidden(tokens)
        logits = module.logits(hidden)
        projection = (logits * direction).sum()
        return projection, (hidden, logits)

    forward_and_back = jax.jit(jax.grad(project, has_aux=True))
    gradient, (hidden, logits) = forward_and_back(params["embedding"], params, tokens, direction)
    return _TextOutputs(hidden, logits, gradient)


def _their_text(model: Any, tokens: np.ndarray, direction: np.ndarray) -> _TextOutputs:
    """The outputs of a model of transformers, and the gradient of logits times direction."""
    import torch

    embedding = model.get_input_embeddings().weight.requires_grad_(True)
    outputs = model(torch.tensor(tokens), output_hidden_states=True)
    projection = (outputs.logits * torch.tensor(direction)).sum()
    [gradient] = torch.autograd.grad(projection, embedding)
    *_, hidden = outputs.hidden_states
    return _TextOutputs(
        hidden.detach().numpy(),
        outputs.logits.detach().numpy(),
        gradient.numpy(),
    )
