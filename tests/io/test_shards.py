from gmlp_flax.io import files, shards
from tests.failures import failure


def test_missing_shards_are_counted(tmp_path):
    for number in (0, 1, 4):
        (tmp_path / f"en.noblocklist-{number:05d}-of-00005.jsonl").touch()
    (tmp_path / "en.noblocklist-00000-of-00001.parquet").touch()  # a set of its own
    found = files.find_files(str(tmp_path))
    assert failure(shards.check, str(tmp_path), found) == (
        f"{str(tmp_path)!r}: of the 5 shards of 'en.noblocklist', 00002-of-00005 and 1 more are missing; "
        "copy the rest, or give single files"
    )
    (tmp_path / "en.noblocklist-00002-of-00005.jsonl").touch()
    assert "00003-of-00005 is missing; copy" in failure(shards.check, str(tmp_path), files.find_files(str(tmp_path)))
    (tmp_path / "en.noblocklist-00003-of-00005.jsonl").touch()
    shards.check(str(tmp_path), files.find_files(str(tmp_path)))
