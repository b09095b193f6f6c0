"""A stand-in for the trainer, which answers at once."""

import json
from pathlib import Path

from tests import preloaded
from tests.executables import first_lines

# Called as Python is: notes what it was called with, then does what plan.json says for the folder's
# name.
TRAINER = """{python}
import json, os, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--"))
with open("{folder}/calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
members = [word.split(":", 2)[2] for word in sys.argv if word.startswith("--member=")]
failed = ""
for workdir in members or [flags["workdir"]]:
    name = os.path.basename(workdir)
    does = json.load(open("{folder}/plan.json")).get(name, 10.0)
    print(name, "says", does)
    if does == "hangs":
        with open("{folder}/hanging.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("{folder}/hanging.part", "{folder}/hanging")
        time.sleep(60)
    if does == "cannot read":
        failed = "error: corpus.txt: not UTF-8"
    elif does == "fails":
        while "{waits}" and not os.path.exists("{folder}/hanging"):
            time.sleep(0.01)
        failed = "error: the reason of " + name
    elif does != "stops":
        os.makedirs(workdir, exist_ok=True)
        metrics = does if isinstance(does, dict) else {{"perplexity": does}}
        json.dump({{"eval": metrics}}, open(workdir + "/result.json", "w"))
if failed:
    raise SystemExit(failed)
"""
# As the command is called, with the stand-in for Python where it starts the trainer.
PROGRAM = """
import runpy, sys
sys.executable = {executable!r}
sys.argv = {argv!r}
runpy.run_module("gmlp_flax", run_name="__main__")
"""


class Trainer:
    """Ends each run with the metrics, or the perplexity, that `plan` has for its name, or does what
    stands there.

    "hangs": writes its process id to `folder/hanging` and waits; "fails": ends with an error, if
    `waits` once another hangs; "cannot read": ends with an error of data; "stops": ends well without a result. Runs that the plan does not
    name get a perplexity of 10.
    """

    def __init__(self, folder: Path, waits: bool = False):
        self.folder = folder
        self.executable = folder / "python"
        word = "waits" if waits else ""
        program = TRAINER.format(python=first_lines(), folder=folder, waits=word)
        self.executable.write_text(program)
        self.executable.chmod(0o755)
        self.plan({})

    def plan(self, does: dict[str, object]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(does))

    def sweep(self, *options: str) -> tuple[int, list[str], list[str]]:
        """Runs the command: exit code, lines of standard output and of standard error. `@` is the
        trainer's folder."""
        argv = ["gmlp", "sweep", f"--out={self.folder}/out"]
        for option in options:
            argv.append(option.replace("@", f"{self.folder}/"))
        program = PROGRAM.format(executable=str(self.executable), argv=argv)
        done = preloaded.run("-c", program)
        printed = done.stdout.splitlines()
        messages = done.stderr.splitlines()
        return done.returncode, printed, messages

    def refused(self, *options: str) -> str:
        """The one line of a command that trains nothing, less `error: `."""
        code, printed, messages = self.sweep(*options)
        assert code == 2, messages
        assert printed == [], messages
        assert len(messages) == 1, messages
        prefix, _, message = messages[0].partition("error: ")
        assert prefix == "", messages
        assert message, messages
        assert not self.calls()
        return message

    def report(self) -> dict:
        return json.loads((self.folder / "out" / "sweep.json").read_text())

    def calls(self) -> list[list[str]]:
        """The words of each call after the program's."""
        path = self.folder / "calls.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines]

    def names(self) -> list[str]:
        """The runs in the order in which they began."""
        names = []
        for call in self.calls():
            for flag in call:
                if flag.startswith("--workdir="):
                    names.append(Path(flag).name)
        return names

    def log(self, name: str) -> Path:
        return self.folder / "out" / f"{name}.log"
