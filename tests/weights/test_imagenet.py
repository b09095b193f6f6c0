"""Names of ImageNet's classes."""

import json
import sys

from gmlp_flax.weights import imagenet
from tests.timm_modules import timm_module


def test_synsets_are_in_the_order_of_the_labels(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.data", None)  # as if timm were not installed
    files = imagenet.class_files(1000)
    assert files.keys() == {"classes.json"}
    synsets = json.loads(files["classes.json"])
    assert len(set(synsets)) == 1000
    assert synsets == sorted(synsets)
    assert synsets[0] == "n01440764"
    assert synsets[207] == "n02099601"
    assert synsets[999] == "n15075141"


def test_other_numbers_of_classes_are_numbered():
    files = imagenet.class_files(2)
    assert files.keys() == {"classes.json"}
    assert json.loads(files["classes.json"]) == ["class 0", "class 1"]


def test_names_of_classes_are_timms():
    theirs = timm_module("data").ImageNetInfo()
    files = imagenet.class_files(1000)
    assert json.loads(files["classes.json"]) == theirs.label_names()
    words = json.loads(files["names.json"])
    their_words = [theirs.index_to_description(label) for label in range(1000)]
    assert words[207] == "golden retriever"
    assert words == their_words
