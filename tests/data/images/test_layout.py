"""Which images of a folder tree are read, of which split and class; the fuzzer image_trees has
random trees.

Images without class folders get their classes from a table: those of Tiny-ImageNet, Kaggle and
WebDataset."""

import json
import random
import unicodedata

import pytest

from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import open_side
from gmlp_flax.data.splits import Side
from tests.data.images.image_files import make_folder, make_tar
from tests.failures import failure
from tests.fuzz import image_trees

TRAIN = {"train/n1/1.jpg": b"", "train/n2/2.jpg": b""}
VAL = {"val/images/v_0.jpg": b"", "val/images/v_1.jpg": b"", "val/images/v_2.jpg": b""}
FLAT = {name.rpartition("/")[2]: b"" for name in VAL}
SOLUTION = b"ImageId,PredictionString\nv_0,n2 85 1 499 272 \nv_1,n1 1 2 3 4 n1 5 6 7 8\nv_2,n2 0 0 1 1\nv_9,n1 0 0 1 1\n"
EXPECTED = {"v_0": "n2", "v_1": "n1", "v_2": "n2"}


def counts(path, split=""):
    source = ImageFolder(str(path)).of_split(split)
    return {name: int((source.labels == label).sum()) for label, name in enumerate(source.classes)}


def tree(path, *names, **content):
    return make_folder(path, dict.fromkeys(names, b"") | content)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # Photographs sorted further within their class (pytorch/vision 80).
        (["cat/1.jpg", "cat/indoor/2.jpg", "dog/3.jpg"], {"": {"cat": 2, "dog": 1}}),
        (
            ["cat/2021-03-01/1.jpg", "dog/2021-04-11/3.jpg", "dog/x/y/4.jpg"],
            {"": {"cat": 1, "dog": 2}},
        ),
        (
            [
                "cat/2021-03-01/1.jpg",
                "cat/2021-03-02/2.jpg",
                "dog/2021-03-01/3.jpg",
                "dog/2021-03-02/4.jpg",
            ],
            {"": {"cat": 2, "dog": 2}},
        ),
        # Tiny-ImageNet and its like.
        (["train/n1/images/1.jpg", "train/n2/images/2.jpg"], {"train": {"n1": 1, "n2": 1}}),
        # Folders around, and around the classes of a split (Intel's scenes).
        (["a/b/cat/1.jpg", "a/b/dog/2.jpg"], {"": {"cat": 1, "dog": 1}}),
        (["photos_test/train/a/1.jpg", "photos_test/train/b/1.jpg"], {"train": {"a": 1, "b": 1}}),
        (
            [
                "seg_train/seg_train/sea/1.jpg",
                "seg_train/seg_train/ice/1.jpg",
                "seg_test/seg_test/sea/2.jpg",
            ],
            {"train": {"ice": 1, "sea": 1}},
        ),
        # Splits by many names, several folders of one (ImageNet-100 on Kaggle), and a test part
        # without classes.
        (
            [
                "train.X1/a/1.jpg",
                "train.X2/b/1.jpg",
                "val.X/a/2.jpg",
                "val.X/b/2.jpg",
                "test/3.jpg",
            ],
            {"train": {"a": 1, "b": 1}, "validation": {"a": 1, "b": 1}},
        ),
        (
            ["Training/a/1.jpg", "Training/b/1.jpg", "DEV/a/1.jpg", "DEV/b/1.jpg"],
            {"validation": {"a": 1, "b": 1}},
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "test1/a/1.jpg", "test1/b/1.jpg"],
            {"test": {"a": 1, "b": 1}},
        ),
        # Classes that are called as a split (CIFAR-100, Places365).
        (["apple/1.jpg", "train/2.jpg", "bus/3.jpg"], {"": {"apple": 1, "bus": 1, "train": 1}}),
        (["ice_rink/1.jpg", "train_interior/2.jpg"], {"": {"ice_rink": 1, "train_interior": 1}}),
        (["train/train/1.jpg", "train/bus/1.jpg"], {"train": {"bus": 1, "train": 1}}),
        # Classes called mask, and the thumbnails of a network drive.
        (
            ["mask/1.jpg", "no_mask/2.jpg", "mask/@eaDir/1.jpg/T.jpg"],
            {"": {"mask": 1, "no_mask": 1}},
        ),
        # Kaggle's whole ImageNet.
        (
            [
                "I/Annotations/x.xml",
                "I/Data/CLS-LOC/train/n1/1.JPEG",
                "I/Data/CLS-LOC/train/n2/1.JPEG",
                "s.csv",
            ],
            {"train": {"n1": 1, "n2": 1}},
        ),
    ],
)
def test_classes_and_splits(tmp_path, names, expected):
    path = tree(tmp_path / "root", *names)
    assert {split: counts(path, split) for split in expected} == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["cat/1.jpg", "dog/1.jpg", "test/1.jpg"],
            "'test' can be read as splits, or as classes like 'cat', 'dog' beside",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "extra/1.jpg"],
            "'train' can be read as splits, or as classes like 'extra'",
        ),
        (
            ["cat/train/1.jpg", "cat/val/2.jpg", "dog/val/1.jpg"],
            "'cat/val' can be read as a split of a class",
        ),
        (
            ["train/1.jpg", "test1/2.jpg"],
            "/train/' has no classes: 1 images in no class folders; expected one folder",
        ),
        (
            ["trainval/a/1.jpg", "test/a/2.jpg"],
            "'trainval' can be read as the split 'train' or 'validation'",
        ),
        (["images/1.jpg", "masks/1.png"], "image 'images/1.jpg' lies outside of the class folders"),
        # Domains, folds or patients, and the classes in each (PACS, PlantVillage, breast
        # histopathology).
        (
            ["art/cat/1.jpg", "art/dog/1.jpg", "photo/cat/2.jpg", "photo/dog/2.jpg"],
            "the classes may be 'art', 'photo', or 'cat', 'dog' in each of them",
        ),
        (
            ["p1/0/1.jpg", "p1/1/1.jpg", "p2/0/2.jpg", "p2/1/1.jpg", "p3/0/1.jpg"],
            "or '0', '1' in each of them",
        ),
        # Lungs and birds with their masks (COVID-19 Radiography, CUB-200).
        (
            ["A/images/1.jpg", "A/masks/1.jpg", "B/images/1.jpg", "B/masks/1.jpg"],
            "or 'images', 'masks' in each of them: put the images of a class directly",
        ),
        (
            ["images/a/1.jpg", "images/b/1.jpg", "segmentations/a/1.jpg", "segmentations/b/1.jpg"],
            "the classes may be 'images', 'segmentations', or 'a', 'b' in each of them",
        ),
        (["data/x.zip"], "(found .zip; unpack archives)"),
        # Parts of one data set (HAM10000, ChestX-ray14), and ultrasound with its masks (BUSI).
        (
            ["HAM_part_1/1.jpg", "HAM_part_2/2.jpg"],
            "'HAM_part_1', 'HAM_part_2' can be read as classes, or as parts of",
        ),
        (
            ["images_001/images/1.jpg", "images_002/images/2.jpg"],
            "'images_001', 'images_002' can be read as classes",
        ),
        (["fold 1/1.jpg", "Fold 2/2.jpg"], "can be read as classes, or as parts of the data"),
        (
            ["a/x (1).png", "a/x (1)_mask.png", "b/y.png"],
            "'a/x (1)_mask' can be read as images, or as masks of those",
        ),
        (
            ["a/x.png", "b/y.png", "b/y.jpg", "b/y_mask_1.png"],
            "'b/y_mask_1' can be read as images, or as masks",
        ),
    ],
)
def test_what_can_be_read_in_two_ways(tmp_path, names, message):
    path = str(tree(tmp_path / "root", *names))
    told = failure(lambda: ImageFolder(path).of_split())
    assert message in told


