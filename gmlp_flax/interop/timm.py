"""timm's models and weights as ours: sizes, names and layouts of tensors; and what is read under
timm's names.

A state dict of torch is flat, with one tensor per layer. Our parameters are a nested dict, all
layers stacked along a leading axis. One table per family maps between the two. The weights of
vision_transformer's Mixers and of the package g-mlp-pytorch (github.com/lucidrains/g-mlp-pytorch)
are renamed to timm's first.
"""

import contextlib
import importlib
import importlib.resources
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.errors import RunError, decode_errors, did_you_mean
from gmlp_flax.io import weight_files
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.paper.recipes import IMAGENET_MEAN, IMAGENET_STD
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.image_classification import CLASSES_FILE, NAMES_FILE, ImageClassification

# and their axes of classes
HEADS = ("head.bias", -1), ("head.weight", 0), ("head/bias", -1), ("head/kernel", -1)
IMAGENET = "datasets/imagenet2012/labels.txt"  # of TFDS: WordNet ids in the order of the labels
# our key in config.data -> timm's key
PREPROCESSING = {"mean": "mean", "std": "std", "eval_crop": "crop_pct"}
# of timm's evaluation, what data.transform=timm does
SEEN = {"interpolation": "bicubic", "crop_mode": "center"}

# Views of our arrays in the layout of torch's tensors (np.asarray: as they are).
Layout = Callable[[np.ndarray], np.ndarray]


def _led_by_ones(ours: np.ndarray) -> np.ndarray:
    return ours.reshape((1,) * (3 - ours.ndim) + ours.shape)


def _convolution(ours: np.ndarray) -> np.ndarray:
    # our patches: [height, width, channels], square and in RGB as all of timm's
    side = math.isqrt(len(ours) // 3)
    return ours.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)


# The tensors of a layer: what ends torch's name, what ends our path, and the layout.
Tensors = tuple[tuple[str, str, Layout], ...]
LINEAR: Tensors = ((".weight", "/kernel", np.transpose), (".bias", "/bias", np.asarray))
OVER_TOKENS: Tensors = ((".weight", "/weight", np.asarray), (".bias", "/bias", np.asarray))
PATCHES: Tensors = ((".weight", "/kernel", _convolution), (".bias", "/bias", np.asarray))
NORM: Tensors = ((".weight", "/scale", np.asarray), (".bias", "/bias", np.asarray))
AFFINE: Tensors = ((".alpha", "/scale", _led_by_ones), (".beta", "/bias", _led_by_ones))
SINGLE: Tensors = (("", "", np.asarray),)
PACKED: list[Tensors] = [  # q, k or v of a layer that computes all three
    (
        (".weight", "/kernel", lambda x, i=i: np.split(x, 3, -1)[i].T),
        (".bias", "/bias", lambda x, i=i: np.split(x, 3)[i]),
    )
    for i in range(3)
]
OF_ALL_EXAMPLES: Tensors = (("", "", _led_by_ones),)


class Row(NamedTuple):
    """A layer: torch's name, in which `*` stands for the number of the block; our path; and its
    tensors."""

    theirs: str
    ours: str
    tensors: Tensors


def _rows(stem: str, norm: Tensors, *blocks: tuple[str, str, Tensors]) -> list[Row]:
    around = [
        Row(f"{stem}.proj", "stem", PATCHES),
        Row("norm", "encoder/norm", norm),
        Row("head", "head", LINEAR),
    ]
    return around + [
        Row(f"blocks.*.{theirs}", f"encoder/blocks/{ours}", tensors)
        for theirs, ours, tensors in blocks
    ]


