"""Optimizers that were made before their parameters came to this device, or left it: what they keep follows.

An optimizer keeps a state for each parameter, by the parameter itself, which stays the same object (_conversions.py). Before a step
its tensors are brought to where the parameter is by now.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._mesh import DeviceMesh
from .._session import session_of
from . import _conversions
from ._moving import on_mesh
from ._tensor import Tensor, handle_of


def _followed(value, parameter, is_on_device: bool):
    """A state's value where the parameter is. Numbers (steps) stay in this process, unless the group keeps them on the device."""
    if isinstance(value, (list, tuple)):
        return type(value)(_followed(one, parameter, is_on_device) for one in value)
    if not isinstance(value, torch.Tensor) or isinstance(value, Tensor) == isinstance(parameter, Tensor):
        return value
    if isinstance(value, Tensor):
        return value.cpu()
    if value.ndim == 0 and not is_on_device:
        return value
    handle = handle_of(parameter)
    placements = list(handle._placements) if value.shape == parameter.shape else None
    return on_mesh(value, DeviceMesh._wrap(session_of(handle), handle._mesh), placements)


def _follow(optimizer, args, kwargs) -> None:
    if optimizer.__dict__.get("_seen_conversions", 0) == _conversions.count:
        return
    optimizer._seen_conversions = _conversions.count
    for group in optimizer.param_groups:
        is_on_device = bool(group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if isinstance(state, dict):
                state.update((name, _followed(value, parameter, is_on_device)) for name, value in list(state.items()))


register_optimizer_step_pre_hook(_follow)