def test_a_side_without_classes_is_refused_only_if_it_is_read(tmp_path):
    path = str(tree(tmp_path / "root", "train/a/1.jpg", "train/b/1.jpg", "val/1.jpg"))
    assert "/val/' has no classes: 1 images in no class folders" in failure(
        open_side, path, Side("heldout", heldout_share=0.1)
    )
    assert len(open_side(path, Side("train"))) == 2  # where other held-out images are given
    assert "no split 'test': it has 'train', 'validation'" in failure(
        open_side, path, Side("train", "test")
    )


def test_names_that_look_alike_are_one_class(tmp_path):
    forms = [unicodedata.normalize(form, "été") for form in ("NFC", "NFD")]
    path = tree(tmp_path, *(f"{form}/{i}.png" for i, form in enumerate(forms)), "cat/1.png")
    assert counts(path) == {"cat": 1, forms[0]: 2}


@pytest.mark.parametrize("other", ["Cat", "cat ", "CAT", "\uff43at", "c\u200bat"])
def test_two_spellings_of_a_class(tmp_path, other):
    path = str(tree(tmp_path, "cat/1.png", "cat/2.png", f"{other}/3.png", "0.5/4.png"))
    told = failure(lambda: ImageFolder(path).of_split())
    assert all(f"{name!r} ({count}" in told for name, count in (("cat", 2), (other, 1)))


