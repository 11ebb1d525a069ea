"""torch.distributed.checkpoint in one program: async_save, and options that are for several ranks."""

from __future__ import annotations

import dataclasses
import functools

import torch

from .._tensor import Tensor, handle_of, wrap


def install_stager(module) -> None:
    """module: torch.distributed.checkpoint._state_dict_stager. async_save stages a tensor by its handle, whose value no later step changes:
    no byte moves before the thread that writes asks for it."""
    offload = module.StateDictStager._offload_tensor

    @functools.wraps(offload)
    def offload_tensor(self, x, memo, non_blocking=False):
        if not isinstance(x, Tensor):
            return offload(self, x, memo, non_blocking=non_blocking)
        memo[id(x)] = staged = wrap(handle_of(x))
        return staged

    module.StateDictStager._offload_tensor = offload_tensor


def install_state_dict(module) -> None:
    """module: torch.distributed.checkpoint.state_dict. The only program is rank 0, and has nothing to broadcast to others."""
    verify = module._verify_options

    @functools.wraps(verify)
    def verify_options(model, optims, optim_only, *, submodules=None, options=None):
        if options is not None and options.broadcast_from_rank0 and not torch.distributed.is_initialized():
            options = dataclasses.replace(options, broadcast_from_rank0=False)
        return verify(model, optims, optim_only, submodules=submodules, options=options)

    module._verify_options = verify_options
