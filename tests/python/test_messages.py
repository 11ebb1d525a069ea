"""Errors and pictures name the op, the fault and both values."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


@pytest.mark.parametrize("name, compare", [
    ("less", lambda x, y: x < y), ("less_equal", lambda x, y: x <= y), ("greater", lambda x, y: x > y),
    ("greater_equal", lambda x, y: x >= y), ("equal", lambda x, y: x == y), ("not_equal", lambda x, y: x != y)])
def test_comparing_with_what_is_no_operand_names_the_op(mesh4, name, compare):
    x = ts.ones((3,), device_mesh=mesh4)
    for other in (["a"], ([1], [2, 3]), "123"):
        with pytest.raises(ts.InvalidArgumentError, match=rf"^{name}: {type(other).__name__} can't stand beside f64\[3\]"):
            compare(x, other)

    class Knows:
        def __lt__(self, other):
            return "less"
        __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __lt__

    assert compare(x, Knows()) == "less"


def test_errors_of_python_name_the_public_class(mesh4):
    x = ts.ones((3,), device_mesh=mesh4)
    for call, name in ((lambda: x.redistribute(1, 2, 3), "Tensor.redistribute"), (lambda: x.item(index=1), "Tensor.item"),
                       (lambda: x.reshape(1, copies=2), "Tensor.reshape"), (lambda: x.session.sync(1, 2, 3), "sync")):
        with pytest.raises(TypeError, match=re.escape(name)) as raised:
            call()
        assert "_TensorMethods" not in str(raised.value) and "Methods" not in str(raised.value)
    assert ts.Tensor.wait.__qualname__ == "Tensor.wait" and ts.Tensor.dtype.fget.__qualname__ == "Tensor.dtype"


def test_a_pending_sum_is_drawn_as_its_terms(session, mesh4):
    replicated = ts.ones((4, 8), device_mesh=mesh4, placements=[R()])
    pending = ts.sum(ts.ones((4, 4, 8), device_mesh=mesh4, placements=[S(0)]), axis=0)
    picture = pending._repr_html_()
    assert "sum of 0,1,2,3" in picture and "a term of the sum" in picture and "stroke-dasharray" in picture
    assert picture.replace("P(sum)", "R") != replicated._repr_html_()
    assert "term" not in replicated._repr_html_() and "dasharray" not in replicated._repr_html_()


def test_names_of_linalg_that_are_not_there():
    assert hasattr(ts.linalg, "matmul") and not hasattr(ts.linalg, "nonsense")
    with pytest.raises(AttributeError, match="nonsense"):
        ts.linalg.nonsense


@pytest.mark.parametrize("value, said", [
    (None, "asarray: None is no number"), ([1, None], "asarray: None is no number"), ({"a": 1}, "asarray: {'a': 1} is no number"),
    ([2**64], "asarray: an element 18446744073709551616 doesn't fit dtype i64")])
def test_what_is_no_number_is_named(mesh4, value, said):
    with pytest.raises(ts.InvalidArgumentError, match="^" + re.escape(said)):
        ts.asarray(value, device_mesh=mesh4)


def test_a_cancelled_op_is_named(new_cluster):
    cluster = new_cluster(workers=1, memory="256MiB")
    program = """
import signal, sys, threading, time, numpy as np, tessera as ts
session = ts.connect(sys.argv[1])
x = ts.ones((1200, 1200), device_mesh=session.default_mesh)
last = x
for _ in range(300):
    last = last @ x
try:
    threading.Timer(1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
    last.wait()
except KeyboardInterrupt:
    pass
try:
    last.wait(timeout=60)
except ts.CancelledError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program, cluster.address], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    assert re.match(r"(matmul|call): cancelled by the client before it was", out.stdout), out.stdout + out.stderr[-2000:]


@pytest.mark.parametrize("text", ["abc", "", "-1", "nan"])
def test_a_stall_timeout_that_is_no_number_is_named(cluster, monkeypatch, text):
    monkeypatch.setenv("TESSERA_STALL_TIMEOUT", text)
    with pytest.raises(ts.InvalidArgumentError, match=f"connect: TESSERA_STALL_TIMEOUT is '{text}'; it must be a number of seconds"):
        cluster.connect()


def test_a_relative_folder_for_temporary_files_makes_an_absolute_address(tmp_path):
    program = """
import os, tessera as ts
os.environ["TMPDIR"] = "here"
os.mkdir("here")
with ts.local_cluster(workers=1, memory="16MiB") as cluster:
    os.chdir("/")
    print(cluster.address.split("#")[0], float(ts.ones((2,), device_mesh=cluster.connect().default_mesh).sum()))
"""
    folder = tmp_path if len(str(tmp_path)) < 40 else f"/tmp/tessera-{os.getpid()}"
    os.makedirs(folder, exist_ok=True)
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=folder)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.startswith(f"unix:{os.path.realpath(folder)}/here/") and out.stdout.endswith(" 2.0\n"), out.stdout + out.stderr[-2000:]
