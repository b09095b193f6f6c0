"""The page of `gmlp demo`: what its buttons do, with a stand-in for Gradio, and in Chromium with
Gradio itself."""

import functools
import importlib.util
import signal
import socket
import sys
from unittest import mock

import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax.commands import demo
from tests import preloaded
from tests.docs import browser
from tests.failures import raised

NEEDED = {
    "gradio": importlib.util.find_spec("gradio"),
    "chromium": browser.BROWSER,
    "chromedriver": browser.DRIVER,
}
MISSING = [name for name, there in NEEDED.items() if not there]
in_chromium = pytest.mark.skipif(bool(MISSING), reason=f"without {', '.join(MISSING)}")


def stand_in():
    """A Gradio that keeps the function that draws the answers as `answer`."""
    gradio = mock.MagicMock()
    gradio.render.return_value = lambda function: setattr(gradio, "answer", function)
    return gradio


def test_each_mask_has_bars_and_filters_are_shown(text_run):
    model = gmlp_flax.load(str(text_run))
    gradio = stand_in()
    demo.build(model, "it", gradio)
    gradio.answer("A [MASK] is a [MASK].")
    ((first, second),) = model.predict(["A [MASK] is a [MASK]."])
    labels = [(call.args[0], call.kwargs["label"]) for call in gradio.Label.call_args_list]
    assert [label for _, label in labels] == ["[MASK] 1", "[MASK] 2"]
    for (bars, _), ranked in zip(labels, (first, second), strict=True):
        assert bars == pytest.approx(dict(ranked), rel=1e-4)
    (figure,) = gradio.Plot.call_args.args
    assert len(figure.axes) >= model.config.model.layers
    gradio.answer("nothing")
    assert "there is no [MASK]" in gradio.Textbox.call_args.args[0]


def test_image_has_classes(image_run, tmp_path):
    model = gmlp_flax.load(str(image_run))
    gradio = stand_in()
    Image.new("L", (8, 8), 90).save(tmp_path / "a.png")
    demo.build(model, "it", gradio)
    gradio.answer(str(tmp_path / "a.png"))
    (bars,), options = gradio.Label.call_args
    assert {*bars} <= {*map(str, range(10))}
    assert len(bars) == 5
    assert options == {"label": "class"}


def test_missing_requirements_are_one_line(text_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert gmlp_flax.errors.install("demo") in raised(
        gmlp_flax.errors.RunError, demo.main, ["demo", str(text_run)]
    )


@in_chromium
def test_clicks_in_chromium(text_run, image_run, tmp_path):
    Image.new("L", (8, 8), 90).save(tmp_path / "a.png")
    for run, field, value, expected in (
        (text_run, "textarea", "A [MASK] is a [MASK].", "[MASK] 2"),
        (image_run, "input[type=file]", str(tmp_path / "a.png"), "class"),
    ):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = preloaded.start("-m", "gmlp_flax", "demo", str(run), f"--port={port}")
        try:
            line = process.stdout.readline()
            assert line.startswith(f"http://127.0.0.1:{port} shows "), process.stderr.read()
            with browser.browser(str(tmp_path / f"profile-{port}")) as page:
                page.open(line.split()[0])
                browser.wait_for(
                    functools.partial(page.run, "return document.querySelector('button.primary')"),
                    120,
                )
                page.type(field, value)
                if run == image_run:
                    browser.wait_for(
                        functools.partial(page.run, "return document.querySelector('img')"), 120
                    )
                page.click("button.primary")
                for word in (expected, "learned filters"):
                    shown = f"return document.body.innerText.includes({word!r})"
                    browser.wait_for(functools.partial(page.run, shown), 120)
        finally:
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
