"""Files of named weights: .safetensors, torch's .pth (tensors only, never pickled code), and the Hugging Face hub."""

import os
import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np

from gmlp_flax.errors import RunError, decode_errors, install
from gmlp_flax.io import files, json_files
from gmlp_flax.io.cache import LocalCopy

HUB = "hf-hub:"  # what stands before the name of a repository
PICKLES = (".pth", ".pt", ".bin")
INNER = ("state_dict", "model")  # names that training scripts give the weights in a larger checkpoint
INSTALL = install("weights")
SHOWN = 3  # names of each kind in a message


def read(path: str) -> dict[str, np.ndarray]:
    """The weights in a file, by name, in the types that they have there; torch's half precision as float32.

    Raises:
        RunError: the file is missing, of another kind, damaged, or holds more than tensors; or its library is missing.
    """
    if files.is_remote(path):
        with LocalCopy(path) as copy:
            return read(copy.path)
    if not os.path.isfile(path):
        raise RunError(f"there is no file {path}: give a .safetensors or .pth file")
    if path.endswith(PICKLES):
        return _read_torch(path)
    if not path.endswith(".safetensors"):
        raise RunError(f"{path} is of no kind that is read here: give a .safetensors or .pth file")
    safetensors = _safetensors()
    with decode_errors(f"{path} is no safetensors file, or is damaged", "download it again", RunError):
        return safetensors.numpy.load_file(path)


def _read_torch(path: str) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError:
        raise RunError(f"{path} needs torch to be read: pip install torch, or give the .safetensors file") from None
    with decode_errors(f"{path} cannot be read by torch", "download it again", RunError):
        try:
            state: Any = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise RunError(
                f"{path} is damaged or holds more than tensors, and pickled code is never run here: give the "
                ".safetensors file, or save the state dict alone"
            ) from None
        for key in INNER:
            if isinstance(state, dict) and isinstance(state.get(key), dict):
                state = state[key]
        tensors = state.values() if isinstance(state, dict) else [None]
        if not all(isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided for tensor in tensors):
            raise RunError(f"{path} holds no state dict of dense tensors, alone or under {' or '.join(INNER)}")
        half = {torch.float16, torch.bfloat16}
        return {str(name): (t.float() if t.dtype in half else t).detach().numpy() for name, t in state.items()}


def require_all(state: dict[str, np.ndarray], wanted: dict[str, tuple[int, ...]], where: str) -> None:
    """Raises RunError unless a state dict has all names that are wanted, with their shapes, as floating point numbers,
    and no others."""
    shared = [(name, state[name], shape) for name, shape in wanted.items() if name in state]
    problems = {
        "missing": [name for name in wanted if name not in state],
        "unexpected": [name for name in state if name not in wanted],
        "of another shape": [
            f"{name} {list(array.shape)}, not {list(shape)}" for name, array, shape in shared if array.shape != shape
        ],
        "of a type that is no weight's": [
            f"{name} {array.dtype}" for name, array, _ in shared if not jnp.issubdtype(array.dtype, np.floating)
        ],
    }
    listed = [
        f"{len(names)} {kind} ({', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)})"
        for kind, names in problems.items()
        if names
    ]
    if listed:
        raise RunError(f"{where} does not hold the weights of this model: {'; '.join(listed)}")


def write(path: str, weights: dict[str, np.ndarray]) -> None:
    """Writes a .safetensors file, whole or not at all.

    Raises:
        RunError: the path has another ending or is taken, or safetensors is not installed.
        DataError: the folder cannot be written to.
    """
    if not path.endswith(".safetensors"):
        raise RunError(f"--out={path}: expected a name that ends in .safetensors")
    if files.exists(path):
        raise RunError(f"--out={path} is there already, and would be overwritten: give another name, or move it away")
    content = _safetensors().numpy.save(weights, metadata={"format": "pt"})  # readers in torch require this entry
    files.write(path, content)


def download(repository: str) -> tuple[str, dict[str, Any]]:
    """The path of a timm model's safetensors file, and its config.json, from the Hugging Face hub or its local cache.

    Args:
        repository: such as "timm/gmlp_s16_224.ra3_in1k".

    Raises:
        RunError: huggingface_hub is not installed, there is no network, or there is no such repository.
    """
    try:
        import huggingface_hub

        path = huggingface_hub.hf_hub_download(repository, "model.safetensors")
        described = huggingface_hub.hf_hub_download(repository, "config.json")
    except ImportError:
        raise RunError(f"{HUB}{repository} needs huggingface_hub, which is not installed: {INSTALL}") from None
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RunError(
            f"{HUB}{repository} cannot be downloaded ({reason}): check the name and the network, or download "
            "model.safetensors elsewhere and give it as --checkpoint"
        ) from None
    return path, json_files.read(described, dict)


def _safetensors():
    try:
        import safetensors.numpy
    except ImportError:
        raise RunError(f".safetensors files need safetensors, which is not installed: {INSTALL}") from None
    return safetensors