GMLP = _rows(
    "stem",
    NORM,
    ("norm", "norm", NORM),
    ("mlp_channels.fc1", "proj_in", LINEAR),
    ("mlp_channels.gate.norm", "gate/norm", NORM),
    ("mlp_channels.gate.proj", "gate/spatial", OVER_TOKENS),
    ("mlp_channels.fc2", "proj_out", LINEAR),
    ("mlp_channels.attn.qkv", "attention/qkv", LINEAR),  # tiny attention, which timm has not
    ("mlp_channels.attn.proj", "attention/out", LINEAR),
)
MIXER = _rows(
    "stem",
    NORM,
    ("norm1", "token_norm", NORM),
    ("mlp_tokens.fc1", "token_mlp/proj_in", OVER_TOKENS),
    ("mlp_tokens.fc2", "token_mlp/proj_out", OVER_TOKENS),
    ("norm2", "mlp_norm", NORM),
    ("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    ("mlp_channels.fc2", "mlp/proj_out", LINEAR),
)
RESMLP = _rows(
    "stem",
    AFFINE,
    ("norm1", "token_affine", AFFINE),
    ("linear_tokens", "token_linear", OVER_TOKENS),
    ("ls1", "token_scale/scale", SINGLE),
    ("ls2", "mlp_scale/scale", SINGLE),
    ("norm2", "mlp_affine", AFFINE),
    ("mlp_channels.fc1", "mlp/proj_in", LINEAR),
    ("mlp_channels.fc2", "mlp/proj_out", LINEAR),
)
VIT = _rows(
    "patch_embed",
    NORM,
    ("norm1", "attention_norm", NORM),
    # both pack q, k and v in turn, and within each the heads in turn
    ("attn.qkv", "attention/proj_in", LINEAR),
    ("attn.proj", "attention/out", LINEAR),
    ("norm2", "mlp_norm", NORM),
    ("mlp.fc1", "mlp/proj_in", LINEAR),
    ("mlp.fc2", "mlp/proj_out", LINEAR),
)
VIT += [
    Row("cls_token", "cls", OF_ALL_EXAMPLES),
    Row("pos_embed", "positions/table", OF_ALL_EXAMPLES),
]


class TimmModel(NamedTuple):
    """A model of timm: its tensors, its keys in our config.model, and timm's preprocessing for its
    architecture as keys in our config.data."""

    rows: list[Row]
    model: dict[str, Any]
    data: dict[str, Any]


_ENCODER = {"activation": "gelu", "norm_eps": 1e-6, "positions": "none", "causal": False}
_IMAGES = {
    "image_size": (224, 224),
    "channels": 3,
    "stem": "patches",
    "pool": "mean",
    "pre_logits": False,
}
_GATE = {"gate": "split", "spatial": "dense", "gate_norm_eps": 1e-5, "d_attn": 0}
_HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "eval_crop": 0.875, "transform": "timm"}
_IMAGENET = _HALF | {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}


def _model(
    rows: list[Row], block: str, layers: int, d_model: int, patch: int, data: dict, **more
) -> TimmModel:
    sizes = {"block": block, "layers": layers, "d_model": d_model, "patch_size": (patch, patch)}
    return TimmModel(rows, _ENCODER | _IMAGES | sizes | {"d_ffn": 4 * d_model} | more, data)


# Layers, d_model, heads, d_ffn.
_VIT_SIZES = {"tiny": (12, 192, 3, 768), "small": (12, 384, 6, 1536), "medium": (12, 512, 8, 2048)}
_VIT_SIZES |= {
    "betwixt": (12, 640, 10, 2560),
    "base": (12, 768, 12, 3072),
    "large": (24, 1024, 16, 4096),
}
_VIT_SIZES |= {
    "so400m": (27, 1152, 16, 4304),
    "huge": (32, 1280, 16, 5120),
    "giant": (40, 1408, 16, 6144),
}
_VIT_SIZES |= {"giantopt": (40, 1536, 16, 6144), "gigantic": (48, 1664, 16, 8192)}
_TANH: dict[str, Any] = {"pool": "mean", "activation": "gelu_tanh"}
_SIGLIP = "vit_{}_patch{}_siglip_gap_{}"


def _vits(
    form: str, sizes: str, data: dict = _HALF, crop: float = 0.0, **more
) -> dict[str, TimmModel]:
    """ViTs by timm's names: `form`, filled in with the name of each size, the patch and the image,
    which `sizes` has with colons between; `crop` by default as most have it."""
    models, options = (
        {},
        {"positions": "absolute", "pool": "cls", "d_qkv": 0, "attention_bias": True} | more,
    )
    for size, patch, images in (one.split(":") for one in sizes.split()):
        layers, d_model, heads, d_ffn = _VIT_SIZES[size]
        for side in map(int, images.split(",")):
            shape = {"heads": heads, "d_ffn": d_ffn, "image_size": (side, side)} | options
            pixels = data | {"eval_crop": crop or (0.9 if side < 300 else 1.0)}
            model = _model(VIT, "transformer", layers, d_model, int(patch), pixels, **shape)
            models[form.format(size, patch, side)] = model
    return models


