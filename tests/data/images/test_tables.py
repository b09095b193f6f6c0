"""Images without class folders get their classes from a table: those of Tiny-ImageNet, Kaggle and WebDataset."""

import pytest

from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import open_side
from tests.data.images.image_files import make_folder, make_tar
from tests.failures import failure

TRAIN = {"train/n1/1.jpg": b"", "train/n2/2.jpg": b""}
VAL = {"val/images/v_0.jpg": b"", "val/images/v_1.jpg": b"", "val/images/v_2.jpg": b""}
FLAT = {name.rpartition("/")[2]: b"" for name in VAL}
SOLUTION = (
    b"ImageId,PredictionString\nv_0,n2 85 1 499 272 \nv_1,n1 1 2 3 4 n1 5 6 7 8\nv_2,n2 0 0 1 1\nv_9,n1 0 0 1 1\n"
)
EXPECTED = {"v_0": "n2", "v_1": "n1", "v_2": "n2"}


def classes(source):
    names = (name.rpartition("/")[2].partition(".")[0] for name in source.names)
    return dict(zip(names, (source.classes[label] for label in source.labels), strict=True))


@pytest.mark.parametrize(
    "table",
    [
        {"val/val_annotations.txt": b"v_0.jpg\tn2\t0\t0\t1\t1\nv_1.jpg\tn1\t0\t0\t1\t1\nv_2.jpg\tn2\t2\t2\t3\t3\n"},
        {"LOC_val_solution.csv": SOLUTION},
        {"val.csv": b"file,label\nv_0.jpg,n2\nv_1.jpg,n1\nv_2.jpg,n2\n"},
        {"labels.tsv": b"class\tid\tsize\r\nn2\tv_0\t3\r\nn1\tv_1\t4\r\nn2\tv_2\t4\r\n"},
        {"val/labels.csv": b"\xef\xbb\xbfpath;breed\nimages/v_0.jpg;n2\nimages/v_1.jpg;n1\nval/images/v_2.jpg;n2\n"},
        {"sample_submission.csv": b"id,label\nv_0,n1\nv_1,n1\nv_2,n1\n", "val/val.csv": b"v_0,n2\nv_1,n1\nv_2,n2\n"},
        {f"val/images/{name}.cls": value.encode() for name, value in EXPECTED.items()},
    ],
)
def test_held_out_images_by_a_table(tmp_path, table):
    path = str(make_folder(tmp_path / "root", TRAIN | VAL | table))
    source = open_side(path, "heldout", heldout_share=0.1)
    assert classes(source) == EXPECTED and source.classes == ("n1", "n2")
    assert any(
        f"the classes of 3 images are those of {'the files' if len(table) == 3 else ''}" in x for x in source.notes
    )


def test_a_flat_folder_or_tar_file_with_a_table_beside_it(tmp_path):
    path = make_folder(tmp_path / "kaggle" / "ILSVRC" / "Data" / "CLS-LOC" / "val", FLAT)
    (tmp_path / "kaggle" / "LOC_val_solution.csv").write_bytes(SOLUTION)
    assert classes(ImageFolder(str(path)).of_split()) == EXPECTED
    make_tar(path.parent, FLAT)
    (path.parent / "own.csv").write_bytes(b"image,class\nv_0.jpg,n2\nv_1.jpg,n1\nv_2.jpg,n2\n")
    assert classes(open_side(str(path.parent / "images.tar"), "heldout")) == EXPECTED


def test_numbers_of_another_split_are_not_taken(tmp_path):
    """CIFAR-10 on Kaggle: train/1.png and test/1.png, with trainLabels.csv."""
    names = {f"{split}/{i}.png": b"" for split in ("train", "test") for i in range(4)}
    path = str(make_folder(tmp_path / "c", names | {"trainLabels.csv": b"id,label\n0,cat\n1,dog\n2,cat\n3,dog\n"}))
    sides = [open_side(path, side, heldout_share=0.5) for side in ("train", "heldout")]
    assert sorted(side[i]["name"] for side in sides for i in range(len(side))) == [f"train/{i}.png" for i in range(4)]
    (tmp_path / "c" / "trainLabels.csv").rename(tmp_path / "c" / "labels.csv")
    assert "/train/' has no classes" in failure(open_side, path, "train", heldout_share=0.5)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"a.csv": b"id,label,species\nv_0,n2,x\nv_1,n1,x\nv_2,n1,y"},
            "columns 'label', 'species' is the class is not clear",
        ),
        ({"a.csv": b"id,age,name\nv_0,n2,x\nv_1,n1,x\nv_2,n1,y"}, "columns 'age', 'name' is the class is not clear"),
        ({"a.csv": b"id,label\nv_0,n2\nv_1,n1\n"}, "no class for 1 of 3 images, such as 'v_2.jpg'"),
        ({"a.csv": b"id,label\nv_0,n2\nv_0,n1\n"}, "'v_0' has no class, or two"),
        (
            {"a.csv": b"v_0,a\nv_1,a\nv_2,b\n", "b.csv": b"v_0,a\nv_1,b\nv_2,b\n"},
            "give other classes for the same images",
        ),
        ({"val_annotations.txt": b"x"}, "val_annotations.txt names none of them"),
        ({"a.csv": "id,label\nv_0,né\n".encode("latin-1")}, "a.csv: not a table in UTF-8"),
    ],
)
def test_tables_that_do_not_say_it(tmp_path, tables, message):
    path = str(make_folder(tmp_path / "photos", FLAT | tables))
    assert message in failure(lambda: ImageFolder(path).of_split())
