"""The models of other packages beside ours: the same ones, measured in turn; how fast they are
stays untested."""

import pytest

from gmlp_flax import tasks
from gmlp_flax.benchmarks import peers
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models import parameters
from tests.failures import raised


@pytest.mark.parametrize("name", peers.PEERS)
def test_both_sides_have_the_same_number_of_parameters(name):
    peer = peers.PEERS[name]
    torch = pytest.importorskip("torch")
    package = (
        pytest.importorskip(peer.package)
        if peer.package == "g_mlp_pytorch"
        else import_beside_torch(peer.package)
    )
    with torch.device("meta"):
        theirs = sum(tensor.numel() for tensor in peer.make(package, peer.tokens[0]).parameters())
    options = peer.ours(peer.tokens[0])
    assert theirs == parameters.count(tasks.find(options.task)(options).shapes())


@pytest.mark.parametrize("compiled", [False, True])
def test_steps_and_forward_passes_of_a_small_peer(monkeypatch, compiled):
    torch = pytest.importorskip("torch")
    compilations = []
    monkeypatch.setattr(torch, "compile", lambda model: compilations.append(model) or model)
    monkeypatch.setattr(peers, "import_beside_torch", lambda _: torch)
    table = torch.nn.Embedding(peers.VOCABULARY, 4)
    model = torch.nn.Sequential(table, torch.nn.Linear(4, peers.VOCABULARY))
    peer = peers.PEERS["gMLP of 12 layers"]

    def ours(tokens):
        options = peer.ours(tokens)
        options.model.update(layers=1, d_model=8, d_ffn=16)
        return options

    monkeypatch.setitem(peers.PEERS, "small", peer._replace(make=lambda *_: model, ours=ours))
    before = table.weight.detach().clone()
    calls = peers.torch_calls("small", 2, 16, compiled=compiled)
    calls["forward"]()
    assert torch.equal(table.weight, before)
    assert len(compilations) == compiled
    calls["step"]()
    moved = (table.weight - before).abs().max(1).values > 5e-4  # decay alone moves a row by less
    assert 0 < moved.sum() <= 2 * 16
    for call in peers.our_calls("small", 2, 16).values():
        call()


def test_rows_of_a_peer(monkeypatch, capsys):
    """Our speed over theirs, of calls that took turns; what is not installed costs the other models
    nothing."""

    class Worker:
        def __init__(self, make):
            self.calls = {
                what: (make.keywords.get("compiled"), what) for what in ("step", "forward")
            }

        def __enter__(self):
            return self

        def __exit__(*_):
            return None

    def missing(package):
        if package == "timm":
            raise RunError("timm is not installed: pip install 'gmlp_flax[parity]'")

    seconds = {None: 2.0, False: 3.0, True: 1.0}
    monkeypatch.setattr(peers, "Worker", Worker)
    monkeypatch.setattr(peers, "import_beside_torch", missing)
    monkeypatch.setattr(
        peers, "measure", lambda calls, _: {name: [seconds[key[0]]] for name, key in calls.items()}
    )
    rows = {row["name"]: row for row in peers.bench_peers(1, ["gMLP-S", "BERT-base"])}
    assert "gMLP-S, batch 8 is left out: timm is not installed" in capsys.readouterr().err
    assert len(rows) == 2 * 2 * 3
    assert rows["BERT-base, n 512, batch 8: step"]["median"] == 8 / 2.0
    found = rows["BERT-base, n 128, batch 8: step, ours / transformers"]
    assert found["median"] == 1.5
    assert found["goal"] == ">= 1.3"
    assert (
        rows["BERT-base, n 128, batch 8: forward, ours / transformers, torch.compile"]["median"]
        == 0.5
    )
    assert "'gMLP'; did you mean 'gMLP-S'" in raised(
        ConfigError, list, peers.bench_peers(1, ["gMLP"])
    )
