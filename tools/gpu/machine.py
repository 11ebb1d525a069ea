"""The parts of a machine that GPU workers need, and where they are: the driver, and the libraries of CUDA that are too large to be packed."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NamedTuple

# pip's packages lay libraries in folders of their own: nvidia/cu13/lib, nvidia/nccl/lib.
OF_PIP = "lib/python3*/*-packages/nvidia/*/lib"
FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda-13*/lib64", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib",
           "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib")
PREFIXES = ("/usr/local", "/usr", "/opt/*", "/opt/*/.venv", "/opt/*/venv", "/opt/*/*/.venv")
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib",
                  "/usr/lib/nvidia*")


class Library(NamedTuple):
    title: str
    variable: str       # what says where it is, to the worker and to tests
    names: tuple[str, ...]
    version: str        # a Python expression that OPEN can print


LIBRARIES = (
    Library("cuBLASLt", "TESSERA_CUBLASLT", ("libcublasLt.so.13",), "dotted(library.cublasLtGetVersion())"),
    Library("cuDNN", "TESSERA_CUDNN", ("libcudnn.so.9",), "dotted(library.cudnnGetVersion())"),
    Library("cuFFT", "TESSERA_CUFFT", ("libcufft.so.12",), "'.'.join(map(str, divmod(numbers(library.cufftGetVersion, 1)[0], 1000)))"),
    Library("cuSOLVER", "TESSERA_CUSOLVER", ("libcusolver.so.12",), "'.'.join(map(str, divmod(numbers(library.cusolverGetVersion, 1)[0], 1000)))"),
    Library("cuBLAS", "TESSERA_CUBLAS", ("libcublas.so.13",), "'.'.join(str(library.cublasGetProperty(i, ctypes.byref(n := ctypes.c_int())) or n.value) for i in range(2))"),
    Library("NCCL", "TESSERA_NCCL", ("libnccl.so.2",), "dotted(numbers(library.ncclGetVersion, 1)[0])"),
    Library("NVRTC", "TESSERA_NVRTC", ("libnvrtc.so.13", "libnvrtc.so.12"), "'.'.join(map(str, numbers(library.nvrtcVersion, 2)))"),
)

# Opens a library and prints its version.
OPEN = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
def numbers(function, count):
    values = [ctypes.c_int() for _ in range(count)]
    function(*map(ctypes.byref, values))
    return [value.value for value in values]
def dotted(version):
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
print(VERSION)
"""

# Prints facts of the first GPU as JSON, or why there is none. Of the driver alone: it makes no context.
DESCRIBE = """
import ctypes, json, sys
def out(**facts):
    print(json.dumps(facts))
    sys.exit()
try:
    driver = ctypes.CDLL(sys.argv[1])
except OSError as error:
    out(why=f"there is no driver: {error}")
failed = driver.cuInit(0)
if failed:
    out(why=f"the driver is there, and cuInit returns {failed}")
number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
driver.cuDeviceGetCount(ctypes.byref(number))
if number.value == 0:
    out(why="the driver is there, and it sees no GPU")
facts = {"gpus": number.value}
device = ctypes.c_int()
driver.cuDeviceGet(ctypes.byref(device), 0)
driver.cuDeviceGetName(name, len(name), device)
facts["name"] = name.value.decode(errors="replace")
def attribute(which):
    value = ctypes.c_int()
    return value.value if driver.cuDeviceGetAttribute(ctypes.byref(value), which, device) == 0 else 0
facts["compute_capability"] = f"{attribute(75)}.{attribute(76)}"
facts["compute_mode"] = attribute(20)
driver.cuDriverGetVersion(ctypes.byref(number))
facts["cuda"] = f"{number.value // 1000}.{number.value % 1000 // 10}"
total = getattr(driver, "cuDeviceTotalMem_v2", None)
size = ctypes.c_size_t()
if total and total(ctypes.byref(size), device) == 0:
    facts["memory_bytes"] = size.value
out(**facts)
"""

EXCLUSIVE_PROCESS = 3
SECONDS = 60    # half a GB of a library may have to be read


def run(code: str, *arguments: str) -> subprocess.CompletedProcess:
    """In a process of its own: a library of another machine may do anything when it is opened."""
    command = [sys.executable, "-sE", "-c", code, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it took more than {SECONDS} s")


def pythons() -> list[str]:
    """The prefixes of the Pythons in PATH; a venv's is its own, not that of the Python that it was made from."""
    programs = [shutil.which(name) for name in ("python3", "python")]
    return [str(pathlib.Path(program).parents[1]) for program in programs if program]


def places(names: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """Where it may be: first where the loader looks, then with the toolkit, then among pip's packages."""
    searched = [*filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")), *FOLDERS]
    searched += [f"{prefix}/{OF_PIP}" for prefix in (*pythons(), *PREFIXES)]
    found = [path for name in names for folder in searched for path in sorted(glob.glob(f"{folder}/{name}"), reverse=True)]
    return list(dict.fromkeys(found))


def find(library: Library, environment: dict[str, str]) -> tuple[str, str]:
    """Where the library is that opens, and its version; ("", why) where there is none. What the environment names is taken alone."""
    said = f"no {library.names[0]} ({library.variable}=PATH)"
    chosen = environment.get(library.variable)
    for path in [chosen] if chosen else [*places(library.names, environment), *library.names]:
        opened = run(OPEN.replace("VERSION", library.version), path)
        if opened.returncode == 0:
            return path, opened.stdout.strip()
        if "/" in path:
            said = f"{path} does not open: {(opened.stderr.strip().splitlines() or ['it ended'])[-1]}"
    return "", said


def driver_folder(environment: dict[str, str]) -> str | None:
    """"" where the loader finds libcuda.so.1 by itself, else the folder that has it, or None."""
    def opens(path: str) -> bool:
        return run("import ctypes, sys; ctypes.CDLL(sys.argv[1])", path).returncode == 0
    if opens("libcuda.so.1"):
        return ""
    found = [path for folder in DRIVER_FOLDERS for path in sorted(glob.glob(f"{folder}/libcuda.so.1"))]
    return next((str(pathlib.Path(path).parent) for path in found if opens(path)), None)


def describe() -> dict:
    """The first GPU: name, compute_capability, cuda, ...; {"why": ...} where none can be used."""
    said = run(DESCRIBE, "libcuda.so.1")
    lines = said.stdout.strip().splitlines()
    return json.loads(lines[-1]) if said.returncode == 0 and lines else {"why": f"the driver ends its process ({said.returncode}): {said.stderr[-300:]}"}


def hold_open() -> list[int]:
    """Opens the GPUs' files for as long as steps run. Where no daemon of NVIDIA's does, the kernel starts a GPU anew, for seconds, whenever
    a process comes and nobody has one open."""
    held = []
    for path in sorted(glob.glob("/dev/nvidia[0-9]*")):
        with contextlib.suppress(OSError):
            held.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return held


def driver_release() -> str:
    """The version of the kernel's module, like 580.159.04; "" where it doesn't say."""
    try:
        words = pathlib.Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and word.count(".") >= 1), "")


def sanitizer() -> str:
    """compute-sanitizer, or "" where it isn't there."""
    known = [*sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer")), *sorted(glob.glob("/opt/nvidia/*/compute-sanitizer"))]
    return shutil.which("compute-sanitizer") or next((path for path in known if os.access(path, os.X_OK)), "")
