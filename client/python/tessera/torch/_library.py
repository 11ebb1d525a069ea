"""torch itself, and the compiled part of the device; with a clear error where one of them is missing."""

from __future__ import annotations

import os
import pathlib

_HOW = ("tools/setup_torch makes a Python that has it (run a file there with tools/python --torch FILE); in a Python of "
        "your own it comes with the extra: pip install 'tessera[torch]'")

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(f"tessera.torch needs PyTorch, which this Python doesn't have. {_HOW}", name="torch") from None


def _path() -> pathlib.Path:
    """The compiled device: TESSERA_TORCH_DEVICE, else beside torch, where tools/setup_torch puts it."""
    named = os.environ.get("TESSERA_TORCH_DEVICE")
    path = pathlib.Path(named) if named else (
        pathlib.Path(torch.__file__).parents[1] / "tessera_torch_device" / "libtessera_torch.so")
    if not path.exists():
        raise ImportError(f"tessera.torch: the device that is compiled against torch {torch.__version__} is not at {path}. {_HOW}")
    return path


torch.ops.load_library(str(_path()))
