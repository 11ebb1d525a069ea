"""torch itself, and the compiled part of the device; with a clear error where one of them is missing."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

import _tessera
from ..torch_device import DEVICE, built_path, stamp, stamp_path

_HOW = ("tools/setup_torch makes a Python that has it (run a file there with tools/python --torch FILE); in a Python of "
        "your own: pip install 'tessera[torch]', and then python -m tessera.torch_device")

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(f"tessera.torch needs PyTorch, which this Python doesn't have. {_HOW}", name="torch") from None


def compiled_path(library: str) -> pathlib.Path:
    """A library that is compiled against torch: beside the device that TESSERA_TORCH_DEVICE names, else where
    tessera.torch_device puts both."""
    named = os.environ.get("TESSERA_TORCH_DEVICE")
    device = pathlib.Path(named) if named else built_path(pathlib.Path(torch.__file__).parent, DEVICE)
    path = device if library == DEVICE else device.with_name(library)
    if not path.exists():
        raise ImportError(f"tessera.torch: {library}, compiled against torch {torch.__version__}, is not at {path}. {_HOW}")
    made_for, here = (stamp_path(path).read_text() if stamp_path(path).exists() else "an unknown torch"), stamp(torch.__version__)
    if made_for != here:
        raise ImportError(f"tessera.torch: {path} was compiled for {made_for}, and this is {here}; compile it again: "
                          f"{sys.executable} -m tessera.torch_device")
    return path


def _function(path: pathlib.Path, name: str):
    """A function of the compiled device, by the name of what gives it."""
    try:
        function = getattr(ctypes.PyDLL(str(path)), name)
    except AttributeError:
        raise ImportError(f"tessera.torch: {path} was compiled from another version of tessera. {_HOW}") from None
    function.restype = ctypes.py_object
    return function()


_tessera.add_own_folder(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_path = compiled_path(DEVICE)
torch.ops.load_library(str(_path))
# make(type, shape, dtype) or make(type, shape, dtype, strides, offset): a tensor on this device without memory.
make = _function(_path, "tessera_make")
# become(tensor, other): the device, dtype, shape and storage of another tensor, as `tensor.data = other` gives them.
become = _function(_path, "tessera_become")
# dispatch(type, again, refusals, slot, ops): from then on these ops go to their rows at once where all tensors are of the type.
dispatch = _function(_path, "tessera_dispatch")
