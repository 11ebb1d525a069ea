"""tools/gpu_test where there is no GPU: what it says of itself, of arguments and of machines; its steps; what a step's end is."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import EMULATED_DRIVER
from test_faults import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin"))
sys.path.insert(0, str(ROOT / "tools/gpu"))
import machine  # noqa: E402
import pack  # noqa: E402
from run import count  # noqa: E402
from steps import PROGRAMS, STEPS, named  # noqa: E402

needs_emulator = pytest.mark.skipif(not (EMULATED_DRIVER / "libcuda.so.1").exists(),
                                    reason="no emulated driver: the CUDA toolkit (nvcc) was not there when this was built")


def gpu_test(*arguments, **environment):
    return subprocess.run([ROOT / "tools/gpu_test", *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def test_the_list_has_every_step_and_what_it_is():
    done = gpu_test("--list")
    assert done.returncode == 0, done.stderr
    assert [line.split(maxsplit=1) for line in done.stdout.splitlines()] == [[step.name, step.title] for step in STEPS]
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_help_names_every_option():
    done = gpu_test("--help")
    assert done.returncode == 0, done.stderr
    for option in ("--pack", "--from", "--list", "--only", "--results", "--log", "--seconds"):
        assert f"{option} " in done.stdout, option


@pytest.mark.parametrize("arguments, said", [(["--frm", "x"], "--frm"), (["--only", "doctor", "nothing"], "there is no step nothing; the steps are parked, driver, "),
                                             (["--pack"], "--pack takes a file"), (["--pack", "x", "--from", "y"], "are two runs"), (["--from", "/nowhere.tar.xz"], "no file /nowhere.tar.xz"),
                                             (["--seconds", "soon"], "soon")])
def test_arguments_that_make_no_sense_are_refused_before_anything_is_built(arguments, said):
    done = gpu_test(*arguments)
    assert done.returncode == 2 and said in done.stderr and "bazel" not in done.stderr.lower(), done.stderr
    assert done.stdout == ""


def test_a_file_that_is_no_pack_is_named(tmp_path):
    (tmp_path / "pack").write_text("no pack")
    done = gpu_test("--from", tmp_path / "pack", TMPDIR=str(tmp_path))
    assert done.returncode == 1 and f"{tmp_path}/pack can't be unpacked" in done.stderr
    assert os.listdir(tmp_path) == ["pack"]


def test_steps_run_in_their_order_whatever_order_is_asked_for():
    assert [step.name for step in named(["doctor", "driver"])] == ["driver", "doctor"]
    assert named([]) == list(STEPS)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_what_a_step_runs_is_packed_and_is_there(step):
    if step.program == "pytest":
        assert (ROOT / step.arguments[0]).is_file() and pathlib.PurePath(step.arguments[0]).parent == pathlib.PurePath("tests/python")
        return
    assert step.program in PROGRAMS
    if not (BINARIES / step.program).exists():
        pytest.skip(f"{step.program} is not built")
    for argument in step.arguments:
        if argument.startswith("--gtest_filter="):
            listed = subprocess.run([BINARIES / step.program, argument, "--gtest_list_tests"], capture_output=True, text=True, timeout=60,
                                    cwd=BINARIES)
            assert re.search(r"^  \w", listed.stdout, re.MULTILINE), f"{argument} names no test"


def run_steps(tmp_path, programs, *arguments, driver=EMULATED_DRIVER, **environment):
    """run.py in a folder like a packed one, whose programs are these shell scripts."""
    shutil.copytree(ROOT / "tools/gpu", tmp_path / "tools/gpu", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for name, script in programs.items():
        path = tmp_path / "bin" / next(step.program for step in STEPS if step.name == name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    only = ["--only", *programs] if programs else []
    return subprocess.run([sys.executable, tmp_path / "tools/gpu/run.py", *arguments, *only], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "LD_LIBRARY_PATH": str(driver), **environment})


@needs_emulator
def test_a_run_says_of_each_step_how_it_ended(tmp_path):
    done = run_steps(tmp_path, {"driver": "echo '[       OK ] A.B'; echo '[       OK ] A.C'", "products": "echo '[  FAILED  ] D.E (3 ms)'; exit 1",
                                "device": "echo 'skipped: no driver'", "kernels": "true", "doctor": "echo fine"},
                     "--results", tmp_path / "results", "--log", tmp_path / "log")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"date: \d{4}-\d\d-\d\d", lines[0]) and lines[1].startswith("device: Emulated GPU, ")
    assert "driver conformance: passed (2 cases, 0 s)" in lines and "a cluster with a GPU worker: passed (0 s)" in lines
    assert "products: FAILED (exit status 1)" in lines and "    [  FAILED  ] D.E (3 ms)" in lines
    # A program of tests that ran none has shown nothing.
    assert "device conformance: FAILED (a test was skipped)" in lines and "kernels: FAILED (exit status 0)" in lines
    assert (tmp_path / "results").read_text() == done.stdout
    assert "==== doctor: client/cli/tessera doctor --device cuda\nfine\n" in (tmp_path / "log").read_text()
    assert run_steps(tmp_path, {"doctor": "echo fine"}).returncode == 0


def test_cases_that_are_left_out_are_named_by_reason():
    said = """s.sss
