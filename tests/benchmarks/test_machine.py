"""The description of a benchmark's machine."""

import dataclasses
import datetime
import platform
import re

import pytest

from gmlp_flax.benchmarks.machine import Machine
from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.processes import platforms


def test_the_machine_is_described():
    machine = Machine.here()
    assert machine.processor
    assert machine.cores == usable_cores()
    assert re.fullmatch(r"Python \d+\.\d+\.\d+, jax \d.*, jaxlib \d.*", machine.software)
    assert datetime.date.fromisoformat(machine.date)
    assert machine.columns()["cores"] == machine.cores


def test_a_processor_has_its_family_and_model(monkeypatch):
    described = (
        "cpu family\t: 25\nflags\t\t: fma avx2 avx512f\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n"
    )
    monkeypatch.setattr(platforms, "cpu_features", lambda: described)
    machine = Machine.here()
    assert machine.processor == "AMD EPYC (family 25, model 17)"
    assert machine.instructions == "AVX-512"
    monkeypatch.setattr(platforms, "cpu_features", lambda: "Features\t: fp asimd\n")
    assert Machine.here().processor in (platform.processor(), platform.machine())


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("fma avx2", "AVX2"),
        ("avx2 avx512f avx512_bf16", "AVX-512, BF16"),
        ("avx2 avx512f avx512_bf16 amx_bf16 amx_tile", "AVX-512, AMX"),
        ("fp asimd", ""),
    ],
)
def test_vector_instructions_are_named(monkeypatch, flags, instructions):
    monkeypatch.setattr(platforms, "cpu_features", lambda: f"flags\t\t: {flags}\n")
    assert Machine.here().instructions == instructions


def test_machines_are_idle_below_a_load_of_a_quarter_of_their_cores():
    machine = Machine("A processor", 2, "AVX2", "Python 3.11.7", "2026-01-02", load=0.49)
    assert machine.idle
    assert machine.columns()["idle"] == "yes"
    assert str(machine) == "A processor, 2 cores; AVX2; Python 3.11.7"
    busy = dataclasses.replace(machine, load=0.5, instructions="")
    assert not busy.idle
    assert busy.columns()["idle"] == "no, load 0.5"
    assert "not idle: a load of 0.5" in str(busy)
