"""The order of the rooms, written once: no file imports a room above its own, and no imports run in
a circle."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

import gmlp_flax

PACKAGE = Path(gmlp_flax.__file__).parent
# From the ground up. Rooms of one line do not know each other.
ORDER = (
    ("errors",),
    ("registry",),
    ("options",),
    ("io",),
    ("processes",),
    ("models", "data", "checkpoints"),
    ("tasks",),
    ("config",),
    ("weights",),
    ("training",),
    ("planning",),
    ("sweeps", "analysis"),
    ("paper", "launching"),
    ("reports", "interop"),
    ("api",),
    ("commands",),
)
FLOORS = {room: floor for floor, rooms in enumerate(ORDER) for room in rooms}
FACES = {
    "gmlp_flax",
    "gmlp_flax.layers",
    "gmlp_flax.__main__",
    "gmlp_flax.train",
    "gmlp_flax.evaluate",
    "gmlp_flax.predict",
}  # the ways in
NAME = re.compile(r"(gmlp_flax(?:\.\w+)+)(?::\w+)?")


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE).with_suffix("")
        parts = ["gmlp_flax", *relative.parts]
        if parts[-1] == "__init__":
            parts.pop()
        names[".".join(parts)] = path
    return names


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of ours that a file imports, at its top, within functions, or by a string that is
    a module's name."""
    targets = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports here are absolute"
            targets |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = NAME.fullmatch(node.value)
            if match:
                targets.add(match[1])
    imported = set()
    for target in targets:
        module, _, _ = target.rpartition(".")
        if target in known:
            imported.add(target)
        elif module in known:
            imported.add(module)
    return imported - {name} - FACES


def room(module: str) -> str:
    _, name, *_ = module.split(".")
    return name


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules of the package -> those that each imports."""
    known = modules()
    return {name: imports(name, path, known) for name, path in known.items() if name not in FACES}


def test_every_room_is_in_the_order(graph):
    assert {room(name) for name in graph} == set(FLOORS)


def test_no_file_imports_a_room_above_its_own_or_on_the_same_floor(graph):
    for name, targets in graph.items():
        floor = FLOORS[room(name)]
        for target in targets:
            is_same_room = room(target) == room(name)
            assert is_same_room or FLOORS[room(target)] < floor, f"{name} imports {target}"


def test_imports_have_no_cycles(graph):
    """Rooms have none if none imports upwards."""
    graphlib.TopologicalSorter(graph).prepare()


def test_models_and_the_lowest_modules_import_no_other_rooms(graph):
    """Other projects may use them alone: models need no data, and io needs no run."""
    below = {
        "models": {"errors", "options", "registry"},
        "data": {"errors", "options", "registry", "io"},
    }
    for name, targets in graph.items():
        others = {room(target) for target in targets} - {room(name)}
        assert others <= below.get(room(name), others), name
