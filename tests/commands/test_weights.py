"""`gmlp import` and `gmlp export`: what they refuse. Weights of timm's are read in tests/interop."""

import pytest

from tests import preloaded


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ["--model is missing", "gmlp import"]),
        (("--model=gmlp_s16_225", "--checkpoint=x.pth", "--out=run"), ["'gmlp_s16_225'", "'gmlp_s16_224'"]),
        (("--model=gmlp_s16_224", "--checkpoint=x.pth", "--out=run"), ["x.pth"]),
        (("--model=gmlp_s16_224", "--tokenizer=y", "--out=run"), ["--tokenizer", "--model=gmlp_s16_224"]),
        (("--model=hf-hub:timm/x", "--checkpoint=y", "--out=run"), ["--checkpoint", "--model=hf-hub:timm/x"]),
        (("--model=gmlp_s16_224", "--checkpoint=odd.safetensors", "--out=run"), ["odd.safetensors"]),
    ],
)
def test_what_import_refuses_is_one_line(tmp_path, flags, words):
    for name in ("odd.txt", "odd.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
    done = preloaded.gmlp("import", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line
    assert not (tmp_path / "run").exists()


def test_a_folder_may_have_a_dot(text_run, tmp_path):
    done = preloaded.gmlp("export", f"--workdir={text_run}", f"--out={tmp_path}/model-v1.0")
    assert done.returncode == 0 and (tmp_path / "model-v1.0" / "model.safetensors").exists(), done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ["--workdir is missing", "gmlp export"]),
        (("--workdir=/nowhere", "--out=x"), ["/nowhere is no run folder"]),
        (("--workdir=RUN", "--out=x", "--checkpoint=7"), ["'7'", "12"]),
    ],
)
def test_what_export_refuses_is_one_line(image_run, tmp_path, flags, words):
    done = preloaded.gmlp("export", *(flag.replace("RUN", str(image_run)) for flag in flags), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and all(word in line for word in words), line
    assert not list(tmp_path.iterdir())
