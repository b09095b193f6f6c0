"""Tiny versions of Long Range Arena's configs, from files to predictions."""

import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax.data import listops
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.inference.prediction import Settings
from gmlp_flax.training import loop, pretrained
from tests.failures import raised
from tests.tasks import by_hand


def tiny(name: str, data, **options):
    """A config of a few steps."""
    config = config_lib.from_file(f"configs/lra_{name}.py", "gmlp,scale=small")
    config.model.update(layers=1, d_model=8, d_ffn=16)
    config.model.update(options)
    config.steps = 3
    config.batch_size = 4
    config.optimizer.warmup = 1
    config.log.every = 1
    config.eval.every = 0
    config.eval.batch_size = 0
    config.data.train = str(data)
    return config


@pytest.mark.slow
def test_listops_are_parsed_and_learned(tmp_path):
    grammar = listops.Grammar(3, 40)
    listops.make(str(tmp_path / "made"), (40, 12, 8), grammar)
    config = tiny("listops", tmp_path / "made", length=48)
    run = str(tmp_path / "run")
    result = loop.train(config, run)
    assert result["eval"]["examples"] == 12
    expected_loss = pytest.approx(np.log(10), rel=0.2)
    assert result["eval"]["loss"] == expected_loss
    trained = pretrained.load(run)
    trees = ["[MAX 4 3 [MIN 2 3 ] 1 0 ]", "( ( ( [SM 2 ) 3 ) ] )"]
    predictor = trained.task.predictor
    settings = Settings(top=10)
    found = predictor.predict(trained.params, trees, settings)
    for [candidates] in found:
        names = set(by_hand.names_of(candidates))
        assert names == set("0123456789")
        shares = by_hand.shares_of(candidates)
        assert sum(shares) == pytest.approx(1, abs=1e-5)
    message = raised(DataError, predictor.predict, trained.params, ["MAX 1 2"])
    assert "the symbol 'MAX'; expected one of" in message


@pytest.mark.slow
def test_pairs_of_papers(tmp_path):
    """The papers are encoded separately. Their order in the pair counts; the rest of the batch does
    not."""
    papers = tmp_path / "papers"
    papers.mkdir()
    topics = ("speech", "parsing")
    counts = (("train", 24), ("eval", 9))
    for part, count in counts:
        lines = []
        for number in range(count):
            label = number % 2
            first = f"about parsing {number}"
            topic = topics[label]
            second = f"about {topic} {number} {part}"
            lines.append(f"{label}.0\tP{number}\tQ{number}\t{first}\t{second}\n")
        content = "".join(lines)
        (papers / f"new_aan_pairs.{part}.tsv").write_text(content)
    options = tiny("retrieval", papers, length=32)
    result = loop.train(options, str(tmp_path / "run"))
    assert result["eval"]["examples"] == 9
    assert 0.5 < result["eval"]["loss"] < 2
    trained = pretrained.load(str(tmp_path / "run"))
    kernel = trained.params["head"]["first"]["kernel"]
    assert kernel.shape == (32, 32)
    assert "segments" not in trained.params
    task = trained.task
    run_files = RunFiles(trained.folder)
    data = task.Data(trained.config, run_files)
    examples = data.examples("train")
    first = examples[0]["tokens"]
    second = examples[1]["tokens"]
    assert first.shape == (2, 32)
    shape = task.example_shapes()["tokens"][0]
    assert shape == (2, 32)
    texts = [task.tokenizer.decode(row) for row in second]
    assert texts == ["about parsing 1", "about parsing 1 train"]
    [one], [reverse] = task.predictor.predict(trained.params, ["a\tb", "b\ta"])
    assert dict(one) != dict(reverse)


@pytest.mark.slow
def test_paths_in_pixels(tmp_path):
    """Images of 8 x 8 in Pathfinder's layout."""
    rng = np.random.default_rng(0)
    paths = tmp_path / "paths"
    (paths / "metadata").mkdir(parents=True)
    (paths / "imgs" / "0").mkdir(parents=True)
    lines = []
    for number in range(30):
        name = f"sample_{number}.png"
        label = number % 2
        lines.append(f"imgs/0 {name} {number} {label} 1 14\n")
        pixels = rng.integers(0, 256, (8, 8), np.uint8)
        image_path = paths / "imgs" / "0" / name
        Image.fromarray(pixels).save(image_path)
    content = "".join(lines)
    (paths / "metadata" / "0.npy").write_text(content)
    options = tiny("pathfinder", paths, image_size=(8, 8))
    result = loop.train(options, str(tmp_path / "run"))
    assert 3 <= result["eval"]["examples"] <= 12
    assert set(result["eval"]) >= {"top1", "loss"}
    trained = pretrained.load(str(tmp_path / "run"))
    table = trained.params["stem"]["table"]
    assert table.shape == (256, 8)
    sample = paths / "imgs" / "0" / "sample_3.png"
    image = str(sample)
    predictor = trained.task.predictor
    [predictions] = predictor.predict(trained.params, [image])
    [candidates] = predictions
    assert set(by_hand.names_of(candidates)) == {"apart", "joined"}


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        (
            "image",
            {"model.channels": 3},
            "set config.model.channels=1 and config.model.patch_size=(1,1)",
        ),
        ("listops", {"model.pairs": "apart"}, "the task listops has no pairs: set it to 'joined'"),
        (
            "retrieval",
            {"model.pooler": True},
            "whose head has other layers: set model.pooler to False",
        ),
        # mixed pixels have no vector
        ("image", {"augment.cutmix": 1.0}, "set config.augment.mixup=0 and cutmix=0"),
    ],
)
def test_contradicting_options_are_refused(task, change, message):
    config = config_lib.from_file(f"configs/lra_{task}.py", "gmlp,scale=small")
    config.update_from_flattened_dict(change)
    assert message in raised(ConfigError, config_lib.validate, config)
