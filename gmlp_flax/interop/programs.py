"""Programs that run an exported model with onnxruntime alone, including its preprocessing. Each is
a file of the exported folder, and the model card shows it."""

import importlib.resources
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gmlp_flax.checkpoints.assets import Files
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.tasks.labelled_text import encodes_separately
from gmlp_flax.training.model import Model

PROGRAM = "run_onnx.py"
TOKENIZER_JSON = "tokenizer.json"
TASKS = ("image_classification", "text_classification", "masked_lm", "causal_lm")


class Program(NamedTuple):
    """A program for one model.

    Attributes:
        template: its file in the folder of templates.
        constants: a line's names -> their value.
        files: that it reads and that the model's folder does not have.
    """

    template: str
    constants: Mapping[str, Any]
    files: Files = {}

    def text(self) -> str:
        """The program itself."""
        package = importlib.resources.files("gmlp_flax.interop")
        template = package / "templates" / self.template
        content = template.read_text(encoding="utf-8")
        for names, value in self.constants.items():
            content = _with_constant(content, names, value)
        return content


def program_files(model: Model, onnx_file: str) -> Files:
    """The program for a model, as PROGRAM, and what else it reads; {} if there is none for its
    task, its tokenizer or its image transform.

    Args:
        model: the model.
        onnx_file: the name of its ONNX file.
    """
    task = model.config.task
    if task not in TASKS:
        return {}
    program = _of_images(model) if task == "image_classification" else _of_text(model)
    if program is None:
        return {}
    with_model = program._replace(constants={"MODEL": onnx_file, **program.constants})
    text = with_model.text()
    return {PROGRAM: text.encode(), **program.files}


def _with_constant(content: str, names: str, value: Any) -> str:
    """The program with a new value in the line that sets these names."""
    escaped_names = re.escape(names)
    pattern = rf"(?m)^{escaped_names} = [^#\n]*?(?=  #|$)"
    line = f"{names} = {value!r}"
    return re.sub(pattern, lambda _: line, content, count=1)


def _of_images(model: Model) -> Program | None:
    """The program of an image classifier; none if timm's pixels are not square."""
    options = model.config.model
    data = model.config.data
    height, width = options.image_size
    constants: dict[str, Any] = {
        "MODE": "RGB" if options.channels == 3 else "L",
        "WHITE": data.max_value,
    }
    if data.transform == "exact":
        constants["HEIGHT, WIDTH"] = (height, width)
        constants["KEPT"] = data.eval_crop
        return Program("run_image_classification.py", constants)
    if height != width:
        return None
    constants["SIDE"] = height
    constants["SHORTER"] = math.floor(height / data.eval_crop)
    return Program("run_image_classification_timm.py", constants)


def _of_text(model: Model) -> Program | None:
    """The program of a text model; none if neither SentencePiece nor the tokenizers library gives
    all ids, or if the two texts of a pair are encoded separately."""
    task = model.task
    config = model.config
    tokenizer: Tokenizer | None = getattr(task, "tokenizer", None)
    if TOKENIZER_FILE not in task.files or tokenizer is None:
        return None
    is_classifier = config.task == "text_classification"
    if is_classifier and encodes_separately(config):
        return None
    constants = _text_constants(model, tokenizer)
    if tokenizer.is_plain_sentence_piece:
        return Program(f"run_{config.task}.py", constants)
    content = tokenizer.to_json()
    if content is None:
        return None
    if config.task == "masked_lm":
        constants["MASK_TAKES_BLANKS"] = tokenizer.mask_takes_blanks
    files = {TOKENIZER_JSON: content}
    return Program(f"run_{config.task}_tokenizers.py", constants, files)


def _text_constants(model: Model, tokenizer: Tokenizer) -> dict[str, Any]:
    """The constants of a text model's program."""
    ids = {"PAD": tokenizer.pad_id, "CLS": tokenizer.cls_id, "SEP": tokenizer.sep_id}
    constants: dict[str, Any] = {"LENGTH": model.config.model.length}
    if model.config.task == "text_classification":
        constants["CLASSES"] = tuple(model.classes)
    elif model.config.task == "masked_lm":
        ids["MASK"] = tokenizer.mask_id
    else:
        never_written = set(tokenizer.special_ids) - {tokenizer.sep_id}
        constants["SPECIAL"] = tuple(sorted(never_written))
    names = ", ".join(ids)
    constants[names] = tuple(ids.values())
    return constants
