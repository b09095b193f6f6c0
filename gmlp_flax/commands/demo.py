"""Serves a page on which a model fills in masks, continues a text or classifies an image.

    gmlp demo runs/text
    gmlp demo hf-hub:timm/gmlp_s16_224.ra3_in1k --port=7861

It accepts whatever gmlp_flax.load accepts. Only this machine can open the page, which also shows
`gmlp draw filters`. Needs the extra demo.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError, UserError, require
from gmlp_flax.processes import output
from gmlp_flax.tasks.inference.prediction import GeneratingPredictor, Settings

if TYPE_CHECKING:
    from gmlp_flax.training.model import Model

HOST = "127.0.0.1"


def main(argv: list[str]) -> None:
    """Serves the page until Ctrl-C."""
    gradio = require("gradio", "gmlp demo", "demo")
    from gmlp_flax.api import factory

    values = flags.FLAGS
    source = argv[1]
    port = values.port
    page = build(factory.load(source, values.checkpoint), source, gradio)
    options: dict[str, Any] = {
        "ssr_mode": False,
        "prevent_thread_lock": True,
        "quiet": True,
        "footer_links": [],
    }
    try:
        page.launch(server_name=HOST, server_port=port, share=False, **options)
    except OSError as error:
        raise RunError(f"--port={port} cannot be used ({error}): give another one") from None
    print(f"http://{HOST}:{port} shows {source}; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    # a thread of the server that is inside JAX as Python ends would abort the process
    output.end_at_once(0)


def build(model: Model, name: str, gradio: Any) -> Any:
    """The page, a `gradio.Blocks`."""
    from gmlp_flax.analysis import filters

    task = model.config.task
    with gradio.Blocks(title=f"gmlp demo: {name}", analytics_enabled=False) as page:
        gradio.Markdown(f"## {name}: {model.config.model.block}, {task}")
        with gradio.Row():
            with gradio.Column():
                if model.transform:
                    field = gradio.Image(type="filepath", label="image")
                else:
                    words = task.replace("_", " ")
                    field = gradio.Textbox(lines=3, label="text", info=words)
                _add_answers(model, field, gradio)
                if isinstance(model.predictor, GeneratingPredictor):
                    _add_continuation(model, field, gradio)
            with contextlib.suppress(RunError):  # the model has no filters
                gradio.Plot(filters.figure(model), label="learned filters")
    return page


def _add_answers(model: Model, field: Any, gradio: Any) -> None:
    """A button that shows the most likely answers to what a field holds."""
    predictor = model.predictor
    button = gradio.Button("Predict", variant="primary")

    @gradio.render(inputs=field, triggers=[button.click])
    def predict(text: str | None) -> None:
        """A bar for each of the most likely answers."""
        settings = Settings(truncate=True)
        [answer] = predictor.answers(model.params, [text or ""], settings)
        if answer.note:
            gradio.Textbox(answer.note, label="note")
        if answer.error:
            gradio.Textbox(str(answer.error), label="note")
        for number, candidates in enumerate(answer.predictions, start=1):
            gradio.Label(dict(candidates), label=predictor.label(number) or "class")


def _add_continuation(model: Model, field: Any, gradio: Any) -> None:
    """A button that continues the text that a field holds."""
    tokens_slider = gradio.Slider(1, 500, 100, step=1, label="tokens")
    temperature_slider = gradio.Slider(0, 2, 0.8, label="temperature")
    text = gradio.Textbox(lines=6, label="continued")

    def continued(prompt: str, tokens: float, temperature: float) -> str:
        try:
            [continuation] = model.generate(
                prompt, tokens=int(tokens), temperature=float(temperature)
            )
        except UserError as error:
            return f"error: {error}"
        return prompt + continuation

    button = gradio.Button("Continue")
    button.click(continued, [field, tokens_slider, temperature_slider], text)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("checkpoint", "best", "latest, best, or a step of a run.")
    flags.DEFINE_integer("port", 7860, f"The port at {HOST}.", lower_bound=1, upper_bound=65535)
    cli.run(main, "RUN_OR_MODEL")
