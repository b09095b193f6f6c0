"""Writes the pages that are made from the code: docs/keys.md and docs/sizes.md.

python docs/generate.py
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gmlp_flax import tasks
from gmlp_flax.config import schema
from gmlp_flax.models import blocks
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import Option, Range, options_of

FOLDER = Path(__file__).parent

KEYS = """# Every config key

**In short:** `--config.KEY=VALUE` on a command line, or `config.KEY = VALUE` in a config file. A config has the keys of
every run, and those that its task and its block declare: [`config.model.heads`](#transformer) exists
if the block has heads.

```bash
gmlp train --config=quickstart_text --workdir=runs/text --config.optimizer.learning_rate=1e-3 --config.model.layers=6
gmlp train --config=quickstart_text --help_config      # the keys of this config, with its values
gmlp train --help_config                               # all of them, as below
```

A key that does not exist, or a value out of its range, ends a command with one line, before any data is read. A block
or a task of your own [declares its own keys](extending.md). `docs/generate.py` writes this page from the code.
"""

SIZES = """# Published sizes

`gmlp sizes` builds every published configuration from shapes and counts it. Sources are tables of the gMLP
paper or the arXiv numbers of others. If one prints multiply-adds, two operations each, its figure stands as 2x:

```
{printed}```

`docs/generate.py` writes this page from the command's output.
"""

# What the range of an option says if the option names none, by the type of its default.
ANY = {bool: "True, False", int: "an integer", float: "a number", str: "text", tuple: "a tuple"}


def words(option: Option) -> str:
    """The values that make sense."""
    if isinstance(option.values, Range):
        return option.values.words
    values = ", ".join(f"`{value or repr(value)}`" for value in option.values or ())
    return values or ANY[type(option.default)]


def table(found: Mapping[str, Option]) -> str:
    """A Markdown table of options."""
    rows = [(f"`{name}`", f"`{key.default!r}`", words(key), key.comment) for name, key in found.items()]
    lines = [("key", "default", "range", "meaning"), ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def sections() -> Iterator[tuple[int, str, Mapping[str, Option] | str]]:
    """The level of each heading, its words, and the options or the sentence below it."""
    yield 2, "Every run", "The keys of the first table stand alone, as in `config.steps`; the others are in groups."
    groups = dict.fromkeys(name.rpartition(".")[0] for name in schema.COMMON)
    for group in groups:
        found = {name: option for name, option in schema.COMMON.items() if name.rpartition(".")[0] == group}
        yield 3, group or "general", found
    yield 2, "By task", f"`config.task` chooses one; `{schema.COMMON[schema.TASK].default}` is the default."
    for task in tasks.TASKS:
        yield 3, task, schema.of_task(task)
    yield 2, "By block", f"`config.model.block` chooses one; `{schema.COMMON[schema.BLOCK].default}` is the default."
    shared = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    yield 3, "every block", shared
    for block in blocks.BLOCKS:
        yield 3, block, {name: option for name, option in schema.of_block(block).items() if option != shared.get(name)}


def keys_page() -> str:
    """docs/keys.md."""
    bodies = [(level, title, body if isinstance(body, str) else table(body)) for level, title, body in sections()]
    return "\n".join([KEYS, *(f"{'#' * level} {title}\n\n{body.rstrip()}\n" for level, title, body in bodies)])


def sizes_page(printed: str) -> str:
    """docs/sizes.md, from what `gmlp sizes` prints."""
    return SIZES.format(printed=printed)


if __name__ == "__main__":
    (FOLDER / "keys.md").write_text(keys_page())
    done = subprocess.run([sys.executable, "-m", "gmlp_flax", "sizes"], capture_output=True, text=True, check=True)
    (FOLDER / "sizes.md").write_text(sizes_page(done.stdout))
