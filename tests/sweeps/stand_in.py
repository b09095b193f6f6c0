"""A stand-in for the trainer, which answers at once."""

import json
import sys
from pathlib import Path

# Called as Python is: notes what it was called with, then does what plan.json says for the folder's name.
TRAINER = """#!{python}
import json, os, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--"))
with open("{folder}/calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
name = os.path.basename(flags["workdir"])
does = json.load(open("{folder}/plan.json")).get(name, 10.0)
print(name, "says", does)
if does == "hangs":
    with open("{folder}/hanging.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename("{folder}/hanging.part", "{folder}/hanging")
    time.sleep(60)
if does == "fails":
    while "{waits}" and not os.path.exists("{folder}/hanging"):
        time.sleep(0.01)
    raise SystemExit("error: the reason of " + name)
if does != "stops":
    os.makedirs(flags["workdir"], exist_ok=True)
    metrics = does if isinstance(does, dict) else {{"perplexity": does}}
    json.dump({{"eval": metrics}}, open(flags["workdir"] + "/result.json", "w"))
"""


class Trainer:
    """Ends each run with the metrics, or the perplexity, that `plan` has for its name, or does what stands there.

    "hangs": writes its process id to `folder/hanging` and waits; "fails": ends with an error, if `waits` once
    another hangs; "stops": ends well without a result. Runs that the plan does not name get a perplexity of 10.
    """

    def __init__(self, folder: Path, waits: bool = False):
        self.folder, self.executable = folder, folder / "python"
        self.executable.write_text(TRAINER.format(python=sys.executable, folder=folder, waits="waits" * waits))
        self.executable.chmod(0o755)
        self.plan({})

    def plan(self, does: dict[str, object]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(does))

    def calls(self) -> list[list[str]]:
        """The words of each call after the program's."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def names(self) -> list[str]:
        """The runs in the order in which they began."""
        return [Path(flag).name for call in self.calls() for flag in call if flag.startswith("--workdir=")]

    def log(self, name: str) -> Path:
        return self.folder / "out" / f"{name}.log"
