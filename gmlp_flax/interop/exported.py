"""Any model as a folder of plain files, which need no gmlp_flax to be read, here or on the Hugging
Face hub.

Its forward pass can be added as a reader for PyTorch, as StableHLO and as ONNX. The last two take
any batch, and what
`Task.forward` reads: images uint8 [batch, height, width, channels], or int32 [batch, length],
tokens and, for models finetuned on text, segments (ONNX has them in the order of the alphabet).
"""

import functools
import importlib.resources
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import yaml
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, RUN_FILE
from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.checkpoints.metrics_file import MetricsFile, newest_baselines
from gmlp_flax.checkpoints.run_folder import write_files
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.errors import ConfigError, RunError, decode_errors, require
from gmlp_flax.io import files as io_files
from gmlp_flax.models import blocks, parameters, sharding
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.vocabulary import NO_TOKENIZER, TOKENIZER_FILE
from gmlp_flax.training import loading
from gmlp_flax.training.loading import Trained

CARD = "README.md"
DTYPES = ("float32", "bfloat16")
TEXT = """---
{metadata}---
# {block}, {task}

{count:,} parameters{trained}.
{scores}
`FOLDER` is the path of this folder, or `hf-hub:OWNER/NAME`. `gmlp predict --workdir=FOLDER` predicts, `gmlp train
--config.init_from=FOLDER` starts from it, and in Python:

    import gmlp_flax as gf
    model = gf.load("FOLDER")
    model.predict(INPUTS)

Without gmlp_flax:

    import safetensors.numpy, ml_dtypes
    weights = safetensors.numpy.load_file("model.safetensors")
{openers}
`model.safetensors` has every parameter by its path, {dtype}. The first axis under `encoder/` is the layer, and a dense
layer is `x @ kernel + bias`. `config.json` has every setting.
"""
TORCH_TASKS = ("masked_lm", "causal_lm", "image_classification")


class Format(NamedTuple):
    """A format: the name of its file, its content for a model, the package that this needs, and how
    it is opened."""

    file: str
    encode: Callable[[Trained], bytes]
    package: str
    opener: str


def encode(model: Trained, name: str) -> bytes:
    """A model in one of FORMATS; raises RunError if its package is missing, or if the format has no
    such model."""
    require(FORMATS[name].package, f"--format={name}", name)
    what = f"--format={name} does not have this model, {model.config.model.block} in {model.config.task}"
    with decode_errors(what, "leave the format out", RunError):
        return FORMATS[name].encode(model)


def _torch(model: Trained) -> bytes:
    reader = blocks.find(model.config.model.block).torch_reader
    if not reader or model.config.task not in TORCH_TASKS:
        raise ValueError(f"it has gMLP and aMLP in {', '.join(TORCH_TASKS)}")
    return (importlib.resources.files("gmlp_flax.interop") / "templates" / reader).read_bytes()


def _stablehlo(model: Trained) -> bytes:
    forward = jax.jit(functools.partial(model.task.forward, model.weights))
    with sharding.portable():
        exported = jax.export.export(forward, platforms=("cpu", "cuda", "tpu"))(_inputs(model.task))
    return bytes(exported.serialize())


def _onnx(model: Trained) -> bytes:
    import jax2onnx

    for name in ("jax2onnx", "onnx_ir"):  # which tell of operators that our models do not have
        logging.getLogger(name).setLevel(logging.ERROR)
    leaves, structure = jax.tree.flatten(_inputs(model.task))
    forward = functools.partial(model.task.forward, jax.device_get(model.weights))
    choose = jax.lax.platform_dependent
    # as jax2onnx does with other functions while it traces: it has no operator for a choice of
    # platform
    try:
        jax.lax.platform_dependent = lambda *args, default, **_: default(*args)
        with sharding.portable():
            exported = jax2onnx.to_onnx(
                lambda *arrays: forward(jax.tree.unflatten(structure, arrays)), inputs=leaves
            )
    finally:
        jax.lax.platform_dependent = choose
    return exported.SerializeToString()


