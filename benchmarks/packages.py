"""The benchmark's part `packages`: what an installation without extras takes on the disk."""

import dataclasses
import importlib.metadata
import os
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gmlp_flax.benchmarks.timing import Row, row

LARGEST = 10
MOST_NAMES = 3
PROJECT = "gmlp_flax"


@dataclasses.dataclass
class Package:
    """An installed package.

    Attributes:
        size: bytes of its files.
        needed_by: the packages that require it.
    """

    size: int
    needed_by: set[str]


def bench_packages() -> Iterator[Row]:
    """Megabytes of the largest packages that this one needs, with those that require each, and of
    all together."""
    packages = required(PROJECT)
    by_size = sorted(packages, key=lambda name: packages[name].size, reverse=True)
    for name in by_size[:LARGEST]:
        package = packages[name]
        dependents = _named(package.needed_by)
        megabytes = package.size / 1e6
        yield row(f"{name}, for {dependents}", [megabytes], "MB")
    total = sum(package.size for package in packages.values())
    megabytes = total / 1e6
    yield row(f"all {len(packages)} packages", [megabytes], "MB")


def required(project: str) -> dict[str, Package]:
    """Name -> each installed package that a project needs without extras, directly or not."""
    packages: dict[str, Package] = {}
    pending = [project]
    while pending:
        name = pending.pop()
        for requirement in _requirements(name):
            needed = canonicalize_name(requirement.name)
            if needed not in packages:
                size = _size(needed)
                packages[needed] = Package(size, set())
                pending.append(needed)
            packages[needed].needed_by.add(name)
    return packages


def _named(names: set[str]) -> str:
    """Some names in a line: this project's first, if it is among them."""
    in_order = sorted(names, key=lambda name: (name != PROJECT, name))
    shown = ", ".join(in_order[:MOST_NAMES])
    others = len(in_order) - MOST_NAMES
    return f"{shown} and {others} more" if others > 0 else shown


def _requirements(name: str) -> list[Requirement]:
    """Those of a package that apply here, without its extras."""
    requirements = []
    for text in importlib.metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            requirements.append(requirement)
    return requirements


def _size(name: str) -> int:
    """Bytes of the files of an installed package."""
    distribution = importlib.metadata.distribution(name)
    size = 0
    for file in distribution.files or ():
        path = str(distribution.locate_file(file))
        if os.path.isfile(path):
            size += os.path.getsize(path)
    return size
