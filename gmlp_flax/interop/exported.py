"""Any model as a folder of plain files that can be read without gmlp_flax, here or on the Hugging
Face hub.

Its forward pass can be added as a reader for PyTorch, as StableHLO and as ONNX. The last two take
any batch and the inputs of `Task.forward`: images uint8 [batch, height, width, channels], or int32
[batch, length], tokens and, for models finetuned on text, segments (in alphabetical order in ONNX).
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

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
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import ConfigError, RunError, decode_errors, require
from gmlp_flax.interop import programs
from gmlp_flax.interop.formats import FORMATS, OPSET, encode, input_shapes
from gmlp_flax.io import files as io_files
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.models import parameters
from gmlp_flax.tasks.text import NO_TOKENIZER
from gmlp_flax.training import pretrained
from gmlp_flax.training.model import Model, require_model
from gmlp_flax.weights.exports import WEIGHTS

CARD = "README.md"
DTYPES = ("float32", "bfloat16")
THIS_MODEL = "this model"  # among the scores
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

    import safetensors.numpy
{bfloat16}    weights = safetensors.numpy.load_file("model.safetensors")
{openers}
`model.safetensors` has every parameter by its path, {dtype}. The first axis under `encoder/` is the layer, and a dense
layer is `x @ kernel + bias`. `config.json` has every setting.
{inputs}{classes}{program}"""
INPUTS = """
`inputs` are those below by name, in any batch size, and the answer is `logits`, float32 {outputs}:

| input | shape | type | what |
|---|---|---|---|
{rows}
"""
PROGRAM_TEXT = """
`{file}` is a complete program, which reads its input as the model was trained to. It runs the file that MODEL names;
all ONNX files have the same inputs:

```python
{program}```
"""
MEANING = {
    "image": "pixels, red, green, blue, 0 to 255, resized and cropped as `data` in config.json says",
    "tokens": "ids of the tokenizer, [CLS] first, [PAD] behind the text",
    "segments": "0 for the first text and padding, 1 for the second text of a pair",
}
MOST_LISTED = 200  # classes on the card


def export(
    model: Model,
    out: str | os.PathLike[str],
    *,
    dtype: Any = "float32",
    format: str | Sequence[str] = (),
    opset: int = OPSET,
    license: str = "",
) -> None:
    """Writes the weights of a model, or their running mean if there is one, and everything that is
    needed to use them to a folder that has no file of these names yet.

    Args:
        model: of `load`.
        out: the folder.
        dtype: of the weights in the file, one of DTYPES, or such a type; bfloat16 keeps 8 bits of
            each mantissa, in half the space.
        format: further files, by the names of `FORMATS`.
        opset: the version of ONNX's operators; runtimes read those up to their own.
        license: of the weights, for the card, as the hub names it, such as "apache-2.0".

    Raises:
        ConfigError: there is no such dtype or format.
        RunError, DataError: a format does not have this model, or the folder is taken or not
            writable.
    """
    require_model(model)
    dtype = _dtype_name(dtype)
    formats = [format] if isinstance(format, str) else list(format)
    _require_known("dtype", [dtype], DTYPES)
    _require_known("format", formats, FORMATS)
    files = dict(model.task.files)
    out = io_files.user_path(out)
    require_free(out, CARD, *files)
    openers: list[str] = []
    onnx_files: list[str] = []
    for name in formats:
        target = FORMATS[name]
        file = target.file
        with heartbeat(f"making {file}", at_once=False):
            files[file] = encode(model, name, opset)
        openers.append(target.opener)
        if file.endswith(".onnx"):
            onnx_files.append(file)
    program = ""
    if onnx_files:
        added = programs.program_files(model, onnx_files[0])
        files.update(added)
        program = added.get(programs.PROGRAM, b"").decode()
    text = card(model, dtype, openers, license, program)
    files[CARD] = text.encode()
    config = _exported_config(model)
    write(model.params, config, files, out, dtype)


def _dtype_name(dtype: Any) -> str:
    """The name of a type, such as jnp.bfloat16; a name is left as it is."""
    if isinstance(dtype, str):
        return dtype
    known = ", ".join(DTYPES)
    advice = f"give one of {known}"
    with decode_errors(f"dtype is {dtype!r:.80}", advice, ConfigError):
        return jnp.dtype(dtype).name


def _require_known(name: str, values: Iterable[str], known: Collection[str]) -> None:
    for value in values:
        if value in known:
            continue
        expected = ", ".join(known)
        raise ConfigError(f"{name} is {value!r}: expected one of {expected}")


