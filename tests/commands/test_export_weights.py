"""`gmlp export`: what it refuses. What it writes is read by timm in tests/interop."""

import pytest

from tests import preloaded


def test_a_folder_may_have_a_dot(text_run, tmp_path):
    done = preloaded.gmlp("export", f"--workdir={text_run}", f"--out={tmp_path}/model-v1.0")
    assert done.returncode == 0 and (tmp_path / "model-v1.0" / "model.safetensors").exists(), done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--workdir is missing; usage: gmlp export --workdir=RUN --out=FOLDER or FILE.safetensors"),
        (("--workdir=RUN",), "--out is missing; usage: gmlp export"),
        (("--workdir=/nowhere", "--out=x.safetensors"), "/nowhere is no run folder: it has no config.json"),
        (
            ("--workdir=RUN", "--out=x.safetensors", "--checkpoint=7"),
            "has no checkpoint '7': give latest, best, or one of 12",
        ),
        (("--workdir=RUN", "--out=x.safetensors"), "timm has no model like the run's: gmlp_ti16_224 is nearest, but"),
    ],
)
def test_mistakes_are_one_line(image_run, tmp_path, flags, message):
    done = preloaded.gmlp("export", *(flag.replace("RUN", str(image_run)) for flag in flags), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert not list(tmp_path.iterdir())