FORMATS = {
    "torch": Format(
        "modeling_gmlp.py",
        _torch,
        "json",
        "from modeling_gmlp import GMLP; GMLP.from_pretrained(FOLDER)",
    ),
    "stablehlo": Format(
        "model.stablehlo", _stablehlo, "flatbuffers", "jax.export.deserialize(CONTENT).call(inputs)"
    ),
    "onnx": Format(
        "model.onnx",
        _onnx,
        "jax2onnx",
        "onnxruntime.InferenceSession(FILE).run(None, {NAME: inputs})",
    ),
}


def _inputs(task: Task) -> Any:
    """Shapes and types of what `Task.forward` reads, for a symbolic batch."""
    (batch,) = jax.export.symbolic_shape("batch")
    arrays = {
        name: jax.ShapeDtypeStruct(
            (batch, *shape[:-1], task.length if name != "image" else shape[-1]), dtype
        )
        for name, (shape, dtype) in task.example_shapes().items()
        if name in ("image", "tokens", "segments")
    }
    return arrays if len(arrays) > 1 else next(iter(arrays.values()))


def export(
    model: Trained,
    out: str,
    *,
    dtype: Any = "float32",
    format: str | Sequence[str] = (),
    license: str = "",
) -> None:
    """Writes the weights of a model, their running mean if there is one, with all that is needed to
    use them, to a folder that holds no file of these names yet.

    Args:
        model: of `load`.
        out: the folder.
        dtype: of the weights in the file, one of DTYPES, or such a type; bfloat16 keeps 8 bits of
            each, in half the space.
        format: further files, by the names of `FORMATS`.
        license: of the weights, for the card, as the hub names it, such as "apache-2.0".

    Raises:
        ConfigError: there is no such dtype or format.
        RunError, DataError: a format does not have this model, or the folder is taken or not
            writable.
    """
    loading.require_trained(model)
    dtype = dtype if isinstance(dtype, str) else jnp.dtype(dtype).name
    format = [format] if isinstance(format, str) else format
    for name, given, known in (("dtype", [dtype], DTYPES), ("format", format, FORMATS)):
        if wrong := [value for value in given if value not in known]:
            raise ConfigError(f"{name} is {wrong[0]!r}: expected one of {', '.join(known)}")
    files = model.task.assets()
    require_free(out, CARD, *files)
    for name in format:
        files[FORMATS[name].file] = encode(model, name)
    config = model.config.copy_and_resolve_references()
    paths = {
        key: value for key, value in config.data.items() if isinstance(value, str) and "/" in value
    }
    # nobody's business
    config.data.update({key: os.path.basename(value.rstrip("/")) for key, value in paths.items()})
    if "tokenizer" in config.data and TOKENIZER_FILE not in files:
        config.data.tokenizer = NO_TOKENIZER
    if keeps_mean(config.optimizer):  # what was kept of it is what is written
        config.optimizer.update(name="adamw", ema=0.0)
    files[CARD] = card(model, dtype, [FORMATS[name].opener for name in format], license).encode()
    write(model.weights, config, files, out, dtype)


def require_free(out: str, *more: str) -> None:
    """Raises RunError if a folder holds a run or a model already, or a file with one of `more`
    names."""
    entries = CONFIG_FILE, RUN_FILE, CHECKPOINTS, loading.WEIGHTS, *more
    if taken := [entry for entry in entries if io_files.exists(os.path.join(out, entry))]:
        raise RunError(
            f"--out={out} holds {taken[0]} already, which would be overwritten: give another folder"
        )


