"""The same class is the same class, whoever brings it: models trained on each kind of source score
the same images of each other kind the same, or refuse them."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.api import examples
from gmlp_flax.errors import UserError
from gmlp_flax.tasks import data_config
from gmlp_flax.tasks.data import RunFiles
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.image_data import ImageData
from gmlp_flax.training import model as model_lib
from tests.failures import raised

COUNT = 12  # classes, so that the order of letters is not that of sizes
SIZE = 8


class Images:
    """Images whose brightness is their class, `levels` of which names[level] is the name."""

    def __init__(self, names, labels):
        self.names = names
        self.labels = np.asarray(labels)
        levels = (self.labels * 255 // (COUNT - 1)).astype(np.uint8)
        self.pixels = np.broadcast_to(levels[:, None, None, None], (len(labels), SIZE, SIZE, 1))

    def named(self):
        return [self.names[label] for label in self.labels]


NUMBERS = [str(number) for number in range(COUNT)]
WORDS = [f"w{(5 * number) % COUNT:02}" for number in range(COUNT)]  # not in the order of letters


def write_png(path: Path, pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(pixels[..., 0])).save(path)


def folders(images, root):
    for index, name in enumerate(images.named()):
        write_png(root / name / f"{index}.png", images.pixels[index])
    return str(root)


def table(images, root):
    lines = ["file_name,label"]
    for index, name in enumerate(images.named()):
        write_png(root / f"{index}.png", images.pixels[index])
        lines.append(f"{index}.png,{name}")
    (root / "labels.csv").write_text("\n".join(lines))
    return str(root)


def npz(images, root):
    path = f"{root}.npz"
    np.savez(path, images=images.pixels, labels=np.array(images.named()))
    return path


def _encoded(images, root):
    cells = []
    for index, pixels in enumerate(images.pixels):
        path = root.parent / f"{root.name}_png" / f"{index}.png"
        write_png(path, pixels)
        cells.append({"bytes": path.read_bytes(), "path": None})
    return cells


def parquet(images, root):
    rows = pyarrow.table({"image": _encoded(images, root), "label": images.named()})
    pyarrow.parquet.write_table(rows, f"{root}.parquet")
    return f"{root}.parquet"


def declared_parquet(images, root):
    """As the package datasets writes it: labels are positions in names that the file declares."""
    rows = pyarrow.table({"image": _encoded(images, root), "label": images.labels})
    feature = {"label": {"names": images.names, "_type": "ClassLabel"}}
    described = json.dumps({"info": {"features": feature}})
    rows = rows.replace_schema_metadata({"huggingface": described})
    pyarrow.parquet.write_table(rows, f"{root}.parquet")
    return f"{root}.parquet"


class _Feature:
    def __init__(self, names):
        self.names = names


class _Dataset(list):
    """What is read of a datasets.Dataset."""


def declared_rows(images, root):
    rows = []
    for pixels, label in zip(images.pixels, images.labels, strict=True):
        rows.append({"image": pixels, "label": int(label)})
    data = _Dataset(rows)
    data.features = {"label": _Feature(images.names)}
    return data


def arrays(images, root):
    return (images.pixels, np.array(images.named()))


def numbers(images, root):
    """Positions without names."""
    return (images.pixels, images.labels)


def pairs(images, root):
    return iter(list(zip(images.pixels, images.named(), strict=True)))


SOURCES = {
    "folders": folders,
    "table": table,
    "npz": npz,
    "parquet": parquet,
    "declared parquet": declared_parquet,
    "datasets": declared_rows,
    "arrays of names": arrays,
    "arrays of numbers": numbers,
    "iterable": pairs,
}


def images_of(names, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(COUNT), 3))
    return Images(names, labels)


def small_config():
    config = config_lib.from_file("quickstart_image")
    config.model.update(image_size=(SIZE, SIZE), patch_size=(4, 4), layers=1, d_model=16, d_ffn=16)
    config.data.heldout_share = 0.4
    return config


def perfect_model(data, folder):
    """A model with the classes that a run on these data has, which answers with the class whose
    level an image's brightness is."""
    config = small_config()
    keys = examples.store({"train": data}, config, str(folder / "stored"))
    config.update_from_flattened_dict(keys)
    assets = ImageData(config, RunFiles()).assets()
    config.data.train = data_config.EMBEDDED
    task = ImageClassification(config_lib.resolve(config).config, assets)
    params = task.init(jax.random.key(0))
    # The states of one grey have the same norm for each level, so that each is nearest to itself.
    names = WORDS if set(task.classes) == set(WORDS) else NUMBERS
    levels = Images(names, [names.index(name) for name in task.classes])
    states = np.asarray(task.features(params, jnp.asarray(levels.pixels), pool="mean"))
    params["head"]["kernel"] = jnp.asarray(states.T)
    return model_lib.place(task, params)


NAMES = {"numbers": NUMBERS, "words": WORDS}


def expected(names, trained, scored):
    """Positions without names are the names of numbers, and of nothing else."""
    without_names = [trained, scored].count("arrays of numbers")
    return names == "numbers" or without_names in (0, 2)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("trained", SOURCES)
def test_every_source_scored_by_every_other(tmp_path, names, trained):
    train = SOURCES[trained](images_of(NAMES[names], 0), tmp_path / "train")
    model = perfect_model(train, tmp_path)
    order = "by size" if trained == "arrays of numbers" else names
    wanted = {"by size": NUMBERS, "numbers": NUMBERS, "words": sorted(WORDS)}[order]
    is_declared = trained in ("declared parquet", "datasets")
    assert model.classes == tuple(NAMES[names] if is_declared else wanted)
    heldout = images_of(NAMES[names], 1)
    for scored, source in SOURCES.items():
        data = source(heldout, tmp_path / f"heldout_{scored}")
        if expected(names, trained, scored):
            assert gf.evaluate(model, data)["top1"] == 1.0, scored
        else:
            assert "class" in raised(UserError, gf.evaluate, model, data), scored
    # a consumer of logits takes their position as the class
    predicted = np.asarray(model.logits(heldout.pixels)).argmax(-1)
    if expected(names, trained, "folders"):
        assert [model.classes[position] for position in predicted] == heldout.named()


def test_labels_that_are_one_off_are_refused(tmp_path):
    """Classes 1 to 12 and labels 0 to 11: most would be scored as their neighbour."""
    images = images_of([str(number) for number in range(1, COUNT + 1)], 0)
    config = small_config()
    keys = examples.store({"train": arrays(images, tmp_path)}, config, str(tmp_path / "stored"))
    config.update_from_flattened_dict(keys)
    assets = ImageData(config, RunFiles()).assets()
    config.data.train = data_config.EMBEDDED
    task = ImageClassification(config_lib.resolve(config).config, assets)
    model = model_lib.place(task, task.init(jax.random.key(0)))
    message = raised(UserError, gf.evaluate, model, numbers(images, tmp_path))
    assert "'0'" in message
    assert "'1', '2', '3'" in message