def test_numbers_and_letters_are_names_of_folders(tmp_path):
    assert counts(tree(tmp_path / "numbers", "0.5/1.png", "1.5/2.png")) == {"0.5": 1, "1.5": 1}
    # as EMNIST
    assert counts(tree(tmp_path / "letters", "A/1.png", "a/2.png", "b/3.png")) == {
        "A": 1,
        "a": 1,
        "b": 1,
    }


def test_what_was_assumed_is_said(tmp_path):
    path = str(
        tree(
            tmp_path,
            "w/train/a/x/1.jpg",
            "w/train/b/1.jpg",
            "w/test/1.jpg",
            "w/dev/a/1.jpg",
            "w/dev/b/1.jpg",
        )
    )
    (tmp_path / "w" / "notes.xyz").touch()
    source = open_side(path, Side("train", heldout_share=0.5))
    assert source.notes == (
        f"{path!r}: w/dev held out; w/train to train on; w/test left out, having no classes",
        f"{path!r}: w/ is the only folder with images, and is read in its place",
        f"{path!r}: 1 folders inside class folders count to these, such as 'w/train/a/x'",
        f"{path!r}: ignored 1 files that are no images (.xyz 1)",
    )


def test_a_table_that_is_not_read_is_named(tmp_path):
    content = {
        "a/1.jpg": b"",
        "b/2.jpg": b"",
        "meta.csv": b"image,dx,age\n1,nv,3\n2,mel,4\n",
        "a.txt": b"",
    }
    (note,) = ImageFolder(str(make_folder(tmp_path / "root", content))).of_split().notes
    assert note.endswith(
        "ignored 2 files that are no images (.txt 1, .csv 1; not read for classes: meta.csv)"
    )
    tiny = TRAIN | VAL | {"val/val_annotations.txt": b"v_0.jpg\tn2\n"}
    assert (
        "not read for classes"
        not in ImageFolder(str(make_folder(tmp_path / "t", tiny))).of_split("train").notes[0]
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            ["type_1/x.png", "part_1/y_mask.png", "n01440764/image_2.png"],
            {"n01440764": 1, "part_1": 1, "type_1": 1},
        ),
        (["cat_1/x.png", "cat_2/y.png"], {"cat_1": 1, "cat_2": 1}),
        (["fold_1/x.png", "other/y.png"], {"fold_1": 1, "other": 1}),
        (["cat/x.png", "cat/x_2.png", "dog/label.png", "dog/x_mask.png"], {"cat": 2, "dog": 2}),
    ],
)
def test_names_that_only_look_like_parts_or_masks(tmp_path, content, expected):
    assert counts(tree(tmp_path, *content)) == expected


@pytest.mark.parametrize(
    "table",
    [
        # as Kaggle has it beside the folders
        "file,label\ntrain/cat/1.png,cat\ntrain/dog/2.png,dog\n",
        "file,label\n1.png,0\n2.png,1\n",
        "id,width,height\n1,3,4\n2,4,4\n",
        "data set,filepaths\ntrain,train/cat/1.png\ntest,val/cat/3.png\n",
        "file,fold\n1.png,0\n2.png,1\n",
    ],
)
def test_a_table_beside_class_folders_changes_nothing(tmp_path, table):
    for name in ("root/train.csv", "train.csv"):
        names = ("train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png")
        content = {f"root/{path}": b"" for path in names} | {name: table.encode()}
        path = make_folder(tmp_path / name.replace("/", "-"), content) / "root"
        source = open_side(str(path), Side("train", heldout_share=0.1))
        assert source.classes == ("cat", "dog") and source.names == [
            "train/cat/1.png",
            "train/dog/2.png",
        ]


def test_images_whose_masks_lie_elsewhere(tmp_path):
    tree(tmp_path, "images/cat/1.png", "images/dog/2.png", "masks/cat/1.png", "masks/dog/2.png")
    assert counts(tmp_path / "images") == {"cat": 1, "dog": 1}
    (tmp_path / "flat" / "masks").mkdir(parents=True)
    path = str(
        make_folder(
            tmp_path / "flat" / "images", FLAT | {"labels.csv": b"id,label\nv_0,a\nv_1,b\nv_2,b\n"}
        )
    )
    assert [*ImageFolder(path).of_split().classes] == ["a", "b"]


def test_random_trees(tmp_path):
    check = image_trees.make(tmp_path)
    for seed in range(60):
        check(random.Random(seed))


def classes(source):
    names = (name.rpartition("/")[2].partition(".")[0] for name in source.names)
    return dict(zip(names, (source.classes[label] for label in source.labels), strict=True))