MODELS: dict[str, TimmModel] = {
    # The tensors of these become ours by `folded`.
    **_vits(
        "deit3_{}_patch{}_{}",
        "small:16:224,384 medium:16:224 base:16:224,384 large:16:224,384",
        _IMAGENET,
    ),
    **_vits("deit3_{}_patch{}_{}", "huge:14:224", _IMAGENET),
    **_vits(
        "vit_{}_patch{}_gap_{}", "medium:16:240,256,384 betwixt:16:256", crop=0.95, pool="mean"
    ),
    "gmlp_ti16_224": _model(GMLP, "gmlp", 30, 128, 16, _HALF, d_ffn=768, **_GATE),
    "gmlp_s16_224": _model(GMLP, "gmlp", 30, 256, 16, _HALF, d_ffn=1536, **_GATE),
    "gmlp_b16_224": _model(GMLP, "gmlp", 30, 512, 16, _HALF, d_ffn=3072, **_GATE),
    "mixer_s32_224": _model(MIXER, "mixer", 8, 512, 32, _HALF, d_spatial=256),
    "mixer_s16_224": _model(MIXER, "mixer", 8, 512, 16, _HALF, d_spatial=256),
    "mixer_b32_224": _model(MIXER, "mixer", 12, 768, 32, _HALF, d_spatial=384),
    "mixer_b16_224": _model(MIXER, "mixer", 12, 768, 16, _HALF, d_spatial=384),
    "mixer_l32_224": _model(MIXER, "mixer", 24, 1024, 32, _HALF, d_spatial=512),
    "mixer_l16_224": _model(MIXER, "mixer", 24, 1024, 16, _HALF, d_spatial=512),
    "resmlp_12_224": _model(RESMLP, "resmlp", 12, 384, 16, _IMAGENET, layer_scale=1e-4),
    "resmlp_24_224": _model(RESMLP, "resmlp", 24, 384, 16, _IMAGENET, layer_scale=1e-5),
    "resmlp_36_224": _model(RESMLP, "resmlp", 36, 384, 16, _IMAGENET, layer_scale=1e-6),
    "resmlp_big_24_224": _model(RESMLP, "resmlp", 24, 768, 8, _IMAGENET, layer_scale=1e-6),
    **_vits("deit_{}_patch{}_{}", "tiny:16:224 small:16:224 base:16:224,384", _IMAGENET),
    **_vits(
        "vit_{}_patch{}_{}",
        "tiny:16:224,384 small:16:224,384 small:32:224,384 base:8:224 base:16:224,384",
    ),
    **_vits(
        "vit_{}_patch{}_{}",
        "base:32:224,384 large:14:224 large:16:224,384 large:32:224,384 huge:14:224",
    ),
    **_vits("vit_{}_patch{}_{}", "giant:14:224 gigantic:14:224"),
    **_vits("vit_{}_patch{}_{}", "small:8:224", _IMAGENET),
    **_vits("vit_{}_patch{}_gap_{}", "base:16:224", pool="mean", heads=16),
    **_vits(
        "vit_{}_patch{}_gap_{}", "huge:14:224 huge:16:448 giant:16:224", _IMAGENET, pool="mean"
    ),
    **_vits(
        _SIGLIP, "base:16:224,256,384,512 large:16:256,384 so400m:14:224,378", crop=0.9, pool="mean"
    ),
    **_vits(_SIGLIP, "so400m:14:448,896", pool="mean"),
    **_vits(
        _SIGLIP,
        "base:32:256 large:16:512 giantopt:16:256,384 so400m:16:256,384,512",
        crop=0.9,
        **_TANH,
    ),
}


