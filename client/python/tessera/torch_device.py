"""`python -m tessera.torch_device`: compiles the device of tessera.torch, and the backend of torch.distributed, against the
torch of this Python, once."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

DEVICE = "libtessera_torch.so"
RANKS = "libtessera_ranks.so"
SOURCES = {DEVICE: "device.cc", RANKS: "ranks.cc"}
HOW = ("tools/setup_torch makes a Python that has it (run a file there with tools/python --torch FILE); in a Python of "
       "your own: pip install 'tessera[torch]', and then python -m tessera.torch_device")


def built_path(torch_folder: pathlib.Path, library: str) -> pathlib.Path:
    """Where tessera.torch looks for it: beside torch, whose one version it is for."""
    return torch_folder.parent / "tessera_torch_device" / library


def compiled_path(torch_folder: pathlib.Path, library: str) -> pathlib.Path:
    """A library that is compiled against torch: beside the device that TESSERA_TORCH_DEVICE names, else as built_path says."""
    named = os.environ.get("TESSERA_TORCH_DEVICE")
    device = pathlib.Path(named) if named else built_path(torch_folder, DEVICE)
    return device if library == DEVICE else device.with_name(library)


def stamp_path(library: pathlib.Path) -> pathlib.Path:
    """Says what a compiled library is for; see stamp()."""
    return library.with_suffix(".so.for")


def stamp(torch_version: str) -> str:
    """The versions that a library is compiled for: another torch or another Python may load it and die, or miss a symbol."""
    return f"torch {torch_version}, Python {sys.version_info[0]}.{sys.version_info[1]}"


def version_of(torch_folder: pathlib.Path) -> str:
    """torch's version, without importing it."""
    return re.search(r"^__version__ = '([^']+)'", (torch_folder / "version.py").read_text(), re.MULTILINE)[1]


def found_path(torch_folder: pathlib.Path, library: str, torch_version: str, who: str) -> pathlib.Path:
    """The path of a compiled library that is there, and for this torch and this Python; else an ImportError of `who` says what to do."""
    path = compiled_path(torch_folder, library)
    if not path.exists():
        raise ImportError(f"{who}: {library}, compiled against torch {torch_version}, is not at {path}. {HOW}")
    made_for, here = (stamp_path(path).read_text() if stamp_path(path).exists() else "an unknown torch"), stamp(torch_version)
    if made_for != here:
        raise ImportError(f"{who}: {path} was compiled for {made_for}, and this is {here}; compile it again: "
                          f"{sys.executable} -m tessera.torch_device")
    return path


def compile(source: pathlib.Path, target: pathlib.Path, torch_folder: pathlib.Path) -> None:   # noqa: A001
    """Compiles a file against torch."""
    include = torch_folder / "include"
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-isystem", include,
                    "-isystem", include / "torch/csrc/api/include", "-isystem", sysconfig.get_path("include"), source,
                    "-L", torch_folder / "lib", "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu", "-ltorch_python", "-o", target], check=True)


def build(torch_folder: pathlib.Path, library: str) -> pathlib.Path:
    source = pathlib.Path(__file__).parent / "torch" / SOURCES[library]
    target = built_path(torch_folder, library)
    target.parent.mkdir(exist_ok=True)
    new = target.with_suffix(".so.new")
    compile(source, new, torch_folder)
    stamp_path(target).unlink(missing_ok=True)
    new.replace(target)
    stamp_path(target).write_text(stamp(version_of(torch_folder)))
    return target


def main() -> None:
    found = importlib.util.find_spec("torch")
    if found is None:
        sys.exit("tessera.torch_device: this Python has no PyTorch; pip install the extra 'torch' of tessera")
    try:
        for library in SOURCES:
            print(build(pathlib.Path(found.origin).parent, library))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"tessera.torch_device: the device and the backend can't be compiled (they need g++, or the compiler that CXX names, and Python's headers): {error}")


if __name__ == "__main__":
    main()
