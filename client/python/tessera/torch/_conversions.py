"""module.to, .half, .cpu and their like: a parameter that changes its device stays the same object.

torch's own devices keep a parameter by `parameter.data = converted`, which torch refuses where one of the two is on this device.
Module._apply makes new parameters then: tied ones come apart, and an optimizer goes on with the old ones.

>>> head.weight = embedding.weight
>>> optimizer = torch.optim.AdamW(model.parameters())
>>> model.to("tessera")
>>> head.weight is embedding.weight is optimizer.param_groups[0]["params"][0]
True
"""

from __future__ import annotations

import functools

import torch

from .._errors import FailedPreconditionError
from ._library import become as _become
from ._tensor import Tensor

_OWN = ("_cell", "_view", "_seen", "_parameter", "_unit", "_is_held", "_bucket_bytes", "_moves_in")    # what this package keeps on a parameter
count = 0       # of the parameters that have changed their device in this process


def become(parameter: torch.nn.Parameter, other: torch.Tensor) -> torch.nn.Parameter:
    """Gives a parameter the device, dtype, shape and value of another tensor, on tessera or not. The parameter keeps its identity,
    hooks, attributes, requires_grad and gradient."""
    global count
    count += 1
    _become(parameter, other)
    if not isinstance(other, Tensor):
        parameter.__class__ = torch.nn.Parameter
        for name in _OWN:
            parameter.__dict__.pop(name, None)
        if (watcher := parameter.__dict__.pop("_bucket", None)) is not None:
            watcher.remove()
        return parameter
    parameter.__class__ = Tensor
    parameter._cell, parameter._view, parameter._seen = other._cell, other._view, other._seen
    parameter._is_param = True      # from here on its gradients are brought to its placements
    return parameter


class _Conversion:
    """The function that Module._apply calls on each tensor of a module. A parameter that changes to or from this device becomes the
    result; a buffer that has several names has one result."""

    def __init__(self, function):
        self.function = function
        self.results: dict = {}     # by the id of a tensor: it, so that the id stays its own, and its result

    def __call__(self, tensor):
        if id(tensor) in self.results:
            return self.results[id(tensor)][1]
        out = self.function(tensor)
        if not isinstance(out, torch.Tensor) or isinstance(out, Tensor) == isinstance(tensor, Tensor):
            return out
        if torch.nn.parameter.is_lazy(tensor):
            raise FailedPreconditionError(f"to: a {type(tensor).__name__} has no shape yet; call the module on one batch on the CPU before "
                                          "it goes to tessera")
        if isinstance(tensor, torch.nn.Parameter):
            return become(tensor, out)
        self.results[id(tensor)] = tensor, out
        return out


_apply_of_torch = torch.nn.Module._apply


@functools.wraps(_apply_of_torch)
def _apply(self, fn, recurse=True):
    return _apply_of_torch(self, fn if isinstance(fn, _Conversion) else _Conversion(fn), recurse)


torch.nn.Module._apply = _apply