# vision_transformer's names of a Mixer's parts, as patterns, and timm's.
_FLAX = {
    r"^MixerBlock_(\d+)/": r"blocks.\1.",
    "token_mixing/": "mlp_tokens.",
    "channel_mixing/": "mlp_channels.",
}
_FLAX |= {
    "LayerNorm_0/": "norm1.",
    "LayerNorm_1/": "norm2.",
    "Dense_0/": "fc1.",
    "Dense_1/": "fc2.",
}
_FLAX |= {
    "^pre_head_layer_norm/": "norm.",
    "^stem/": "stem.proj.",
    "^head/": "head.",
    "(kernel|scale)$": "weight",
}
# g-mlp-pytorch's names as patterns, and timm's of the same gMLP.
_LUCIDRAINS = {
    r"^net\.": "",
    r"^layers\.(\d+)\.fn\.fn(\.fn)?": r"blocks.\1.mlp_channels",
    r"^layers\.(\d+)\.fn": r"blocks.\1",
    "proj_in.0": "fc1",
}
_LUCIDRAINS |= {
    "proj_out": "fc2",
    "sgu.norm": "gate.norm",
    r"sgu\.": "gate.proj.",
    "to_qkv": "qkv",
    "to_out": "proj",
}
_LUCIDRAINS |= {"^to_patch_embed.1": "stem.proj", "^to_logits.0": "norm", "^to_logits.2": "head"}
_LUCIDRAINS |= {"^to_embed": "embed", "^to_logits.1": "output"}
_TEXT = [Row("embed.weight", "embedding", SINGLE), Row("output.weight", "output_embedding", SINGLE)]
_TEXT += [*GMLP, Row("output.bias", "bias", SINGLE)]


def renamed(state: dict[str, np.ndarray], patterns: Mapping[str, str]) -> dict[str, np.ndarray]:
    """A state dict in which each pattern, in turn, is replaced in all names."""
    for pattern, name in patterns.items():
        state = {re.sub(pattern, name, key): value for key, value in state.items()}
    return state