@pytest.mark.parametrize(
    "table",
    [
        {
            "val/val_annotations.txt": b"v_0.jpg\tn2\t0\t0\t1\t1\nv_1.jpg\tn1\t0\t0\t1\t1\nv_2.jpg\tn2\t2\t2\t3\t3\n"
        },
        {"LOC_val_solution.csv": SOLUTION},
        {"val.csv": b"file,label\nv_0.jpg,n2\nv_1.jpg,n1\nv_2.jpg,n2\n"},
        {"labels.tsv": b"class\tid\tsize\r\nn2\tv_0\t3\r\nn1\tv_1\t4\r\nn2\tv_2\t4\r\n"},
        {
            "val/labels.csv": b"\xef\xbb\xbfpath;breed\nimages/v_0.jpg;n2\nimages/v_1.jpg;n1\nval/images/v_2.jpg;n2\n"
        },
        {
            "sample_submission.csv": b"id,label\nv_0,n1\nv_1,n1\nv_2,n1\n",
            "val/val.csv": b"v_0,n2\nv_1,n1\nv_2,n2\n",
        },
        {f"val/images/{name}.cls": value.encode() for name, value in EXPECTED.items()},
    ],
)
def test_held_out_images_by_a_table(tmp_path, table):
    path = str(make_folder(tmp_path / "root", TRAIN | VAL | table))
    source = open_side(path, Side("heldout", heldout_share=0.1))
    assert classes(source) == EXPECTED and source.classes == ("n1", "n2")
    assert any(
        f"the classes of 3 images are those of {'the files' if len(table) == 3 else ''}" in x
        for x in source.notes
    )


def test_a_flat_folder_or_tar_file_with_a_table_beside_it(tmp_path):
    path = make_folder(tmp_path / "kaggle" / "ILSVRC" / "Data" / "CLS-LOC" / "val", FLAT)
    (tmp_path / "kaggle" / "LOC_val_solution.csv").write_bytes(SOLUTION)
    assert classes(ImageFolder(str(path)).of_split()) == EXPECTED
    make_tar(path.parent, FLAT)
    (path.parent / "own.csv").write_bytes(b"image,class\nv_0.jpg,n2\nv_1.jpg,n1\nv_2.jpg,n2\n")
    assert classes(open_side(str(path.parent / "images.tar"), Side("heldout"))) == EXPECTED


def test_numbers_of_another_split_are_not_taken(tmp_path):
    """CIFAR-10 on Kaggle: train/1.png and test/1.png, with trainLabels.csv."""
    names = {f"{split}/{i}.png": b"" for split in ("train", "test") for i in range(4)}
    path = str(
        make_folder(
            tmp_path / "c", names | {"trainLabels.csv": b"id,label\n0,cat\n1,dog\n2,cat\n3,dog\n"}
        )
    )
    sides = [open_side(path, Side(side, heldout_share=0.5)) for side in ("train", "heldout")]
    assert sorted(side[i]["name"] for side in sides for i in range(len(side))) == [
        f"train/{i}.png" for i in range(4)
    ]
    (tmp_path / "c" / "trainLabels.csv").rename(tmp_path / "c" / "labels.csv")
    assert "/train/' has no classes" in failure(open_side, path, Side("train", heldout_share=0.5))


