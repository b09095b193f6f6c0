"""Programs that run an exported model with onnxruntime alone, including its preprocessing. Each is
a file of the exported folder, and the model card shows it."""

import importlib.resources
import re
from typing import Any

from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.tasks.labelled_text import encodes_separately
from gmlp_flax.training.model import Model

PROGRAM = "run_onnx.py"
TASKS = ("image_classification", "text_classification", "masked_lm", "causal_lm")


def program(model: Model, onnx_file: str) -> str:
    """The program for a model, or "" if there is none for its task, its tokenizer or its image
    transform.

    Args:
        model: the model.
        onnx_file: the name of its ONNX file.
    """
    task = model.config.task
    if task not in TASKS:
        return ""
    if task == "image_classification":
        constants = _image_constants(model)
    else:
        constants = _text_constants(model)
    if not constants:
        return ""
    package = importlib.resources.files("gmlp_flax.interop")
    template = package / "templates" / f"run_{task}.py"
    content = template.read_text(encoding="utf-8")
    all_constants = {"MODEL": onnx_file, **constants}
    for names, value in all_constants.items():
        content = _with_constant(content, names, value)
    return content


def _with_constant(content: str, names: str, value: Any) -> str:
    """The program with a new value in the line that sets these names."""
    escaped_names = re.escape(names)
    pattern = rf"(?m)^{escaped_names} = [^#\n]*?(?=  #|$)"
    line = f"{names} = {value!r}"
    return re.sub(pattern, lambda _: line, content, count=1)


def _image_constants(model: Model) -> dict[str, Any]:
    """The constants of an image classifier's program; none if the model preprocesses images as timm
    does."""
    options = model.config.model
    data = model.config.data
    if data.transform != "exact":
        return {}
    return {
        "MODE": "RGB" if options.channels == 3 else "L",
        "HEIGHT, WIDTH": tuple(options.image_size),
        "KEPT": data.eval_crop,
        "WHITE": data.max_value,
    }


def _text_constants(model: Model) -> dict[str, Any]:
    """The constants of a text model's program; none without a SentencePiece model that has all
    special pieces, or if the two texts of a pair are encoded separately."""
    task = model.task
    config = model.config
    tokenizer = getattr(task, "tokenizer", None)
    if TOKENIZER_FILE not in task.files or tokenizer is None:
        return {}
    if not tokenizer.is_plain_sentence_piece:
        return {}
    ids = {"PAD": tokenizer.pad_id, "CLS": tokenizer.cls_id, "SEP": tokenizer.sep_id}
    constants: dict[str, Any] = {"LENGTH": config.model.length}
    special = set(tokenizer.special_ids)
    if config.task == "text_classification":
        if encodes_separately(config):
            return {}
        constants["CLASSES"] = tuple(model.classes)
    elif config.task == "masked_lm":
        ids["MASK"] = tokenizer.mask_id
        constants["SPECIAL"] = tuple(sorted(special))
    else:
        special.discard(tokenizer.sep_id)
        constants["SPECIAL"] = tuple(sorted(special))
    names = ", ".join(ids)
    constants[names] = tuple(ids.values())
    return constants
