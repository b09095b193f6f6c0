"""Standard input and images for `gmlp predict`."""

import contextlib
import io
import random
import sys

from absl import flags

from gmlp_flax.api import factory
from gmlp_flax.commands import predict
from gmlp_flax.errors import ConfigError
from gmlp_flax.training import loop
from tests.fuzz import config as configs
from tests.fuzz import images
from tests.fuzz.damage import damaged

LINES = (
    *(
        "",
        " ",
        "\t",
        "plain",
        "The [MASK] is used.",
        "a\tb [MASK]",
        "é [MASK] \u2028 [MASK]",
        "\0[MASK]\0",
        "\ufeff[MASK]",
    ),
    *('{"input": "A [MASK]"}', '{"input": 3}', "{", '{"input": ' * 9),
    *("[MASK]" * 200, "[MASK] " + "word " * 2000, "x" * 100_000 + "[MASK]"),
    *("[PAD][CLS][SEP][MASK]", "<s> </s> <unk> [MASK]"),
)
SAMPLING = {
    "tokens": ("0", "1", "40", "-1"),
    "temperature": ("0", "1e-30", "1e30", "nan", "-1"),
    "top_k": ("0", "1", "1000000", "-1"),
    "top_p": ("0", "1e-30", "1", "2", "nan"),
    "seed": ("0", "-1", "2147483648"),
}


def make(folder):
    folders = {}
    for task in ("masked_lm", "causal_lm", "image_classification"):
        options = configs.small(task, "gmlp", folder)
        options.steps = 2
        if task == "causal_lm":
            options.model.causal = True
        with contextlib.redirect_stderr(io.StringIO()):
            loop.train(options, str(folder / task))
        folders[task] = str(folder / task)
    if "workdir" not in flags.FLAGS:
        predict.define_flags()
    pictures = list(images.whole_files())
    loaded = {path: factory.load(path) for path in folders.values()}
    factory.load = lambda path, which, **_: loaded[path]

    def check(rng: random.Random) -> None:
        task = rng.choice([*folders])
        words = []
        if task == "image_classification":
            path = folder / "input.png"
            path.write_bytes(damaged(rng.choice(pictures), rng))
            odd = rng.choice(("", str(folder), "/dev/zero", "missing", "a\0b", "\ud800"))
            words = [str(path)] if rng.random() < 0.9 else [odd]
            text = b""
        else:
            text = "\n".join(rng.choices(LINES, k=2)).encode("utf-8", "replace")
            text = damaged(text, rng) if rng.random() < 0.6 else text
        options = [f"--workdir={folders[task]}", f"--batch_size={rng.choice((1, 4))}"]
        options += [name for name in ("--json", "--truncate") if rng.random() < 0.3]
        if task != "causal_lm" or rng.random() < 0.5:
            options.append(f"--top={rng.choice((1, 5, 10**6))}")
        elif rng.random() < 0.8:
            name, values = rng.choice([*SAMPLING.items()])
            options.append(f"--{name}={rng.choice(values)}")
        else:
            options.append("--tokens=20")
        for name in ("top", "json", "truncate", "batch_size", *SAMPLING):
            flags.FLAGS[name].unparse()
            flags.FLAGS[name].present = 0
        try:
            flags.FLAGS(["predict", *options])
        except flags.Error as error:  # the command prints it as one line
            raise ConfigError(str(error)) from error
        before = sys.stdin, sys.stdout, sys.stderr
        try:
            sys.stdin = io.TextIOWrapper(io.BytesIO(text), "utf-8")
            sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
            sys.stderr = io.StringIO()
            with contextlib.suppress(SystemExit):  # an input failed, with a message
                predict.main(["predict", *words])
        finally:
            sys.stdin, sys.stdout, sys.stderr = before

    return check
