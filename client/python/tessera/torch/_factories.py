"""torch's factories with device_mesh= and placements=, as torch.distributed.tensor has them."""

from __future__ import annotations

import torch

from .._errors import InvalidArgumentError
from .._placements import is_within
from ._device import DEVICE
from ._moving import default_placement
from ._tensor import Tensor


def _factory(name: str, what: str):
    base = getattr(torch, name)

    def make(*args, requires_grad=False, dtype=None, layout=torch.strided, device_mesh=None, placements=None, **options) -> Tensor:
        if layout is not torch.strided:
            raise InvalidArgumentError(f"{name}: layout is {layout}; tensors on a mesh are {torch.strided}")
        with default_placement(device_mesh, placements):
            out = base(*args, **options, dtype=dtype, device=DEVICE)
        mesh = out.device_mesh if device_mesh is None else device_mesh
        for one in [] if placements is None else mesh._placements(placements, name):    # default_placement makes it Replicate
            if not is_within(one, out.ndim):
                raise InvalidArgumentError(f"{name}: {one!r} of a tensor of {out.ndim} dims, {list(out.shape)}")
        return out.requires_grad_(requires_grad)

    make.__name__ = make.__qualname__ = name
    make.__module__ = "tessera.torch"
    make.__doc__ = f"{what} The arguments are those of torch.{name}, with device_mesh= (default: default_placement's) and placements= (default: Replicate)."
    return make


zeros = _factory("zeros", "A tensor of zeros on a mesh.")
ones = _factory("ones", "A tensor of ones on a mesh.")
empty = _factory("empty", "A tensor on a mesh whose values nobody wrote.")
full = _factory("full", "A tensor of one value on a mesh.")
rand = _factory("rand", "Uniform numbers on a mesh, the same on every mesh and placement.")
randn = _factory("randn", "Normal numbers on a mesh, the same on every mesh and placement.")
linspace = _factory("linspace", "Numbers at equal distances on a mesh.")
logspace = _factory("logspace", "Numbers whose logarithms are at equal distances, on a mesh.")
