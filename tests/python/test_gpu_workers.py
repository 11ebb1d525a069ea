"""Workers with a GPU, on the emulated driver: what is started, what is refused, and what they compute."""

import os
import pathlib
import subprocess
import time

import pytest

import tessera as ts
from conftest import EMULATED_DRIVER, use_emulated_driver

WORKER = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin")) / "server/worker/tessera-worker"
needs_emulator = pytest.mark.skipif(not (EMULATED_DRIVER / "libcuda.so.1").exists(),
                                    reason="no emulated driver: the CUDA toolkit (nvcc) was not there when this was built")


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "")


@pytest.fixture
def emulated(monkeypatch):
    use_emulated_driver(monkeypatch.setenv)


def test_the_worker_is_linked_with_no_library_of_cuda():
    linked = subprocess.run(["ldd", WORKER], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in linked
    for name in ("libcuda", "libcudart", "libcublas", "libnvrtc", "libnccl", "libnvidia"):
        assert name not in linked


def test_a_worker_without_a_driver_says_so_and_ends(no_driver):
    ended = subprocess.run([WORKER, "--coordinator", "unix:/nowhere", "--device", "cuda"], capture_output=True, text=True, timeout=20)
    assert ended.returncode == 1
    assert "libcuda.so.1" in ended.stderr


def test_a_cluster_without_a_driver_says_so_at_once(no_driver):
    begin = time.monotonic()
    with pytest.raises(ts.UnavailableError, match=r"libcuda\.so\.1"):
        ts.local_cluster(workers=1, memory="16MiB", device="cuda")
    assert time.monotonic() - begin < 5


def test_another_device_is_refused_by_name():
    with pytest.raises(ts.InvalidArgumentError, match="tpu"):
        ts.local_cluster(workers=1, memory="16MiB", device="tpu")
