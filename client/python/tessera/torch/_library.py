"""torch itself, and the compiled part of the device; with a clear error where one of them is missing."""

from __future__ import annotations

import ctypes
import os
import pathlib

import _tessera
from ..torch_device import DEVICE, HOW, found_path

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(f"tessera.torch needs PyTorch, which this Python doesn't have. {HOW}", name="torch") from None


def _function(path: pathlib.Path, name: str):
    """A function of the compiled device, by the name of what gives it."""
    try:
        function = getattr(ctypes.PyDLL(str(path)), name)
    except AttributeError:
        raise ImportError(f"tessera.torch: {path} was compiled from another version of tessera. {HOW}") from None
    function.restype = ctypes.py_object
    return function()


_tessera.add_own_folder(os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_path = found_path(pathlib.Path(torch.__file__).parent, DEVICE, torch.__version__, "tessera.torch")
torch.ops.load_library(str(_path))
# make(type, shape, dtype) or make(type, shape, dtype, strides, offset): a tensor on this device without memory.
make = _function(_path, "tessera_make")
# wrap(handle): a tensor with a cell of its own; wrap(tensor class, cell class, dtypes by number, address of the extension's
# functions), once, says of what.
wrap = _function(_path, "tessera_wrap")
# view_rows(handle_of, steps): the rows of views by their names, functions that enter none of Python's.
view_rows = _function(_path, "tessera_view_rows")
# become(tensor, other): the device, dtype, shape and storage of another tensor, as `tensor.data = other` gives them.
become = _function(_path, "tessera_become")
# dispatch(again, refusals, rebind, ops): from then on these ops go to their rows at once where all tensors are of that class.
dispatch = _function(_path, "tessera_dispatch")
