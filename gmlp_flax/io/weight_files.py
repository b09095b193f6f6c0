"""Files of named weights: .safetensors, .npz, and torch's .pth, whose pickled code is never run."""

import contextlib
import os
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from gmlp_flax.errors import RunError, decode_errors, listed, require
from gmlp_flax.io import files
from gmlp_flax.io.cache import LocalCopy

Shape = tuple[int, ...]
State = dict[str, np.ndarray]  # weights by name

SAFETENSORS = ".safetensors"
ARRAYS = ".npz"
PICKLES = (".pth", ".pt", ".bin")
SUFFIXES = (SAFETENSORS, ARRAYS, *PICKLES)
# The names that Hugging Face's libraries give a file of all weights, the preferred one first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# The names that training scripts give the weights in a larger checkpoint.
INNER = ("state_dict", "model")
_AGAIN = "download it again"


def read(path: str) -> State:
    """The weights in a file, by name, in the types that they have there; torch's half precision as
    float32.

    Raises:
        RunError: the file is missing, of another kind, damaged, or holds more than tensors; or its
            library is missing.
    """
    with _local(path) as local:
        kind = _format_of(path)
        return kind.read(local)


def shapes(path: str) -> dict[str, Shape]:
    """The shapes of the weights in a file, by name, without reading the weights.

    Raises:
        RunError: as `read`.
    """
    with _local(path) as local:
        kind = _format_of(path)
        return kind.shapes(local)


def is_weight_file(path: str) -> bool:
    """Whether a path has a suffix of files of weights."""
    return path.endswith(SUFFIXES)


def require_all(state: State, wanted: Mapping[str, Shape], where: str) -> None:
    """Raises RunError unless a state dict has exactly the wanted names, with their shapes, as finite
    floating point numbers.

    Args:
        state: the weights.
        wanted: shapes by name.
        where: the source of the weights, for the message, which counts each kind of mistake and
            names the first.
    """
    present = [name for name in wanted if name in state]
    missing = [name for name in wanted if name not in state]
    unexpected = [name for name in state if name not in wanted]
    problems = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape": _misshapen(state, wanted, present),
        "of a type that weights do not have": _mistyped(state, present),
    }
    counts = []
    for kind, names in problems.items():
        if names:
            count = len(names)
            examples = listed(names)
            counts.append(f"{count} {kind} ({examples})")
    if counts:
        summary = "; ".join(counts)
        raise RunError(f"{where} does not hold the weights of this model: {summary}")
    infinite = [name for name in present if not _is_finite(state[name])]
    if infinite:
        count = len(infinite)
        raise RunError(
            f"{where}: {infinite[0]} has numbers that are not finite ({count} such parameters)"
        )


def _misshapen(state: State, wanted: Mapping[str, Shape], names: Iterable[str]) -> list[str]:
    """The names whose weights have another shape than the wanted one, with both shapes."""
    misshapen = []
    for name in names:
        shape = state[name].shape
        wanted_shape = wanted[name]
        if shape != wanted_shape:
            misshapen.append(f"{name} {list(shape)}, not {list(wanted_shape)}")
    return misshapen


def _mistyped(state: State, names: Iterable[str]) -> list[str]:
    """The names whose weights are not floating point numbers, with their types."""
    mistyped = []
    for name in names:
        array = state[name]
        if not _is_float(array):
            mistyped.append(f"{name} {array.dtype}")
    return mistyped


def _is_finite(array: np.ndarray) -> bool:
    is_finite = np.isfinite(array)
    return bool(is_finite.all())


def _is_float(array: np.ndarray) -> bool:
    return jnp.issubdtype(array.dtype, np.floating)


@contextlib.contextmanager
def _local(path: str) -> Iterator[str]:
    """The path of a file on this disk, which is a copy if it is remote."""
    if files.is_remote(path):
        with LocalCopy(path) as copy:
            yield copy.path
        return
    if not os.path.isfile(path):
        raise RunError(f"there is no file {path}: give a .safetensors, .pth or .npz file")
    yield path


class _Format(NamedTuple):
    """How files of a kind are read: their weights, or only the shapes of these."""

    read: Callable[[str], State]
    shapes: Callable[[str], dict[str, Shape]]


