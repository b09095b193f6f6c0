"""The packages that an installation needs, and their sizes."""

import importlib.metadata
import os

from gmlp_flax.benchmarks import packages


def test_direct_and_indirect_requirements_are_found_without_those_of_extras():
    required = packages.required("gmlp_flax")
    jaxlib = required["jaxlib"]
    assert "gmlp_flax" in required["jax"].needed_by
    assert "jax" in jaxlib.needed_by
    assert "gmlp_flax" not in jaxlib.needed_by
    assert "pytest" not in required
    assert 2e8 < jaxlib.size < 1e9


def test_the_size_of_a_package_is_that_of_its_files():
    distribution = importlib.metadata.distribution("absl-py")
    expected = 0
    for file in distribution.files or ():
        path = str(file.locate())
        if os.path.isfile(path):
            expected += os.path.getsize(path)
    absl = packages.required("gmlp_flax")["absl-py"]
    assert absl.size == expected
    assert absl.size > 100_000


def test_rows_have_the_largest_packages_and_the_total():
    *largest, total = packages.bench_packages()
    megabytes = [row["median"] for row in largest]
    names = [row["name"] for row in largest]
    assert len(largest) == packages.LARGEST
    assert megabytes == sorted(megabytes, reverse=True)
    assert total["median"] > sum(megabytes)
    assert names[0] == "jaxlib, for chex, jax, optax"
    [numpy] = [name for name in names if name.startswith("numpy")]
    assert numpy.startswith("numpy, for gmlp_flax, chex, contourpy and ")
