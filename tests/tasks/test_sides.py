"""Which key names the data of a side, what its opener gets, and that errors name the key."""

from unittest import mock

import pytest
from ml_collections import ConfigDict

from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from gmlp_flax.tasks import sides
from tests.failures import raised


def config(**data):
    options = {
        "train": "t",
        "heldout": "",
        "split": "s",
        "heldout_split": "h",
        "heldout_share": 0.1,
        "search": False,
    }
    return ConfigDict({"data": options | data})


def opener(path, **options):
    return path, options


@pytest.mark.parametrize(
    ("heldout", "side", "path", "share"),
    [
        ("", "train", "t", 0.1),
        ("", "heldout", "t", 0.1),
        ("o", "train", "t", 0.0),
        ("o", "heldout", "o", 0.0),
    ],
)
def test_a_side_has_data_of_its_own_or_a_share(heldout, side, path, share):
    found, options = sides.open_side(config(heldout=heldout), side, opener, more=1)
    assert found == path == sides.path_of(config(heldout=heldout), side)
    assert options == dict(side=Side(side, "s", "h", share), more=1)


@pytest.mark.parametrize("side", ["train", "heldout"])
@pytest.mark.parametrize("heldout", ["", "o"])
def test_a_search_shares_the_training_data(heldout, side):
    found, options = sides.open_side(config(heldout=heldout, search=True), side, opener)
    assert found == "t" and options == dict(side=Side(side, "s", "", -0.1))


def test_errors_name_the_key():
    fail = mock.Mock(side_effect=DataError("no such split"))
    assert (
        raised(DataError, sides.open_side, config(), "heldout", fail)
        == "config.data.train: no such split"
    )
    with pytest.raises(DataError, match="^config.data.heldout: no such split$"):
        sides.open_side(config(heldout="o"), "heldout", fail)
    with pytest.raises(
        DataError, match="^config.data.train is not set; give --config.data.train=tfds:NAME$"
    ):
        sides.open_side(config(train=""), "train", opener, "tfds:NAME")
