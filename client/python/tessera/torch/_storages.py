"""torch.load(path, map_location="tessera"): what was saved from another device goes to the default placement.

torch brings storages to a place first and makes tensors of them. A storage here stays on the CPU and is only marked; the tensor
that is made of it uploads its own elements.
"""

from __future__ import annotations

import torch

from ._device import DEVICE, NAME
from ._moving import default_place, upload
from ._table import row
from ._tensor import wrap


class _Marked(torch.UntypedStorage):
    """A CPU storage whose tensors are made on this device."""

    @property
    def device(self) -> torch.device:
        return DEVICE


def _marked(storage, location: str):
    """What torch.serialization asks of each device: the storage there, or None where the place is another one."""
    if location.partition(":")[0] != NAME:
        return None
    marked = storage.cpu()
    marked.__class__ = _Marked      # a copy would be made byte by byte
    return marked


torch.serialization.register_package(9, lambda storage: NAME if isinstance(storage, _Marked) else None, _marked)


@row("set_.source_Storage_storage_offset", how="client")
def set_storage(x, storage, offset, size, stride=()):
    """x becomes what these elements of a CPU storage are, uploaded."""
    values = torch.empty(0, dtype=x.dtype).set_(storage, offset, tuple(size), tuple(stride))
    x.data = wrap(upload(values, *default_place(values.shape)))
    return x
