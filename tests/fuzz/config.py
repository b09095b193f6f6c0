"""Config values by key: on the command line, in config.json and in a config file, up to a trainer
that is ready."""

import contextlib
import io
import random
import shutil

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.models import blocks
from gmlp_flax.training.build import build
from tests.data.finetuning import squad_files
from tests.data.text.preparing import tokenizer
from tests.fuzz.damage import TEXTS, VALUES
from tests.training import tiny


def make(folder):
    (folder / "tokenizer.model").write_bytes(tokenizer().model)
    articles = [squad_files.colours(number) for number in range(6)]
    squad_files.write(folder / "squad.json", *articles, version="v1.1")
    lines = ["text\tlabel\n"]
    for number in range(40):
        label = number % 2
        lines.append(f"words {number}\t{label}\n")
    (folder / "own.tsv").write_text("".join(lines))
    (folder / "cats").mkdir()

    def check(rng: random.Random) -> None:
        task = rng.choice([*tasks.TASKS])
        block = rng.choice([*blocks.BLOCKS])
        config = small(task, block, folder)
        name = rng.choice([*gmlp_config.keys(config)])
        how = rng.randrange(3)
        with contextlib.redirect_stderr(io.StringIO()):
            if how == 0:
                config = gmlp_config.overridden(config, {name: rng.choice(TEXTS)})
            elif how == 1:
                values = config.to_dict()
                group, _, last = name.rpartition(".")
                values_of_group = values[group] if group else values
                values_of_group[last] = rng.choice(VALUES)
                config = gmlp_config.from_dict(values, "config.json")
                gmlp_config.validate(config)
            else:
                # as a config file may
                with contextlib.suppress(OverflowError, TypeError), config.ignore_type():
                    config.update_from_flattened_dict({name: rng.choice(VALUES)})
                gmlp_config.validate(config)
            shutil.rmtree(folder / "run", ignore_errors=True)
            with run_folder.hold(str(folder / "run")) as run:
                build(gmlp_config.resolve(config), run)

    return check


def small(task, block, folder):
    """A config of every task that starts in a moment."""
    if task == "image_classification":
        config = tiny.image_config(block=block)
    else:
        config = tiny.text_config(folder, block=block)
    config = gmlp_config.changed(config, task)
    if task == "question_answering":
        config.model.length = 64
        config.squad.update(stride=16, max_query=16)
        read_text(config, folder / "squad.json")
    if task == "text_classification":
        config.glue.task = "own"
        read_text(config, folder / "own.tsv")
    return config


def read_text(config, path):
    """Makes a config read labelled text with the tokenizer beside it."""
    tokenizer_path = path.with_name("tokenizer.model")
    config.data.update(train=str(path), tokenizer=str(tokenizer_path), heldout_share=0.3)