def _exported_config(model: Model) -> ConfigDict:
    """The config of a model for other readers: without paths of this machine, and for one set of
    parameters."""
    config = config_lib.mutable_copy(model.config)
    data = config.data
    for key, value in data.items():
        if isinstance(value, str) and "/" in value:
            data[key] = _without_folder(value)
    has_tokenizer = TOKENIZER_FILE in model.task.files
    if "tokenizer" in data and not has_tokenizer:
        data.tokenizer = NO_TOKENIZER
    if keeps_mean(config.optimizer):  # only the mean is written
        config.optimizer.update(name="adamw", ema=0.0)
    return config


def _without_folder(path: str) -> str:
    """The last part of a path, which says nothing about this machine; tfds:NAME/CONFIG as it is."""
    if path.startswith("tfds:"):
        return path
    folder = path.rstrip("/")
    return os.path.basename(folder)


def require_free(out: str, *names: str) -> None:
    """Raises RunError if a folder already holds a run or a model, a file with one of the names, or
    other files, such as data."""
    for name in (CONFIG_FILE, RUN_FILE, CHECKPOINTS, WEIGHTS, *names):
        path = os.path.join(out, name)
        if io_files.exists(path):
            raise RunError(
                f"{out} holds {name} already, which would be overwritten: give another folder"
            )
    if not io_files.is_folder(out):
        return
    for name in io_files.listdir(out):
        if not name.startswith("."):
            raise RunError(
                f"{out} holds other files, such as {name}: give a new or an empty folder"
            )


def write(params: Any, config: ConfigDict, files: Files, out: str, dtype: str = "float32") -> None:
    """Writes parameters, a nested dict of arrays, the config of the model and the other files that
    predictions need (`Task.files`) to the folder `out`, with weights in `dtype`.

    Raises:
        RunError: a parameter is not finite, or the folder holds a model or one of the files;
            nothing is written then.
        RunError, DataError: the folder or a file cannot be written to.
    """
    require_free(out, *files)
    host_params = jax.device_get(params)
    flat: dict[str, Any] = traverse_util.flatten_dict(host_params, sep="/")
    numpy_dtype = jnp.dtype(dtype)
    weights = {}
    for name, leaf in flat.items():
        weights[name] = np.ascontiguousarray(leaf, numpy_dtype)
    _require_finite(weights)
    # Readers in torch require this entry.
    content = safetensors.numpy.save(weights, metadata={"format": "pt"})
    config_text = config_lib.to_json(config)
    all_files = {**files, WEIGHTS: content, CONFIG_FILE: config_text.encode()}
    write_files(out, all_files)


def _require_finite(weights: Mapping[str, np.ndarray]) -> None:
    not_finite = []
    for name, weight in weights.items():
        is_finite = np.isfinite(weight)
        if not is_finite.all():
            not_finite.append(name)
    if not_finite:
        first = not_finite[0]
        count = len(not_finite)
        raise RunError(
            f"{first} has numbers that are not finite ({count} such parameters): give other weights"
        )


def push(
    model: Model | str | os.PathLike[str],
    repository: str,
    *,
    checkpoint: str = "best",
    private: bool = False,
    **options: Any,
) -> str:
    """Uploads a model to the Hugging Face hub. A missing repository is created.

    Args:
        model: of `load`, or what `load` takes; an exported folder is read, then uploaded as it is.
        repository: "OWNER/NAME".
        checkpoint: of a run that is named.
        private: whether a new repository is.
        options: of `export`; none for an exported folder.

    Returns:
        The address of the commit.

    Raises:
        ConfigError: options are given for an exported folder.
        RunError: huggingface_hub is not installed, the hub cannot be reached, or it refuses the
            upload.
        UserError: the model cannot be read or exported.
    """
    huggingface_hub = require("huggingface_hub", "to push", "weights")
    folder = ""
    if isinstance(model, str | os.PathLike):
        folder = pretrained.exported_folder(model)
        if folder and options:
            names = ", ".join(options)
            raise ConfigError(
                f"{model} is exported already and uploaded as it is: leave out {names}, or export "
                "the run again"
            )
        model = pretrained.load(model, checkpoint)
    with tempfile.TemporaryDirectory() as temporary:
        if not folder:
            folder = temporary
            export(model, folder, **options)
        advice = "check the name and the network, and log in with `hf auth login` or HF_TOKEN"
        with decode_errors(f"{repository} cannot be pushed to", advice, RunError):
            api = huggingface_hub.HfApi(library_name="gmlp_flax")
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=repository, folder_path=folder)
    return str(commit.commit_url)


