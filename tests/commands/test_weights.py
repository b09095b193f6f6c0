"""`gmlp export`: what it refuses. Third-party weights are read in tests/weights."""

import pytest

from tests import preloaded


def test_folder_name_may_contain_a_dot(text_run, tmp_path):
    done = preloaded.gmlp("export", f"--model={text_run}", f"--out={tmp_path}/model-v1.0")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model-v1.0" / "model.safetensors").exists(), done.stderr


def test_run_may_be_given_as_workdir(text_run, tmp_path):
    done = preloaded.gmlp("export", f"--workdir={text_run}", f"--out={tmp_path}/model")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model" / "model.safetensors").exists(), done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--model=gmlp_s16_224.pth", "--out=x"), ["no file", "gmlp_s16_224.pth"]),
        ((), ["--model is missing", "gmlp export"]),
        (("--model=/missing", "--out=x"), ["/missing is not a run folder"]),
        (("--model=RUN", "--out=x", "--checkpoint=7"), ["'7'", "12"]),
    ],
)
def test_export_errors_are_one_line(image_run, tmp_path, flags, words):
    arguments = [flag.replace("RUN", str(image_run)) for flag in flags]
    line = preloaded.refused("export", *arguments, cwd=tmp_path)
    for word in words:
        assert word in line, line
    assert not list(tmp_path.iterdir())
