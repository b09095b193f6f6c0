"""A prepared corpus with one damaged file, or with another index."""

import json
import shutil

import numpy as np

from gmlp_flax.data.text.packing import Packing, WindowOrder
from gmlp_flax.data.text.prepare import Limits, prepare
from gmlp_flax.data.text.prepared import Prepared
from tests.data.text.preparing import corpus, tokenizer
from tests.fuzz.damage import damaged, damaged_json

INDEX = "index.json"


def make(folder):
    whole = folder / "whole"
    made = prepare(corpus(3), tokenizer(), whole, Limits(workers=1, shard_bytes=1))
    right = made.read(0, made.tokens)
    names = [path.name for path in whole.iterdir() if not path.name.startswith(".")]

    def check(rng):
        path = folder / "damaged"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        name = rng.choice([*names, *[INDEX] * 4])
        content = (whole / name).read_bytes()
        if name == INDEX and rng.random() < 0.7:
            content = damaged_json(json.loads(content), rng)
        else:
            content = damaged(content, rng)
        (path / name).write_bytes(content)
        found = Prepared(path)
        order = WindowOrder(Packing(found, 16), 0)
        order.take(8 * rng.randrange(10), 8)
        found.counts(320)
        list(found.some_documents(rng.randrange(1, 50)))
        assert found.skipped == 0 or found.skipped_first
        if name.startswith("ids"):
            ids = found.read(0, found.tokens)
            assert np.array_equal(ids, right), "wrong ids without an error"

    return check
