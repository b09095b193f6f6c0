"""`gmlp import`: what it refuses. Weights of timm's are imported in tests/interop."""

import pytest

from tests import preloaded


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--model is missing; usage: gmlp import --model=NAME"),
        (("--model=gmlp_s16_224",), "--out is missing"),
        (("--model=gmlp_s16_225", "--checkpoint=x.pth", "--out=run"), "did you mean 'gmlp_s16_224'?"),
        (("--model=gmlp_s16_224", "--checkpoint=x.pth", "--out=run"), "there is no file x.pth"),
        (
            ("--model=exported", "--checkpoint=x", "--data=y", "--out=run"),
            "--data is not for --model=exported: leave it out",
        ),
        (("--model=gmlp_s16_224", "--tokenizer=y", "--out=run"), "--tokenizer is not for --model=gmlp_s16_224"),
        (("--model=hf-hub:timm/x", "--checkpoint=y", "--out=run"), "--checkpoint is not for --model=hf-hub:timm/x"),
        (("--model=gmlp_s16_224", "--checkpoint=odd.txt", "--out=run"), "is of no kind that is read here"),
        (
            ("--model=gmlp_s16_224", "--checkpoint=odd.safetensors", "--out=run"),
            "is no safetensors file, or is damaged",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path, flags, message):
    for name in ("odd.txt", "odd.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
    done = preloaded.gmlp("import", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "run").exists()