def _format_of(path: str) -> _Format:
    _, suffix = os.path.splitext(path)
    if suffix not in _FORMATS:
        raise RunError(
            f"{path} is of no kind that is read here: give a .safetensors, .pth or .npz file"
        )
    return _FORMATS[suffix]


# safetensors


def _read_safetensors(path: str) -> State:
    with decode_errors(f"{path} is not a safetensors file, or is damaged", _AGAIN, RunError):
        return safetensors.numpy.load_file(path)


def _safetensors_shapes(path: str) -> dict[str, Shape]:
    with (
        decode_errors(f"{path} is not a safetensors file, or is damaged", _AGAIN, RunError),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        names = file.keys()
        shape_of = {}
        for name in names:
            weights = file.get_slice(name)
            shape = weights.get_shape()
            shape_of[name] = tuple(shape)
        return shape_of


# NumPy


def _read_npz(path: str) -> State:
    _require_unpackable(path)
    with (
        _decoding_npz(path),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        return dict(arrays)


def _npz_shapes(path: str) -> dict[str, Shape]:
    _require_unpackable(path)
    shape_of = {}
    with _decoding_npz(path), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            with archive.open(member) as file:
                shape_of[name] = _shape_in_header(file)
    return shape_of


def _decoding_npz(path: str) -> contextlib.AbstractContextManager[None]:
    return decode_errors(f"{path} is damaged, or holds more than arrays", _AGAIN, RunError)


def _shape_in_header(file: Any) -> Shape:
    """The shape of an array in NumPy's format; raises ValueError if it does not hold numbers."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of NumPy's format")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python's objects")
    return shape


def _require_unpackable(path: str) -> None:
    """Raises RunError if an archive would unpack to more than weights do, which hardly compress."""
    if not zipfile.is_zipfile(path):
        return
    with decode_errors(f"{path} is damaged", _AGAIN, RunError), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    packed = os.path.getsize(path)
    most = max(files.MOST, 10 * packed)
    if unpacked > most:
        raise RunError(f"{path} would unpack to {unpacked:,} bytes, more than weights do: {_AGAIN}")


# torch


def _read_torch(path: str) -> State:
    torch = _require_torch(path)
    tensors = _load_torch(torch, path, "cpu")
    half = (torch.float16, torch.bfloat16)
    state = {}
    with decode_errors(f"{path} cannot be read by torch", _AGAIN, RunError):
        for name, tensor in tensors.items():
            if tensor.dtype in half:
                tensor = tensor.float()
            state[str(name)] = tensor.detach().numpy()
    return state


def _torch_shapes(path: str) -> dict[str, Shape]:
    torch = _require_torch(path)
    tensors = _load_torch(torch, path, "meta")  # a device that has only shapes
    shape_of = {}
    for name, tensor in tensors.items():
        shape_of[str(name)] = tuple(tensor.shape)
    return shape_of


def _require_torch(path: str) -> Any:
    return require("torch", path, "parity")


def _load_torch(torch: Any, path: str, device: str) -> Mapping[Any, Any]:
    """The tensors of a state dict, alone or within a larger checkpoint."""
    _require_unpackable(path)
    with decode_errors(f"{path} cannot be read by torch", _AGAIN, RunError):
        try:
            state: Any = torch.load(path, map_location=device, weights_only=True)
        except pickle.UnpicklingError:
            raise RunError(
                f"{path} is damaged or holds more than tensors, and pickled code is never run "
                "here: give the .safetensors file, or save the state dict alone"
            ) from None
    for key in INNER:
        if not isinstance(state, dict):
            break
        inner = state.get(key)
        if isinstance(inner, dict):
            state = inner
    if not _is_state_dict(torch, state):
        keys = " or ".join(INNER)
        raise RunError(f"{path} holds no state dict of dense tensors, alone or under {keys}")
    return state


def _is_state_dict(torch: Any, value: Any) -> bool:
    """Whether a value is a dict of dense tensors."""
    if not isinstance(value, dict):
        return False
    for tensor in value.values():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return False
    return True


_TORCH = _Format(_read_torch, _torch_shapes)
_FORMATS = {
    SAFETENSORS: _Format(_read_safetensors, _safetensors_shapes),
    ARRAYS: _Format(_read_npz, _npz_shapes),
    **dict.fromkeys(PICKLES, _TORCH),
}
