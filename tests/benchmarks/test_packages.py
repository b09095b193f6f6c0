"""Which packages an installation needs, and how large they are."""

import importlib.metadata
import os

from gmlp_flax.benchmarks import packages


def test_what_is_required_directly_and_by_others():
    found = packages.required("gmlp_flax")
    assert "gmlp_flax" in found["jax"].needed_by
    assert "jax" in found["jaxlib"].needed_by
    assert "gmlp_flax" not in found["jaxlib"].needed_by
    assert "pytest" not in found, "it is of an extra"
    assert 2e8 < found["jaxlib"].size < 1e9


def test_the_size_of_a_package_is_that_of_its_files():
    distribution = importlib.metadata.distribution("absl-py")
    sizes = []
    for file in distribution.files or ():
        path = str(file.locate())
        if os.path.isfile(path):
            sizes.append(os.path.getsize(path))
    assert packages.required("gmlp_flax")["absl-py"].size == sum(sizes) > 100_000


def test_the_largest_come_first_and_all_are_counted():
    rows = list(packages.bench_packages())
    megabytes = [row["median"] for row in rows]
    assert len(rows) == packages.LARGEST + 1
    assert megabytes[:-1] == sorted(megabytes[:-1], reverse=True)
    assert megabytes[-1] > sum(megabytes[:-1])
    assert rows[0]["name"] == "jaxlib, for chex, jax, optax"
    [numpy] = [row["name"] for row in rows if row["name"].startswith("numpy")]
    assert numpy.startswith("numpy, for gmlp_flax, chex, contourpy and ")
