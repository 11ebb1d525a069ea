"""`python -m tessera.torch_device`: compiles the device of tessera.torch against the torch of this Python, once."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import sysconfig

SOURCE = pathlib.Path(__file__).parent / "torch" / "device.cc"


def built_path(torch_folder: pathlib.Path) -> pathlib.Path:
    """Where tessera.torch looks for it: beside torch, whose one version it is for."""
    return torch_folder.parent / "tessera_torch_device" / "libtessera_torch.so"


def build(torch_folder: pathlib.Path) -> pathlib.Path:
    target = built_path(torch_folder)
    target.parent.mkdir(exist_ok=True)
    new = target.with_suffix(".so.new")
    include = torch_folder / "include"
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-isystem", include,
                    "-isystem", include / "torch/csrc/api/include", "-isystem", sysconfig.get_path("include"), SOURCE,
                    "-L", torch_folder / "lib", "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu", "-ltorch_python", "-o", new], check=True)
    return new.replace(target)


def main() -> None:
    found = importlib.util.find_spec("torch")
    if found is None:
        sys.exit("tessera.torch_device: this Python has no PyTorch; pip install the extra 'torch' of tessera")
    try:
        print(build(pathlib.Path(found.origin).parent))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"tessera.torch_device: the device can't be compiled (it needs g++, or the compiler that CXX names, and Python's headers): {error}")


if __name__ == "__main__":
    main()
