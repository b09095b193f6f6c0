"""Files of named weights: .safetensors, .npz, torch's .pth (never pickled code), and the Hugging
Face hub."""

import os
import pickle
import zipfile
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from gmlp_flax.errors import RunError, decode_errors, listed, require
from gmlp_flax.io import files, json_files
from gmlp_flax.io.cache import LocalCopy

HUB = "hf-hub:"  # what stands before the name of a repository
# as the hub's libraries name them
WEIGHTS, CONFIG = ("model.safetensors", "pytorch_model.bin"), "config.json"
PICKLES = (".pth", ".pt", ".bin")
# names that training scripts give the weights in a larger checkpoint
INNER = ("state_dict", "model")
HUB_SECONDS = 4  # until a hub that is silent counts as unreachable


def read(path: str) -> dict[str, np.ndarray]:
    """The weights in a file, by name, in the types that they have there; torch's half precision as
    float32.

    Raises:
        RunError: the file is missing, of another kind, damaged, or holds more than tensors; or its
            library is missing.
    """
    if files.is_remote(path):
        with LocalCopy(path) as copy:
            return read(copy.path)
    if not os.path.isfile(path):
        raise RunError(f"there is no file {path}: give a .safetensors, .pth or .npz file")
    if path.endswith((".npz", *PICKLES)) and zipfile.is_zipfile(path):
        with (
            decode_errors(f"{path} is damaged", "download it again", RunError),
            zipfile.ZipFile(path) as packed,
        ):
            unpacked = sum(member.file_size for member in packed.infolist())
            if unpacked > max(files.MOST, 10 * os.path.getsize(path)):  # weights hardly compress
                raise RunError(
                    f"{path} would unpack to {unpacked:,} bytes, more than weights do: download it again"
                )
    if path.endswith(PICKLES):
        return _read_torch(path)
    if path.endswith(".npz"):
        what = f"{path} is damaged, or holds more than arrays"
        with decode_errors(what, "download it again", RunError), open(path, "rb") as file:
            return dict(np.load(file, allow_pickle=False))
    if not path.endswith(".safetensors"):
        raise RunError(
            f"{path} is of no kind that is read here: give a .safetensors, .pth or .npz file"
        )
    with decode_errors(
        f"{path} is no safetensors file, or is damaged", "download it again", RunError
    ):
        return safetensors.numpy.load_file(path)


def read_folder(path: str) -> tuple[dict[str, np.ndarray], dict[str, Any], str]:
    """A model as Hugging Face's libraries save it, from its folder, the file of its weights, or the
    hub: the weights as `read` gives them, what config.json beside them says (empty if there is
        none), and the path of the weights.

    Raises:
        RunError, DataError: there are no weights, or a file cannot be read or downloaded.
    """
    if path.startswith(HUB):
        repository = path.removeprefix(HUB)
        commit = commit_of(fetch(repository, CONFIG))
        path = fetch(repository, WEIGHTS[0], commit, optional=True) or fetch(
            repository, WEIGHTS[1], commit
        )
    elif files.is_folder(path):
        found = [at for name in WEIGHTS if files.exists(at := files.join(path, name))]
        if not found:
            raise RunError(
                f"{path} has no {' and no '.join(WEIGHTS)}: give the folder of one model, not in shards"
            )
        path = found[0]
    described = files.join(os.path.dirname(path), CONFIG)
    return read(path), json_files.read(described, dict) if files.exists(described) else {}, path


def _read_torch(path: str) -> dict[str, np.ndarray]:
    torch: Any = require("torch", path, "parity")
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
        tensors: Any = state.values() if isinstance(state, dict) else [None]
        if not all(
            isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
            for tensor in tensors
        ):
            raise RunError(
                f"{path} holds no state dict of dense tensors, alone or under {' or '.join(INNER)}"
            )
        half = {torch.float16, torch.bfloat16}
        return {
            str(name): (t.float() if t.dtype in half else t).detach().numpy()
            for name, t in state.items()
        }


def require_all(
    state: dict[str, np.ndarray], wanted: dict[str, tuple[int, ...]], where: str
) -> None:
    """Raises RunError unless a state dict has all names that are wanted, with their shapes, as
    floating point numbers, and no others."""
    shared = [(name, state[name], shape) for name, shape in wanted.items() if name in state]
    problems = {
        "missing": [name for name in wanted if name not in state],
        "unexpected": [name for name in state if name not in wanted],
        "of another shape": [
            f"{name} {list(array.shape)}, not {list(shape)}"
            for name, array, shape in shared
            if array.shape != shape
        ],
        "of a type that is no weight's": [
            f"{name} {array.dtype}"
            for name, array, _ in shared
            if not jnp.issubdtype(array.dtype, np.floating)
        ],
    }
    if found := [
        f"{len(names)} {kind} ({listed(names)})" for kind, names in problems.items() if names
    ]:
        raise RunError(f"{where} does not hold the weights of this model: {'; '.join(found)}")


def fetch(repository: str, name: str, revision: str | None = None, optional: bool = False) -> str:
    """The path of a file of a repository on the Hugging Face hub, in the local cache.

    Args:
        repository: such as "timm/gmlp_s16_224.ra3_in1k".
        name: of the file.
        revision: a branch or a commit. If the cache has the file of a commit, the hub is not asked.
            By default it is "main", for which the hub is asked and, if it does not answer, the
            cache.
        optional: whether "" is returned if neither the cache nor a hub that answers has it.

    Raises:
        RunError: huggingface_hub is not installed, there is no network, or there is no such
            repository or file.
    """
    huggingface_hub = require("huggingface_hub", f"{HUB}{repository}", "weights")
    try:
        if not isinstance(
            huggingface_hub.try_to_load_from_cache(repository, name, revision=revision), str
        ):
            try:  # by itself, a download from a hub that does not answer is tried again for minutes
                url = huggingface_hub.hf_hub_url(repository, name, revision=revision)
                huggingface_hub.get_hf_file_metadata(url, timeout=HUB_SECONDS)
            except Exception:
                if optional:
                    return ""
                raise
        return huggingface_hub.hf_hub_download(
            repository, name, revision=revision, etag_timeout=HUB_SECONDS
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise RunError(
            f"{name} of {HUB}{repository} cannot be downloaded ({reason}): check the name and the network, or download "
            "the files elsewhere and give their folder"
        ) from None


def commit_of(path: str) -> str:
    """The commit of a file that `fetch` has found."""
    return os.path.basename(os.path.dirname(path))
