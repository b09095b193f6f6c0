"""What a run would read, before training."""

import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.api import inspection
from gmlp_flax.errors import UserError
from tests.failures import raised
from tests.training import tiny


@pytest.fixture
def table(tmp_path):
    """Sixty texts, twenty of each class."""
    lines = ["text,label"]
    for number in range(20):
        for label in ("bad", "fair", "good"):
            lines.append(f"It is {label} {number}.,{label}")
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_table_of_texts(table):
    options = {"data.heldout_share": 0.25, "data.tokenizer": "bytes"}
    found = gf.inspect(table, "finetune_glue:own", options=options)
    train = found.train
    heldout = found.heldout
    assert train.examples + heldout.examples == 60
    assert list(train.classes) == ["bad", "fair", "good"]
    assert sum(train.classes.values()) == train.examples
    assert "own.csv" in str(found)


def test_examples_from_python():
    levels = np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1)
    pixels = np.broadcast_to(levels, (8, 8, 8, 1))
    train = (pixels[:6], [0, 1, 0, 1, 0, 1])
    heldout = (pixels[6:], [0, 1])
    data = {"train": train, "test": heldout}
    found = gf.inspect(data, tiny.image_config())
    assert found.train.examples == 6
    assert found.heldout.examples == 2


def test_pretrained_run_gives_its_files(table, text_run):
    """The tokenizer of the model in config.init_from."""
    config = config_lib.from_file("finetune_glue", "own")
    config.init_from = str(text_run)
    config.data.train = table
    config.model.length = 16
    data = inspection.read(config)
    assert data.assets()["tokenizer.model"] == (text_run / "tokenizer.model").read_bytes()


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        ("no/such/file.csv", {}, "no/such/file.csv"),
        ([], {}, "no examples"),
        ([("a", "b")], {"stepz": 3}, "stepz"),
    ],
)
def test_invalid_arguments_are_refused(data, options, words):
    assert words in raised(UserError, gf.inspect, data, "finetune_glue:own", options=options)
