import pytest

from gmlp_flax.data import hugging_face
from gmlp_flax.io.files import File


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dataset_info.json", True),
        ("dataset_infos.json", True),
        ("dataset_dict.json", True),
        ("state.json", True),
        ("train/state.json", True),
        ("train/cache-1f0b.arrow", True),
        ("train/data-00000-of-00001.arrow", False),
        ("cache-1f0b.parquet", False),
        ("estate.json", False),
        ("state.json/a.csv", False),
    ],
)
def test_metadata_files_are_recognised_by_name(name, expected):
    file = File(f"/x/{name}", name, 1, "1")
    assert hugging_face.is_metadata(name) == expected
    assert hugging_face.metadata([file]) == ([file] if expected else [])


def test_only_a_list_of_splits_at_the_root_is_used():
    root = File("/x/dataset_dict.json", "dataset_dict.json", 1, "1")
    below = File("/x/a/dataset_dict.json", "a/dataset_dict.json", 1, "1")
    assert hugging_face.declares_splits([below, root])
    assert not hugging_face.declares_splits([below])
