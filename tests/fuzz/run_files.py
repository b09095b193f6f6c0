"""The JSON files of a run folder: config.json, classes.json, names.json, labels.json."""

import json
import shutil

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models import blocks
from gmlp_flax.training import record
from tests.fuzz import config as configs
from tests.fuzz.damage import damaged_json, one_of
from tests.training import tiny


def make(folder):
    workdir = folder / "runs" / "a"
    workdir.mkdir(parents=True)

    def config(rng):
        task = rng.choice([*tasks.TASKS])
        block = rng.choice([*blocks.BLOCKS])
        options = configs.small(task, block, folder)
        content = json.loads(gmlp_config.to_json(options))
        path = workdir / "config.json"
        path.write_bytes(damaged_json(content, rng))
        loaded = gmlp_config.load(str(path))
        record.changes(str(workdir), loaded)

    def names(rng):
        options = configs.small("image_classification", "gmlp", folder)
        for name in ("classes.json", "names.json"):
            content = b'["a", "b"]'
            if rng.random() < 0.7:
                content = damaged_json([*"0123456789"], rng)
            (workdir / name).write_bytes(content)
        task, data = tiny.open_task(options, workdir)
        _ = task.class_names, task.predictor.names, data.training_examples()

    def labels(rng):
        options = configs.small("text_classification", "gmlp", folder)
        content = damaged_json({"labels": ["0", "1"]}, rng)
        (workdir / "labels.json").write_bytes(content)
        task, data = tiny.open_task(options, workdir)
        _ = task.class_names
        task.shapes()
        data.training_examples()

    def check(rng):
        for path in workdir.iterdir():
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path)
        one_of([config, config, names, labels])(rng)

    (folder / "tokenizer.model").write_bytes(configs.tokenizer().model)
    rows = "words 0\t0\nwords 1\t1\n" * 20
    (folder / "own.tsv").write_text("text\tlabel\n" + rows)
    return check