def test_classes_that_are_also_names_of_images(tmp_path):
    content = {f"train/{i}.png": b"" for i in range(6)}
    table = {"labels.csv": b"label,id\n" + b"".join(b"%d.0,%d\n" % (i % 2, i) for i in range(6))}
    source = ImageFolder(str(make_folder(tmp_path / "c", content | table))).of_split()
    assert source.classes == ("0", "1") and source.labels.tolist() == [0, 1] * 3


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            {"a.csv": b"id,label,species\nv_0,n2,x\nv_1,n1,x\nv_2,n1,y"},
            "columns 'label', 'species' is the class is not clear",
        ),
        (
            {"a.csv": b"id,age,name\nv_0,n2,x\nv_1,n1,x\nv_2,n1,y"},
            "columns 'age', 'name' is the class is not clear",
        ),
        ({"a.csv": b"id,label\nv_0,n2\nv_1,n1\n"}, "no class for 1 of 3 images, such as 'v_2.jpg'"),
        ({"a.csv": b"id,label\nv_0,n2\nv_0,n1\n"}, "'v_0' has no class, or two"),
        (
            {"a.csv": b"v_0,a\nv_1,a\nv_2,b\n", "b.csv": b"v_0,a\nv_1,b\nv_2,b\n"},
            "give other classes for the same images",
        ),
        ({"val_annotations.txt": b"x"}, "val_annotations.txt names none of them"),
        ({"a.csv": "id,label\nv_0,né\n".encode("latin-1")}, "a.csv: not a table in UTF-8"),
        ({"a.csv": b"id,label\nv_0,a\nv_1,nan\nv_2,b\n"}, "'v_1' has no class, or two"),
        (
            {"a.csv": b"id,label\nv_0,cat\nv_1,Cat\nv_2,b\n"},
            "two labels, 'cat' (1 rows) and 'Cat' (1)",
        ),
        (
            {"a.csv": b"id,score\nv_0,0.5\nv_1,1.5\nv_2,2\n"},
            "real numbers such as '0.5' among the classes of a.csv",
        ),
        (
            {"a.csv": b"id,label,part\nv_0,a,train\nv_1,b,train\nv_2,a,test\n"},
            "a.csv: the column 'part' seems to name splits ('test', 'train')",
        ),
        # CelebA's list of splits has no classes.
        (
            {"a.csv": b"id,partition\nv_0,0\nv_1,1\nv_2,2\n"},
            "which of its columns 'partition' is the class is not clear",
        ),
        (
            {f"v_{i}.cls": name for i, name in enumerate((b"cat", b"Cat", b"dog"))},
            "two labels, 'cat' (1 rows) and 'Cat'",
        ),
        ({f"v_{i}.cls": b"\xff" for i in range(3)}, "a file .cls is no text in UTF-8"),
        # A list of the images to predict has no classes (Plant Pathology).
        (
            {"a.csv": b"id\nv_0\nv_1\n", "b.csv": b"id,label\nv_2,a\n"},
            "b.csv: no class for 2 of 3 images",
        ),
    ],
)
def test_tables_that_do_not_say_it(tmp_path, tables, message):
    path = str(make_folder(tmp_path / "photos", FLAT | tables))
    assert message in failure(lambda: ImageFolder(path).of_split())


@pytest.mark.parametrize(
    "folders",
    [
        ("JPEGImages", "SegmentationClass"),
        ("imgs", "masks"),
        ("photos", "depth"),
        ("rgb", "labels"),
    ],
)
def test_images_and_their_masks_are_no_classes(tmp_path, folders):
    root = tree(tmp_path, *(f"{folder}/{i}.png" for folder in folders for i in range(3)))
    assert f"'{folders[1]}' can be read as classes, or as masks of the images" in failure(
        counts, root
    )
    assert counts(tree(tmp_path / "faces", "mask/1.png", "no_mask/2.png")) == {
        "mask": 1,
        "no_mask": 1,
    }


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_each_split_has_a_table_and_the_same_file_names(tmp_path, suffix):
    """As the package datasets has folders of images."""
    for split, kinds in (("train", ["cat", "dog", "cat"]), ("test", ["dog", "cat"])):
        rows = [{"file_name": f"{i}.png", "label": kind} for i, kind in enumerate(kinds)]
        lines = ["file_name,label", *(",".join(row.values()) for row in rows)]
        lines = lines if suffix == "csv" else map(json.dumps, rows)
        tree(tmp_path, *(f"{split}/{i}.png" for i in range(len(kinds))))
        (tmp_path / split / f"metadata.{suffix}").write_text("\n".join(lines))
    assert counts(tmp_path, "train") == {"cat": 2, "dog": 1} and counts(tmp_path, "test") == {
        "cat": 1,
        "dog": 1,
    }


def test_a_table_with_paths_of_windows(tmp_path):
    tree(tmp_path, "images/0.png", "images/1.png")
    (tmp_path / "labels.csv").write_text("file,label\nimages\\0.png,cat\nimages\\1.png,dog\n")
    assert counts(tmp_path) == {"cat": 1, "dog": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train_test_split.txt", b"1 1\n2 0\n"),  # CUB-200
        ("meta/test.txt", b"cat/1\ncat/2\n"),  # Food-101
        ("test_list.txt", b"dog/3.jpg 1\n"),
    ],
)
def test_a_list_of_a_split_beside_class_folders(tmp_path, name, content):
    files = {"images/cat/1.jpg": b"", "images/cat/2.jpg": b"", "images/dog/3.jpg": b""}
    path = make_folder(tmp_path / "root", files | {name: content})
    for given in (str(path), str(make_tar(tmp_path, files | {name: content}))):
        assert f"{name} lists images of a split" in failure(open_side, given, Side("train"))
    assert counts(path / "images") == {"cat": 2, "dog": 1}
    assert counts(make_folder(tmp_path / "other", files | {"train_log.txt": b"loss 0.1\n"})) == {
        "cat": 2,
        "dog": 1,
    }
