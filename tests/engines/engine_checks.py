"""Checks of each engine's pool: right products, bytes between its nodes, and nothing left in the end."""

import json
import os
import pathlib
import sys
import time

import numpy as np
import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

FIGURES = os.environ.get("TESSERA_ENGINES_FIGURES")     # a file, to which each figure is a line of JSON


class NotHere(Exception):
    """Why an engine can't be started here."""


def started(make_engine, folder):
    """A fixture's engine: it ends with the fixture; tests are skipped by name where it can't be started."""
    try:
        with make_engine(folder / "engine") as engine:
            yield engine
    except NotHere as reason:
        pytest.skip(str(reason))


def figure(engine, what, value):
    """Tells a number of seconds or bytes; tools/engines shows them."""
    if FIGURES:
        with open(FIGURES, "a", encoding="utf-8") as file:
            file.write(json.dumps({"engine": engine, "what": what, "value": round(value, 3)}) + "\n")


def right_product(session):
    """A product and a redistribution on all workers, compared with NumPy."""
    workers = [worker["index"] for worker in session.workers()]
    mesh = session.init_device_mesh((len(workers),), workers=workers)
    a, b = np.random.default_rng(len(workers)).standard_normal((2, 400, 400))
    x, y = session.distribute_tensor(a, mesh, [ts.Shard(0)]), session.distribute_tensor(b, mesh, [ts.Shard(1)])
    np.testing.assert_allclose((x @ y).full_tensor(), a @ b)
    np.testing.assert_array_equal(x.redistribute([ts.Shard(1)]).full_tensor(), a)
    return workers


def hosts(session):
    return {worker["host"] for worker in session.workers()}


def numbers(session):
    return [worker["index"] for worker in session.workers()]


def processes_with(word):
    """Numbers of processes whose command lines have the word, other than this one."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in words and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def seconds_until(true, what, seconds=60, tell=lambda: ""):
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not in {seconds} s\n{tell()}")
        time.sleep(0.02)
    return time.monotonic() - began
