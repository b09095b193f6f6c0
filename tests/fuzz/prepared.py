"""A prepared corpus: one of its files damaged, or its index written by another hand."""

import json
import shutil

import numpy as np

from gmlp_flax.data.text import packing, prepare
from gmlp_flax.data.text.prepared import Prepared
from tests.data.text.preparing import corpus, tokenizer
from tests.fuzz.damage import damaged, damaged_json


def make(folder):
    whole = folder / "whole"
    made = prepare.prepare(corpus(3), tokenizer(), whole, shard_bytes=1, workers=1)
    right = made.read(0, made.tokens)
    names = [path.name for path in whole.iterdir() if not path.name.startswith(".")]

    def check(rng):
        name, path = rng.choice([*names, *["index.json"] * 4]), folder / "damaged"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        data = (whole / name).read_bytes()
        if name == "index.json" and rng.random() < 0.7:
            (path / name).write_bytes(damaged_json(json.loads(data), rng))
        else:
            (path / name).write_bytes(damaged(data, rng))
        found = Prepared(path)
        packing.Order(packing.Packing(found, 16), 0).take(8 * rng.randrange(10), 8)
        _ = found.documents, found.skipped, found.counts(320)
        if name.startswith("ids"):
            assert np.array_equal(found.read(0, found.tokens), right), "wrong ids without an error"

    return check
