"""Models of other packages compared with ours: equal sizes, and interleaved measurements. The speed
itself is not tested."""

import pytest

from gmlp_flax import tasks
from gmlp_flax.benchmarks import peers
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import parameters
from tests.failures import raised


@pytest.mark.parametrize("name", peers.PEERS)
def test_both_models_have_the_same_number_of_parameters(name):
    peer = peers.PEERS[name]
    torch = pytest.importorskip("torch")
    if peer.package == "g_mlp_pytorch":
        package = pytest.importorskip(peer.package)
    else:
        package = import_beside_torch(peer.package)
    tokens = peer.tokens[0]
    with torch.device("meta"):
        model = peer.make(package, tokens)
    theirs = sum(tensor.numel() for tensor in model.parameters())
    config = peer.ours(tokens)
    task = tasks.find(config.task)(config)
    assert theirs == parameters.count(task.shapes())


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_steps_and_forward_passes_of_a_small_peer(monkeypatch, compiled):
    torch = pytest.importorskip("torch")
    compilations = []

    def noted(model):
        compilations.append(model)
        return model

    monkeypatch.setattr(torch, "compile", noted)
    monkeypatch.setattr(peers, "import_beside_torch", lambda _: torch)
    table = torch.nn.Embedding(peers.VOCABULARY, 4)
    model = torch.nn.Sequential(table, torch.nn.Linear(4, peers.VOCABULARY))
    peer = peers.PEERS["gMLP of 12 layers"]

    def ours(tokens):
        config = peer.ours(tokens)
        config.model.update(layers=1, d_model=8, d_ffn=16)
        return config

    small = peer._replace(make=lambda *_: model, ours=ours)
    monkeypatch.setitem(peers.PEERS, "small", small)
    before = table.weight.detach().clone()
    setting = peers.Setting("small", batch=2, tokens=16)
    torch.manual_seed(0)  # one draw in 200 would mask none of the 32 tokens
    calls = peers.torch_calls(setting, compiled=compiled)
    calls["forward"]()
    assert torch.equal(table.weight, before)
    assert len(compilations) == compiled
    calls["step"]()
    changes = (table.weight - before).abs().max(1).values
    has_gradient = changes > 5e-4  # decay alone changes a row by less
    assert 0 < has_gradient.sum() <= 2 * 16
    for call in peers.our_calls(setting).values():
        call()


class Worker:
    """A process of fixed speed: our calls take 2 seconds, torch's 3, and compiled ones 1."""

    def __init__(self, make):
        seconds = {None: 2.0, False: 3.0, True: 1.0}
        compiled = make.keywords.get("compiled")
        self.calls = dict.fromkeys(("step", "forward"), seconds[compiled])

    def __enter__(self):
        return self

    def __exit__(*_):
        return None


def measure(calls, _):
    """The seconds of each call, which are the calls of the `Worker` above."""
    return {name: [seconds] for name, seconds in calls.items()}


def import_without_timm(package):
    if package == "timm":
        raise RunError("timm is not installed: pip install 'gmlp_flax[parity]'")


def test_rows_have_ratios_of_speed_and_leave_out_missing_packages(monkeypatch, capsys):
    monkeypatch.setattr(peers, "Worker", Worker)
    monkeypatch.setattr(peers, "import_beside_torch", import_without_timm)
    monkeypatch.setattr(peers, "measure", measure)
    rows = {row["name"]: row for row in peers.bench_peers(1, ["gMLP-S", "BERT-base"], "float32")}
    assert "gMLP-S, batch 8 is left out: timm is not installed" in capsys.readouterr().err
    assert len(rows) == 2 * 2 * 3
    speed = rows["BERT-base, n 512, batch 8: step"]
    assert speed["median"] == 8 / 2.0
    ratio = rows["BERT-base, n 128, batch 8: step, ours / transformers"]
    assert ratio["median"] == 1.5
    assert ratio["goal"] in (">= 1.3", ">= 1.1")  # of the processor here
    compiled = rows["BERT-base, n 128, batch 8: forward, ours / transformers, torch.compile"]
    assert compiled["median"] == 0.5


@pytest.mark.parametrize(
    ("processor", "goal"),
    [
        pytest.param("Intel(R) Xeon(R) Processor (family 6, model 167)", ">= 1.1", id="Intel"),
        pytest.param("AMD EPYC (family 25, model 17)", ">= 1.3", id="AMD"),
        pytest.param("Apple M3", ">= 1.3", id="other"),
    ],
)
def test_goal_of_an_eager_step_depends_on_the_processor(processor, goal):
    goals = peers.goals_on(processor)
    assert goals["step"].eager == goal
    assert goals["step"].compiled == ">= 1.0"
    assert goals["forward"] == (">= 1.0", ">= 1.0")


def test_unknown_models_are_refused():
    rows = peers.bench_peers(1, ["gMLP"], "float32")
    assert "'gMLP'; did you mean 'gMLP-S'" in raised(ConfigError, list, rows)