def write(params: Any, config: ConfigDict, files: Files, out: str, dtype: str = "float32") -> None:
    """Writes parameters, a nested dict of arrays, with the config of the model and the files that
    predictions need beside them (`Task.assets`), to the folder `out`; `dtype` is of the weights
    there.

    Raises:
        RunError: a parameter is not finite, or the folder holds a model or one of the files;
            nothing is written then.
        RunError, DataError: the folder or a file cannot be written to.
    """
    require_free(out, *files)
    flat: dict[str, Any] = traverse_util.flatten_dict(jax.device_get(params), sep="/")
    weights = {name: np.ascontiguousarray(leaf, jnp.dtype(dtype)) for name, leaf in flat.items()}
    if broken := [name for name, leaf in weights.items() if not np.isfinite(leaf).all()]:
        raise RunError(
            f"{broken[0]} has numbers that are not finite ({len(broken)} such parameters): give other weights"
        )
    # an entry that readers in torch require
    content = safetensors.numpy.save(weights, metadata={"format": "pt"})
    own = {loading.WEIGHTS: content, CONFIG_FILE: config_lib.to_json(config).encode()}
    write_files(out, files | own)


def push(model: Trained | str, repository: str, *, private: bool = False, **options: Any) -> str:
    """Uploads a model to the Hugging Face hub, to a repository that is made if it does not exist.

    Args:
        model: of `load`; or an exported folder, which is uploaded as it is, once it has been read.
        repository: "OWNER/NAME".
        private: whether a new repository is.
        options: of `export`.

    Returns:
        The address of the commit.

    Raises:
        RunError: huggingface_hub is not installed, the hub cannot be reached, or it refuses the
            upload.
        UserError: the model cannot be read or exported.
    """
    huggingface_hub = require("huggingface_hub", "to push", "weights")
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, str):
            loading.load(folder := loading.locate(model))
        else:
            export(model, folder, **options)
        advice = "check the name and the network, and log in with `hf auth login` or HF_TOKEN"
        with decode_errors(f"{repository} cannot be pushed to", advice, RunError):
            api = huggingface_hub.HfApi(library_name="gmlp_flax")
            api.create_repo(repository, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repository, folder_path=folder).commit_url)


def card(model: Trained, dtype: str, openers: Iterable[str] = (), license: str = "") -> str:
    """The card of a model: what it is, what it scores beside trivial models, how it is loaded.

    Args:
        model: the scores are those of its checkpoint in its run's metrics.jsonl, if there is one.
        dtype: of the weights in the file.
        openers: how files of other formats are opened, a line of Python each.
        license: as the hub names licences; empty: the card names none.
    """
    task, config, scores = model.task, model.config, _scores(model)
    data = os.path.basename(config.data.train.rstrip("/"))  # a path is nobody's business
    metadata = {"license": license, "library_name": "gmlp_flax", "pipeline_tag": task.hub_task}
    metadata |= {
        "tags": ["jax", "flax", config.model.block],
        "metrics": list(scores.get("this model", ())),
    }
    table = "".join(
        f"| {name} | {task.format_metrics(values)} |\n" for name, values in scores.items()
    )
    return TEXT.format(
        metadata=yaml.safe_dump(
            {key: value for key, value in metadata.items() if value}, sort_keys=False
        ),
        block=config.model.block,
        task=config.task,
        count=parameters.count(model.params),
        trained=f", trained for {model.step:,} steps" * bool(model.step)
        + f" on `{data}`" * bool(data),
        scores=f"\n| | on held-out data |\n|---|---|\n{table}" if table else "",
        openers="".join(f"    {line}\n" for line in openers),
        dtype=dtype,
    )


def _scores(model: Trained) -> dict[str, dict[str, Any]]:
    """The metrics of a model and those of trivial models, by name; nothing if the run does not have
    the model's."""
    lines = (
        MetricsFile.read(os.path.join(model.task.folder, METRICS_FILE)) if model.task.folder else []
    )
    scores = [line["eval"] for line in lines if line["step"] == model.step and "eval" in line]
    if not scores:
        return {}
    mean = "ema_" if keeps_mean(model.config.optimizer) else ""
    own = {
        name: scores[-1][mean + name]
        for name in model.task.eval_metrics
        if mean + name in scores[-1]
    }
    baselines = newest_baselines(lines)
    return {"this model": own} | {baseline["name"]: baseline["eval"] for baseline in baselines}