SKIPPED tests/python/test_gpu_workers.py::test_a[cuInit:1:2-a call: it, fails] - no failures
SKIPPED tests/python/test_gpu_workers.py::test_a[cuInit:2:2-another call] - no failures
SKIPPED tests/python/test_gpu_workers.py::test_b - Skipped: no driver
3 failed, 12 passed, 3 skipped, 1 warning in 3.10s
"""
    assert count(named(["workers"])[0], said) == (12, {"no failures": ["test_a", "test_a"], "no driver": ["test_b"]})
    assert count(named(["workers"])[0], "3 skipped in 0.1s\n")[0] == 0


@needs_emulator
def _runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_step_that_takes_too_long_is_ended_with_its_children_and_the_next_is_not_begun(tmp_path):
    child = tmp_path / "child"
    done = run_steps(tmp_path, {"products": f"sleep 600 & echo $! >{child}; echo begun; wait", "doctor": "echo fine"}, "--seconds", "3")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert re.search(r"^products: FAILED \(after [0-3] s, when the time of the whole run was over\)\n    begun$", done.stdout, re.MULTILINE)
    assert lines[-1] == "a cluster with a GPU worker: FAILED: not run, the time of the whole run was over"
    wait_until(lambda: not _runs(child.read_text().strip()))


@needs_emulator
def test_a_step_whose_library_is_missing_is_left_out_by_name(tmp_path):
    done = run_steps(tmp_path, {"nccl2": "echo '[       OK ] A.B'"}, TESSERA_NCCL="/nowhere/libnccl.so.2")
    assert done.returncode == 0 and "NCCL with 2 ranks: not run: /nowhere/libnccl.so.2 does not open: " in done.stdout


@needs_emulator
def test_a_driver_without_a_gpu_is_told_from_none(tmp_path):
    done = run_steps(tmp_path, {}, TESSERA_EMULATOR_FAIL="cuInit:1:100")
    assert done.returncode == 1
    assert "tools/gpu_test: there is no GPU here: the driver is there, and cuInit returns 100" in done.stderr


@pytest.mark.skipif(machine.driver_folder({}) is not None, reason="this machine has a driver")
def test_a_machine_without_a_driver_is_told_so(tmp_path):
    done = run_steps(tmp_path, {}, driver="")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("tools/gpu_test: there is no GPU here: libcuda.so.1, ")


@needs_emulator
def test_a_driver_that_the_loader_does_not_know_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "DRIVER_FOLDERS", (str(tmp_path / "*"), str(EMULATED_DRIVER)))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if machine.driver_folder({}) == "":
        pytest.skip("the loader knows this machine's driver")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/libcuda.so.1").write_text("no library")
    assert machine.driver_folder({}) == str(EMULATED_DRIVER)


def test_libraries_of_a_venv_in_path_are_found(tmp_path, monkeypatch):
    library = tmp_path / "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert str(library) in machine.places(("libnccl.so.2",), {})


@pytest.mark.parametrize("name, is_its", [("libc.so.6", True), ("libm.so.6", True), ("libmvec.so.1", True), ("ld-linux-x86-64.so.2", True),
                                          ("libpthread.so.0", True), ("libcrypto.so.3", False), ("libstdc++.so.6", False),
                                          ("libcapnp-0.9.2.so", False), ("libmpi.so", False), ("libz.so.1", False)])
def test_libraries_of_the_c_library_are_the_machines(name, is_its):
    assert bool(pack.OF_THE_C_LIBRARY.match(name)) == is_its
