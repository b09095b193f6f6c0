import json

import numpy as np
import pytest

from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import RealLabels, open_side
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from tests.data import writers
from tests.data.images import image_files


def folder(tmp_path, *names):
    return ImageFolder(
        image_files.make_folder(tmp_path / "images", dict.fromkeys(names, b""))
    ).of_split()


def written(tmp_path, labels):
    path = tmp_path / "real.json"
    path.write_text(json.dumps(labels))
    return str(path)


def test_labels_follow_the_number_in_the_name(tmp_path):
    names = [f"{c}/ILSVRC2012_val_{i:08d}.JPEG" for c, i in (("a", 3), ("b", 1), ("b", 2))]
    source = RealLabels(folder(tmp_path, *names), written(tmp_path, [[0, 1], [], [1]]))
    assert len(source) == 3 and source.classes == ("a", "b")
    assert [source[i]["real"].tolist() for i in range(3)] == [[1, -1], [0, 1], [-1, -1]]
    assert source[0]["real"].dtype == np.int32 and source[0]["name"] == names[0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"a": 1}, "real.json holds a dict: expected a list"),
        ([[0], 1], "expected a list of labels for each image"),
        (
            [[0], [2]],
            "real.json: label 2, but '.*' has 2 classes; evaluate on ImageNet's validation set",
        ),
        ([[0]], "labels of 1 images, but none for 'b/ILSVRC2012_val_00000002.JPEG'; give theirs"),
    ],
)
def test_wrong_files(tmp_path, labels, message):
    source = folder(tmp_path, "a/ILSVRC2012_val_00000001.JPEG", "b/ILSVRC2012_val_00000002.JPEG")
    with pytest.raises(DataError, match=message) as caught:
        RealLabels(source, written(tmp_path, labels))
    assert "\n" not in str(caught.value)


def test_names_that_records_alone_have_are_checked_as_these_are_read(tmp_path):
    shards = {"validation": [[b"damaged", image_files.record(9)]]}
    path = writers.tfds_folder(tmp_path / "5.2.0", shards, "tfrecord", **image_files.FEATURES)
    source = RealLabels(open_side(str(path), Side("heldout")), written(tmp_path, [[2]]))
    with pytest.raises(
        DataError, match="labels of 1 images, but none for 'ILSVRC2012_val_00000010.JPEG'"
    ):
        _ = source[1]


def test_names_without_numbers(tmp_path):
    labels = written(tmp_path, [[0], []])
    expected = "config.eval.real_labels: image '{}' has no number in its name, expected names with ILSVRC2012"
    with pytest.raises(DataError, match=expected.format("a/photo.png")):
        RealLabels(folder(tmp_path, "a/photo.png"), labels)
    with pytest.raises(DataError, match=expected.format("image 0")):
        RealLabels(embedded_digits("heldout"), labels)
