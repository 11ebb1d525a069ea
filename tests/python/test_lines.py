"""A late error says the line of the program that asked for the op; ts.blocking() raises it there."""

import inspect
import os
import subprocess
import sys
import traceback
import types

import numpy as np
import pytest

import tessera as ts
from tessera import Replicate as R
from tessera import Shard as S

FILE = "test_lines.py"


def here(offset: int = 0) -> str:
    return f"{FILE}:{inspect.currentframe().f_back.f_lineno + offset}"


@pytest.fixture
def singular(mesh4):
    return ts.zeros((3, 3), device_mesh=mesh4, placements=[R()])


def test_a_failure_says_where_its_op_was_asked_for(singular):
    place = here(1)
    inverse = ts.linalg.inv(singular)
    z = inverse + 1
    with pytest.raises(ts.LinAlgError, match=rf"^inv: singular matrix, at \S*{place}; on the way here: add f64\[3,3\]$"):
        z.wait()
    with pytest.raises(ts.LinAlgError, match=rf"at \S*{place}$"):
        inverse.full_tensor()


def test_each_line_of_a_loop_and_of_a_cell_is_its_own(singular):
    for text in ("x = ts.linalg.inv(s)", "\n\nx = ts.linalg.inv(s)"):
        names = {"ts": ts, "s": singular}
        exec(compile(text, f"cell{len(text)}", "exec"), names)      # noqa: S102 - as a notebook does
        with pytest.raises(ts.LinAlgError, match=rf"at cell{len(text)}:{1 + text.count(chr(10))}$"):
            names["x"].wait()


def test_code_that_is_gone_leaves_no_line_behind(singular):
    for i in range(200):
        names = {"ts": ts, "s": singular}
        exec(compile("\n" * i + "x = ts.linalg.inv(s)", f"cell{i}", "exec"), names)     # noqa: S102 - as a notebook does
        if i % 20 == 0:
            with pytest.raises(ts.LinAlgError, match=rf"at cell{i}:{i + 1}$"):
                names["x"].wait()


def test_a_cell_of_a_notebook_is_named_by_its_number(singular, monkeypatch):
    shell = types.SimpleNamespace(initialized=lambda: False, _instance=types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={"/tmp/ipykernel_7/1.py": 12})))
    monkeypatch.setitem(sys.modules, "IPython.core.interactiveshell", types.SimpleNamespace(InteractiveShell=shell))
    names = {"ts": ts, "s": singular}
    exec(compile("\nx = ts.linalg.inv(s)", "/tmp/ipykernel_7/1.py", "exec"), names)      # noqa: S102 - as a notebook does
    with pytest.raises(ts.LinAlgError, match=r"^inv: singular matrix, at Cell In\[12\], line 2$"):
        names["x"].wait()


def test_what_the_coordinator_refuses_has_its_line(mesh4):
    place = here(1)
    x = ts.zeros((1 << 40,), device_mesh=mesh4, placements=[R()])
    y = x + 1
    with pytest.raises(ts.ResourceExhaustedError, match=rf"^zeros: .*, at \S*{place}; on the way here: add"):
        y.wait()


def test_an_upload_that_finds_no_room_has_its_line(mesh4):
    big = np.broadcast_to(np.zeros(1), (1 << 26,))
    with pytest.raises(ts.ResourceExhaustedError, match=FILE):
        ts.asarray(big, device_mesh=mesh4, placements=[R()]).wait()


def test_a_call_that_waits_for_a_shape_keeps_its_line(mesh4):
    x = ts.asarray(np.arange(6.0), device_mesh=mesh4, placements=[R()])
    place = here(1)
    y = x[x > 2] + ts.ones((2,), device_mesh=mesh4)
    with pytest.raises(ts.InvalidArgumentError, match=place):
        y.wait()


def test_a_fused_op_keeps_its_line(singular):
    place = here(1)
    a = ts.linalg.inv(singular)
    b = ((a + 1) * 2 - 3).sum()
    with pytest.raises(ts.LinAlgError, match=rf"at \S*{place}; on the way here: add"):
        float(b)


def test_within_blocking_the_traceback_stands_at_the_line(singular):
    with ts.blocking():
        with pytest.raises(ts.LinAlgError, match="^inv: singular matrix") as caught:
            place = here(1)
            ts.linalg.inv(singular)
    assert f"{FILE}:{traceback.extract_tb(caught.value.__traceback__)[0].lineno}" == place


def test_an_update_that_fails_within_blocking_leaves_the_name_as_it_was(mesh4):
    x = ts.ones((8,), device_mesh=mesh4, placements=[S(0)])
    bad = ts.asarray([9], device_mesh=mesh4)
    block = ts.blocking()
    with block:
        with block, pytest.raises(ts.TesseraError):
            x += ts.take(x, bad)
        x += 1
    np.testing.assert_array_equal(x.full_tensor(), np.full(8, 2.0))


def test_an_environment_variable_blocks_the_whole_program(cluster):
    program = """
import sys, tessera as ts
session = ts.connect(sys.argv[1])
x = ts.zeros((3, 3), device_mesh=session.default_mesh)
try:
    ts.linalg.inv(x)
except ts.LinAlgError:
    print("raised at the line")
"""
    out = subprocess.run([sys.executable, "-c", program, cluster.address], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "TESSERA_BLOCKING": "1"})
    assert out.stdout == "raised at the line\n", out.stderr[-2000:]


def test_a_profile_says_the_line_of_each_op(session, mesh4):
    x = ts.ones((64, 64), device_mesh=mesh4, placements=[S(0)]).wait()
    with session.profile() as profile:
        place = here(1)
        y = x @ x
        y.wait()
    assert [op.line.rsplit("/")[-1] for op in profile.ops if op.name == "matmul"] == [place]
