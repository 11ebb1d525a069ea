"""torch.distributed's backend `tessera`, for programs that use the device `tessera`, too: tessera.torch_ranks."""

from ..torch_ranks import NAME, create, register

__all__ = ["NAME", "create", "register"]
