"""Files of weights: what is read, what is refused, and in which words."""

import os
import sys

import numpy as np
import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.io import weight_files
from tests.failures import raised
from tests.interop import states

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.float32([7, 8])}


def assert_weights(found):
    assert found.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def refused(path, *words):
    """Reading ends in one line with the words."""
    told = raised(RunError, weight_files.read, str(path))
    assert all(word in told for word in (str(path), *words)), told


def test_safetensors_round_trip(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "new" / "w.safetensors"
    states.write(str(path), WEIGHTS)
    assert_weights(weight_files.read(str(path)))
    path.write_bytes(path.read_bytes()[:-5])
    refused(path, "is damaged")


def test_torch_files_of_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(array) for name, array in WEIGHTS.items()}
    half = {name: tensor.half() for name, tensor in tensors.items()}
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    read = (tensors, {"model": tensors, "epoch": 3}, {"state_dict": tensors}, half, parameters)
    for number, content in enumerate(read):
        torch.save(content, tmp_path / f"{number}.pth")
        assert_weights(weight_files.read(str(tmp_path / f"{number}.pth")))
    for content in ({"a": 1}, {"a": tensors["a.bias"].to_sparse()}, [1, 2]):
        torch.save(content, tmp_path / "other.pth")
        refused(tmp_path / "other.pth", "holds")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "0.pth").read_bytes()[:200])
    refused(tmp_path / "cut.pth", "cannot be read by torch")


class Runs:
    """Pickled, this is a command for whoever loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_code_is_never_run(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"model": Runs(tmp_path / "ran")}, tmp_path / "code.pth")
    refused(tmp_path / "code.pth", "pickled code is never run")
    assert not (tmp_path / "ran").exists()


def test_numpys_files_of_arrays(tmp_path):
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    assert_weights(weight_files.read(str(tmp_path / "w.npz")))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "w.npz").read_bytes()[:200])
    refused(tmp_path / "cut.npz", "is damaged")
    np.savez(tmp_path / "code.npz", a=np.array([Runs(tmp_path / "ran")], object))
    refused(tmp_path / "code.npz", "holds more than arrays")
    assert not (tmp_path / "ran").exists()


def test_small_files_of_huge_arrays(tmp_path, monkeypatch):
    """Zeros of a gigabyte are a megabyte of .npz, or of a state dict."""
    monkeypatch.setattr(weight_files.files, "MOST", 1000)
    np.savez_compressed(tmp_path / "w.npz", a=np.zeros(1 << 16, np.float32))
    refused(tmp_path / "w.npz", "would unpack to 262,272 bytes")
    (tmp_path / "w.pth").write_bytes((tmp_path / "w.npz").read_bytes())
    refused(tmp_path / "w.pth", "would unpack to 262,272 bytes")


def test_other_files(tmp_path):
    refused(tmp_path / "none.safetensors", "there is no file")
    (tmp_path / "w.h5").write_bytes(b"x")
    refused(tmp_path / "w.h5", "give a .safetensors, .pth or .npz file")


def test_a_reader_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(RunError, match=r"needs torch.*pip install"):
        weight_files.read(str(tmp_path / "w.pth"))


def test_download_without_the_hubs_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs huggingface_hub" in raised(RunError, weight_files.read_folder, "hf-hub:timm/x.y")
