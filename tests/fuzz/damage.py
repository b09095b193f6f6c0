"""Bytes, JSON and values as carelessness or malice would leave them."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

ODD_NUMBERS = (
    *(b"\xff" * 4, b"\0" * 4, b"\xff" * 8, b"-1", b"1e999", b"9" * 6000),
    b"\x7f\xff\xff\xff",
    b"\x01\0\0\0",
)
DEEP = "[" * 100_000
# Values of a config's keys, as text.
TEXTS = (
    *"0 1 -1 2 3 7 10 64 1000000000 2147483647 2147483648 4294967296 9223372036854775807 9223372036854775808".split(),
    *"0.5 -0.0 1e-320 1e30 1e308 1e999 -inf nan True None null () (1,) (0,0) (1,2) (1.5,'a') [1] {}".split(),
    *"('(',) ('a=b',) ('.*=nan',) ('.*=1..2',) ('.*=data',) ('a','b','c') : a:b 0:0 1:2 1:99999999999".split(),
    *"../.. / /dev/zero /dev/null /proc/self/mem tfds:x tfds:../../x:1.0.0 gs:// s3://x memory://x ://".split(),
    *"os:system gmlp_flax.tasks.base:Task data adamw sgd linear mean cls bfloat16 float64 full é".split(),
    *("", " ", "\0", "a\0b", "\ud800", "\udcff", "x" * 5000, "1" * 100, "9" * 6000),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**400),
    *(0.5, -0.0, 1e-320, 1e30, 1e308, float("inf"), float("nan")),
    *("", "x", "\0", "\ud800", "x" * 5000, "/dev/zero", ".."),
    *([], [1], [[]], ["a"], [None], {}, {"a": 1}, {"task": None}, [0.5, "a"]),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A copy with bytes flipped, cut off, doubled, moved, or replaced by numbers that often break
    programs."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(out) + 1)
        size = rng.choice((1, 2, 4, 16, 100, 1000))
        kind = rng.randrange(8)
        if kind <= 2 and out:
            out[min(place, len(out) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del out[place:]
        elif kind == 4:
            del out[place : place + size]
        elif kind == 5:
            out[place:place] = out[place : place + size]
        elif kind == 6:
            odd = rng.choice(ODD_NUMBERS)
            out[place : place + len(odd)] = odd
        else:
            source = rng.randrange(len(out) + 1)
            out[place : place + size] = out[source : source + size]
    return bytes(out)


def damaged_json(value: Any, rng: random.Random) -> bytes:
    """JSON of a value, with parts replaced by values of other types, in another encoding, or with
    damaged bytes."""
    value = json.loads(json.dumps(value))
    kind = rng.randrange(8)
    if kind == 0:
        return damaged(json.dumps(value).encode(), rng)
    if kind == 1:
        text = json.dumps(value)
        encoded = [text.encode(name) for name in ("utf-16", "utf-8-sig", "utf-32")]
        encoded.append(DEEP.encode())
        encoded.append(text.replace(":", ": " + DEEP, 1).encode())
        encoded.append(b'{"a":' * 50_000)
        encoded.append(text.replace("1", "9" * 6000).encode())
        return rng.choice([*encoded, b"", b"{", b"\xff"])
    for _ in range(rng.choice((1, 1, 2, 5))):
        holders = _holders(value)
        if not holders:
            return json.dumps(_value(rng)).encode()
        holder, key = rng.choice(holders)
        if rng.random() < 0.15:
            del holder[key]
        elif rng.random() < 0.1 and isinstance(holder, dict):
            holder[rng.choice(("x", "\0", "", "model", "task"))] = _value(rng)
        else:
            holder[key] = _value(rng)
    return json.dumps(value).encode()


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def _holders(value: Any) -> list[tuple[Any, Any]]:
    """Each list and object inside a value, with each of its indices or keys."""
    if isinstance(value, list):
        keys = list(range(len(value)))
    elif isinstance(value, dict):
        keys = list(value)
    else:
        return []
    holders = [(value, key) for key in keys]
    for key in keys:
        holders += _holders(value[key])
    return holders


def one_of(checks: list[Callable[[random.Random], None]]) -> Callable[[random.Random], None]:
    """A check that calls a random one of these."""
    return lambda rng: rng.choice(checks)(rng)
