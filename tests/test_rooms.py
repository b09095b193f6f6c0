"""The order of the rooms, written once: no file imports a room above its own, and no imports run in
a circle."""

import ast
import graphlib
import re
from pathlib import Path

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
        parts = ("gmlp_flax", *path.relative_to(PACKAGE).with_suffix("").parts)
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
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
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (match := NAME.fullmatch(node.value))
        ):
            targets.add(match[1])
    reached = {target if target in known else target.rpartition(".")[0] for target in targets}
    return {target for target in reached if target in known} - {name} - FACES


def room(module: str) -> str:
    return module.split(".")[1]


KNOWN = modules()
GRAPH = {name: imports(name, path, KNOWN) for name, path in KNOWN.items() if name not in FACES}


def test_every_room_has_its_floor():
    assert {room(name) for name in GRAPH} == set(FLOORS)


def test_no_file_imports_a_room_above_or_beside_its_own():
    wrong = {
        f"{name} imports {target}"
        for name, targets in GRAPH.items()
        for target in targets
        if room(target) != room(name) and FLOORS[room(target)] >= FLOORS[room(name)]
    }
    assert not wrong


def test_no_circle_of_files():
    """Rooms have none if none imports upwards."""
    graphlib.TopologicalSorter(GRAPH).prepare()


def test_models_and_the_ground_import_no_rooms_of_ours():
    """What may be taken from here into other work: models need no data, io no run."""
    below = {
        "models": {"errors", "options", "registry"},
        "data": {"errors", "options", "registry", "io"},
    }
    for name, targets in GRAPH.items():
        others = {room(target) for target in targets} - {room(name)}
        assert others <= below.get(room(name), others), name
