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
    squad_files.write(
        folder / "squad.json", *(squad_files.colours(number) for number in range(6)), version="v1.1"
    )
    (folder / "own.tsv").write_text(
        "text\tlabel\n" + "".join(f"words {i}\t{i % 2}\n" for i in range(40))
    )
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
                (values[group] if group else values)[last] = rng.choice(VALUES)
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
    config = (
        tiny.image_config(block=block)
        if task == "image_classification"
        else tiny.text_config(folder, block=block)
    )
    config = gmlp_config.changed(config, task)
    if task == "question_answering":
        config.model.length = 64
        config.squad.update(stride=16, max_query=16)
        config.data.update(
            train=str(folder / "squad.json"),
            heldout_share=0.3,
            tokenizer=str(folder / "tokenizer.model"),
        )
    if task == "text_classification":
        config.glue.task = "own"
        config.data.update(
            train=str(folder / "own.tsv"),
            heldout_share=0.3,
            tokenizer=str(folder / "tokenizer.model"),
        )
    return config