def from_flax(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A Mixer's tensors in vision_transformer's names and layouts under timm's; others as they
    are."""
    if "stem/kernel" not in state:
        return state
    state = renamed(state, _FLAX)
    return {
        key: value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        for key, value in state.items()
    }


def folded(state: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A ViT's tensors as those of the same function in our block, `wanted`: the scale of a branch
    goes into its last layer, q, k and v without biases get zeros, and so does the cls token if only
    patches have positions."""
    ours = dict(state)
    for key in [key for key in state if key.endswith((".ls1.gamma", ".ls2.gamma"))]:
        scale, last = (
            ours.pop(key),
            key.replace("ls1.gamma", "attn.proj").replace("ls2.gamma", "mlp.fc2"),
        )
        for name in (f"{last}.weight", f"{last}.bias"):
            if name in ours and ours[name].shape[:1] == scale.shape:
                ours[name] = ours[name] * scale.reshape(-1, *[1] * (ours[name].ndim - 1))
    if not any(key.endswith("attn.qkv.bias") for key in state):
        kernels = {key: value for key, value in state.items() if key.endswith("attn.qkv.weight")}
        ours |= {
            key.replace("weight", "bias"): np.zeros_like(value[:, 0])
            for key, value in kernels.items()
        }
    cls, patches = state.get("cls_token"), state.get("pos_embed")
    if (
        cls is not None
        and patches is not None
        and patches.size + cls.size == np.size(wanted.get("pos_embed", ()))
    ):
        ours["pos_embed"] = np.concatenate([np.zeros_like(cls), patches], axis=-2)
    return ours


def named_after(path: str) -> str:
    """The model that a file of weights is named after: timm's, or a Mixer of vision_transformer, as
    Mixer-B_16.npz."""
    name = os.path.basename(path).partition(".")[0]
    mixer = re.fullmatch(r"(?:.*-)?Mixer-([SBL])_(\d+)", name)
    return f"mixer_{mixer[1].lower()}{mixer[2]}_224" if mixer else name


def config_for(name: str, advice: str = "") -> ConfigDict:
    """The config of one of `MODELS`, as a classifier without data.

    Raises:
        RunError: there is no such model; the message gives the most similar name, and `advice`.
    """
    if name not in MODELS:
        similar = did_you_mean(name.partition(".")[0], MODELS)
        raise RunError(f"there is no model {name!r} here; {similar}{advice and f'; {advice}'}")
    model = MODELS[name]
    config = config_lib.default(task="image_classification", block=model.model["block"])
    config.data.train = ""
    config.model.update(model.model)
    config.data.update(model.data)
    return config


def torch_views(flat: dict[str, np.ndarray], rows: list[Row]) -> dict[str, np.ndarray]:
    """Views of our parameters, given by path, under torch's names and in torch's layouts: what is
    written to a view is written to our parameter. Rows of layers that we have not are skipped."""
    views = {}
    for theirs, ours, tensors in rows:
        for end, name, layout in (one for one in tensors if ours + one[1] in flat):
            stacked = enumerate(flat[ours + name]) if "*" in theirs else [("", flat[ours + name])]
            views |= {
                theirs.replace("*", str(layer)) + end: layout(array) for layer, array in stacked
            }
    return views


def from_torch(state: dict[str, np.ndarray], rows: list[Row], like: dict, where: str) -> dict:
    """A state dict of torch as our parameters, with the names and dtypes of `like`, a nested dict
    of arrays or shapes.

    Raises:
        RunError: weights are missing, unexpected or of another shape; the message names their
            source, `where`, counts each kind and names the first.
    """
    flat: dict[str, Any] = traverse_util.flatten_dict(like, sep="/")
    params = {path: np.full(leaf.shape, np.nan, leaf.dtype) for path, leaf in flat.items()}
    views = torch_views(params, rows)
    with decode_errors(f"{where} is damaged", "download it again", RunError):
        state = folded(from_flax(state), views)
    weight_files.require_all(state, {name: view.shape for name, view in views.items()}, where)
    for name, view in views.items():
        view[...] = state[name]
    return traverse_util.unflatten_dict(params, sep="/")


def class_files(count: int) -> Files:
    """The files that name its classes: by id and, for ImageNet and if timm is installed, in
    words."""
    names = {CLASSES_FILE: [f"class {label}" for label in range(count)]}
    if count == 1000:
        synsets = (
            importlib.resources.files("tensorflow_datasets").joinpath(IMAGENET).read_text().split()
        )
        names = {CLASSES_FILE: synsets}
        # which a torchvision of another torch raises
        with contextlib.suppress(ImportError, RuntimeError):
            imagenet = importlib.import_module("timm.data").ImageNetInfo()
            names[NAMES_FILE] = [imagenet.label_name_to_description(synset) for synset in synsets]
    return {file: json.dumps(classes, indent=1).encode() for file, classes in names.items()}


def read(
    state: dict[str, Any], config: ConfigDict, name: str, where: str
) -> tuple[ImageClassification, dict]:
    """The task and the parameters, a nested dict of numpy arrays, of a state dict or of a Mixer's
    arrays as vision_transformer names them. `config` is of the model, `name` its key in `MODELS`,
    and `where` the source of the weights, for messages.

    Raises:
        RunError: the weights belong to another model.
    """
    classes = class_files(
        next((state[key].shape[axis] for key, axis in HEADS if np.size(state.get(key, ()))), 1000)
    )
    if "head/bias" in state:  # vision_transformer's, trained with Flax's GELU
        config.model.activation = "gelu_tanh"
    task = ImageClassification.without_data(config, classes)
    return task, from_torch(state, MODELS[name].rows, task.shapes(), where)


def from_folder(source: str) -> tuple[dict[str, Any], ConfigDict, str, str]:
    """A model as timm saves it, with its config.json, in a folder or on the hub
    (`weight_files.read_folder`).

    Returns:
        Its weights, its config with the normalisation and crop of its config.json, its key in
        `MODELS`, and
        the path of the weights: the arguments of `read` and `convert`.

    Raises:
        RunError, DataError: the files cannot be downloaded or read, or we do not have the model.
    """
    state, described, path = weight_files.read_folder(source)
    what = f"{source}: its config.json describes no model of timm"
    with decode_errors(what, "give another", RunError):
        name = described.get("architecture", source)
        config, hub = config_for(name), described.get("pretrained_cfg", {})
        other = {key: hub[key] for key, own in SEEN.items() if hub.get(key, own) != own}
        if other := other | described.get("model_args", {}):
            raise RunError(
                f"{what} that is here, as it has {other}: give its file, named {name}.safetensors"
            )
        given = {ours: hub[theirs] for ours, theirs in PREPROCESSING.items() if theirs in hub}
        config.data.update({key: type(config.data[key])(value) for key, value in given.items()})
        config_lib.validate(config)
    return state, config, name, path


def read_g_mlp_pytorch(
    state: dict[str, np.ndarray], where: str, causal: bool | None = None
) -> tuple[Task, dict]:
    """As `read`, of g-mlp-pytorch's gMLPVision and gMLP, whose shapes give their sizes. `causal` is
    gMLP's argument, which its weights do not say: by default it is concluded from the weights above
    the diagonals.

    Raises:
        RunError: weights are missing, unexpected or of another shape, or belong to a model that we
            do not have.
    """
    wrapped = any(key.startswith("net.") for key in state)
    state = renamed(state, _LUCIDRAINS)
    layers, block = (
        len({key.split(".")[1] for key in state if "gate.norm" in key}),
        "blocks.0.mlp_channels.",
    )
    with decode_errors(
        f"{where}, of g-mlp-pytorch", "give a gMLP or gMLPVision with one head", RunError
    ):
        if "stem.proj.weight" not in state and "embed.weight" not in state:
            raise ValueError(
                "it has no to_patch_embed and no to_embed: a gMLP without num_tokens reads no tokens"
            )
        heads, tokens = state[f"{block}gate.proj.bias"].shape
        if heads != 1:
            raise ValueError(
                f"it has {heads} heads, each with a W for its channels, and our gate has one W for all"
            )
        state = _with_matrices(
            {key: value[0] if ".gate.proj." in key else value for key, value in state.items()}
        )
        sizes = {"layers": layers, "d_ffn": len(state[f"{block}fc1.bias"])}
        sizes |= {"d_attn": len(state.get(f"{block}attn.qkv.weight", ())) // 3, "norm_eps": 1e-5}
        if "stem.proj.weight" in state:
            d_model, inputs = state["stem.proj.weight"].shape
            rows, side = math.isqrt(tokens), math.isqrt(inputs // 3)
            if (rows**2, 3 * side**2) != (tokens, inputs):
                raise ValueError(
                    f"its {tokens} patches of {inputs} numbers are no square ones, in RGB"
                )
            state["stem.proj.weight"] = state["stem.proj.weight"].reshape(d_model, 3, side, side)
            config = config_for("gmlp_s16_224")
            config.model.update(
                sizes, d_model=d_model, image_size=(rows * side,) * 2, patch_size=(side, side)
            )
            config.data.update(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
            to_stderr(
                f"note: {where} does not say how pixels were scaled: they are read as numbers from 0 to 1"
            )
            return read(state, config, "gmlp_s16_224", where)
        vocab_size, d_model = state["embed.weight"].shape
        matrices = [value for key, value in state.items() if key.endswith("gate.proj.weight")]
        concluded = wrapped or _only_past_trained(matrices)
    read_as = concluded if causal is None else bool(causal)
    config = config_lib.default(task="causal_lm" if read_as else "masked_lm")
    config.data.train = ""
    config.model.update(
        _ENCODER | _GATE | sizes, d_model=d_model, length=tokens, vocab_size=vocab_size
    )
    config.model.update(causal=read_as, tie_embeddings=False)
    if causal is None:
        advice = f"give gmlp_flax.load(..., causal={not concluded}) if it is{' not' * concluded}"
        guess = "read as if it were" + ("" if concluded else " not")
        to_stderr(f"note: {where} does not say whether it is causal: {guess}; {advice}")
    to_stderr(f"note: {where} does not say act and shift_tokens: read as if it had none")
    task = tasks.find(config.task).without_data(config)
    return task, from_torch(state, _TEXT, task.shapes(), where)


def _with_matrices(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The state dict of a gMLP with circulant_matrix, whose W[i, j] = x[i] y[j] w[n - 1 - i + j]
    for j <= i and else 0, with W in the place of w, x and y; others as they are."""
    for name in [
        key.removesuffix("circulant_pos_x") for key in state if key.endswith("circulant_pos_x")
    ]:
        w, x, y = (
            state[f"{name}weight"],
            state.pop(f"{name}circulant_pos_x"),
            state.pop(f"{name}circulant_pos_y"),
        )
        lags = np.arange(len(w))[:, None] - np.arange(len(w))
        state[f"{name}weight"] = np.tril(w[(-1 - lags) % len(w)]) * x[:, None] * y
    return state


def _only_past_trained(matrices: list[np.ndarray]) -> bool:
    """Whether all weights above the diagonals, and no others, are still as small as where gMLP
    starts, 0.001 / n."""
    later, past = (
        max(len(w) * np.abs(part(w)).max() for w in matrices)
        for part in (lambda w: np.triu(w, 1), np.tril)
    )
    return bool(later <= 1.01e-3 < past)