def card(
    model: Model,
    dtype: str,
    openers: Iterable[str] = (),
    license: str = "",
    program: str = "",
) -> str:
    """The card of a model: what it is, its scores next to those of trivial models, how to load it.

    Args:
        model: the scores are those of its checkpoint in its run's metrics.jsonl, if there is one.
        dtype: of the weights in the file.
        openers: how files of other formats are opened, a line of Python each.
        license: as the hub names licences; empty: the card names none.
        program: that runs the model without gmlp_flax; empty: there is none.
    """
    task = model.task
    config = model.config
    scores = _scores(model)
    metadata = {
        "license": license,
        "library_name": "gmlp_flax",
        "pipeline_tag": task.hub_task,
        "tags": ["jax", "flax", config.model.block],
        "metrics": list(scores.get(THIS_MODEL, ())),
    }
    known = {key: value for key, value in metadata.items() if value}
    inputs = ""
    if openers:
        inputs = _inputs_table(model)
    program_text = ""
    if program:
        program_text = PROGRAM_TEXT.format(file=programs.PROGRAM, program=program)
    opener_lines = [f"    {line}\n" for line in openers]
    bfloat16 = ""
    if dtype == "bfloat16":
        bfloat16 = "    import ml_dtypes  # without it, NumPy does not know bfloat16\n"
    return TEXT.format(
        metadata=yaml.safe_dump(known, sort_keys=False),
        block=config.model.block,
        task=config.task,
        count=parameters.count(model.params),
        trained=_training(model),
        scores=_table(model, scores),
        openers="".join(opener_lines),
        bfloat16=bfloat16,
        dtype=dtype,
        inputs=inputs,
        program=program_text,
        classes=_class_list(model.classes),
    )


def _inputs_table(model: Model) -> str:
    """The inputs of the forward pass, for the card."""
    lines = []
    shapes = input_shapes(model.task)
    for name, array in shapes.items():
        axes = ", ".join(map(str, array.shape))
        meaning = MEANING[name]
        line = f"| `{name}` | [{axes}] | {array.dtype} | {meaning} |"
        lines.append(line)
    rows = "\n".join(lines)
    outputs = "[batch, classes]" if model.classes else "[batch, tokens, ...]"
    return INPUTS.format(rows=rows, outputs=outputs)


def _class_list(classes: Sequence[str]) -> str:
    """The classes in the order of the logits, for the card; "" without any."""
    if not classes:
        return ""
    listed_classes = classes[:MOST_LISTED]
    shown = [f"{number} {name}" for number, name in enumerate(listed_classes)]
    unlisted = len(classes) - len(listed_classes)
    if unlisted:
        shown.append(f"and {unlisted:,} more in the file of the classes beside this one")
    names = ", ".join(shown)
    return f"\nClasses, by the position of their logit: {names}.\n"


def _training(model: Model) -> str:
    """How long a model was trained, and on what, for the card."""
    words = ""
    if model.step:
        words += f", trained for {model.step:,} steps"
    data = _without_folder(model.config.data.train)
    if data:
        words += f" on `{data}`"
    return words


def _table(model: Model, scores: Mapping[str, Mapping[str, Any]]) -> str:
    """The scores for the card; "" without any."""
    if not scores:
        return ""
    lines = ["", "| | on held-out data |", "|---|---|"]
    for name, metrics in scores.items():
        text = model.task.format_metrics(metrics)
        lines.append(f"| {name} | {text} |")
    lines.append("")
    return "\n".join(lines)


def _scores(model: Model) -> dict[str, dict[str, Any]]:
    """The metrics of a model and those of trivial models, by name; nothing if the run does not have
    the model's."""
    if not model.folder:
        return {}
    metrics_file = os.path.join(model.folder, METRICS_FILE)
    lines = MetricsFile.read(metrics_file)
    newest = _newest_metrics(lines, model.step)
    if newest is None:
        return {}
    prefix = "ema_" if keeps_mean(model.config.optimizer) else ""
    of_model = {}
    for name in model.task.eval_metrics:
        key = prefix + name
        if key in newest:
            of_model[name] = newest[key]
    scores = {THIS_MODEL: of_model}
    for baseline in newest_baselines(lines):
        name = baseline["name"]
        scores[name] = baseline["eval"]
    return scores


def _newest_metrics(lines: Iterable[Mapping[str, Any]], step: int) -> dict[str, Any] | None:
    """The held-out metrics of a step; those of the last evaluation, if there are several."""
    newest = None
    for line in lines:
        is_of_step = line["step"] == step
        if is_of_step and "eval" in line:
            newest = line["eval"]
    return newest
