"""A source for the pipeline, and transforms. Worker processes import this small module quickly."""

import numpy as np

from gmlp_flax.errors import DataError


class Numbers:
    """A source of the numbers below `count`."""

    units = "numbers"

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": np.int32(index)}

    def __repr__(self):
        return f"Numbers({self.count})"


def noisy(example, rng):
    return {**example, "noise": rng.random()}


def doubled(batch):
    return {**batch, "x": 2 * batch["x"]}


def broken(example, *_):
    raise DataError(f"example {example['x']} is broken")


class Broken(Numbers):
    """A source whose examples cannot be read."""

    def __getitem__(self, index):
        broken(super().__getitem__(index))
