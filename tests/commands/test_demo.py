"""The page of `gmlp demo`: the effects of its buttons, with a stand-in for Gradio, and in Chromium
with Gradio itself."""

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

REQUIREMENTS = {
    "gradio": importlib.util.find_spec("gradio"),
    "chromium": browser.BROWSER,
    "chromedriver": browser.DRIVER,
}
MISSING = [name for name, found in REQUIREMENTS.items() if not found]
in_chromium = pytest.mark.skipif(bool(MISSING), reason=f"without {', '.join(MISSING)}")


def stand_in():
    """A stand-in for Gradio that stores the function that renders the answers as `answer`."""
    gradio = mock.MagicMock()

    def render(function):
        gradio.answer = function

    gradio.render.return_value = render
    return gradio


def test_each_mask_has_bars_and_filters_are_shown(text_run):
    model = gmlp_flax.load(str(text_run))
    gradio = stand_in()
    demo.build(model, "it", gradio)
    gradio.answer("A [MASK] is a [MASK].")
    [predictions] = model.predict(["A [MASK] is a [MASK]."])
    labels = []
    for call, ranked in zip(gradio.Label.call_args_list, predictions, strict=True):
        [bars] = call.args
        assert bars == pytest.approx(dict(ranked), rel=1e-4)
        labels.append(call.kwargs["label"])
    assert labels == ["[MASK] 1", "[MASK] 2"]
    [figure] = gradio.Plot.call_args.args
    assert len(figure.axes) >= model.config.model.layers
    gradio.answer("nothing")
    [text] = gradio.Textbox.call_args.args
    assert "there is no [MASK]" in text


def test_image_has_classes(image_run, tmp_path):
    model = gmlp_flax.load(str(image_run))
    gradio = stand_in()
    Image.new("L", (8, 8), 90).save(tmp_path / "a.png")
    demo.build(model, "it", gradio)
    gradio.answer(str(tmp_path / "a.png"))
    [bars], options = gradio.Label.call_args
    assert set(bars) <= set("0123456789")
    assert len(bars) == 5
    assert options == {"label": "class"}


def test_missing_requirements_are_one_line(text_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    message = raised(gmlp_flax.errors.RunError, demo.main, ["demo", str(text_run)])
    assert gmlp_flax.errors.install("demo") in message


def wait_for_script(page, script: str) -> None:
    """Waits until a script on the page returns something true."""
    browser.wait_for(functools.partial(page.run, f"return {script}"), 120)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@in_chromium
@pytest.mark.parametrize(
    ("run", "field", "expected"),
    [
        ("text_run", "textarea", "[MASK] 2"),
        ("image_run", "input[type=file]", "class"),
    ],
)
def test_clicks_in_chromium(request, tmp_path, run, field, expected):
    image = tmp_path / "a.png"
    Image.new("L", (8, 8), 90).save(image)
    value = str(image) if run == "image_run" else "A [MASK] is a [MASK]."
    port = free_port()
    folder = request.getfixturevalue(run)
    process = preloaded.start("-m", "gmlp_flax", "demo", str(folder), f"--port={port}")
    try:
        line = process.stdout.readline()
        assert line.startswith(f"http://127.0.0.1:{port} shows "), process.stderr.read()
        with browser.browser(str(tmp_path / "profile")) as page:
            page.open(line.split()[0])
            wait_for_script(page, "document.querySelector('button.primary')")
            page.type(field, value)
            if run == "image_run":
                wait_for_script(page, "document.querySelector('img')")
            page.click("button.primary")
            for words in (expected, "learned filters"):
                wait_for_script(page, f"document.body.innerText.includes({words!r})")
    finally:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
