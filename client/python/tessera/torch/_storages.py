"""torch.save and torch.load: what a file of torch says of a tensor here, and where its tensors go.

A file has a tensor as torch itself writes one of a GPU: a storage with its values, and a text that says where it lay. Here the text is
`tessera:0`, and behind a slash the placements, as in `tessera:0/S(0),R`. So torch alone reads the file with map_location="cpu".

torch.load brings storages to a place first and makes tensors of them. A storage here stays on the CPU and is only marked; the tensor
that is made of it uploads its own elements.
"""

from __future__ import annotations

import collections
import re
import weakref

import torch

from .._placements import REPLICATE, Shard, has_sizes_for, is_within
from ._device import DEVICE, NAME
from ._moving import default_mesh, default_place, upload
from ._table import row
from ._tensor import Tensor, handle_of, wrap

_SHARD = re.compile(r"S\((-?\d{1,9})(?:;(\d{1,18}(?:,\d{1,18})*))?\)|R")
_written: weakref.WeakValueDictionary = weakref.WeakValueDictionary()      # by id of a handle the storage of its values, while a file is made


class _Marked(torch.UntypedStorage):
    """A CPU storage whose tensors are made on this device."""

    location = NAME
    handle = None       # of a storage that is written: its values are this handle's, whose id is kept with it

    @property
    def device(self) -> torch.device:
        return DEVICE


def _marked(storage, location: str):
    """A storage on this device, as torch.serialization asks for it; None where the place is another one."""
    if not re.match(rf"{NAME}(?![^:/])", location):
        return None
    device, _, _ = location.partition("/")
    where = torch.serialization._serialization_tls.map_location
    if isinstance(where, dict) and (other := where.get(device, where.get(NAME))) is not None:
        return torch.serialization.default_restore_location(storage, str(other))
    marked = storage.cpu()
    marked.__class__ = _Marked      # a copy would be made byte by byte
    marked.location = location
    return marked


torch.serialization.register_package(9, lambda storage: storage.location if isinstance(storage, _Marked) else None, _marked)


def _text_of(placements) -> str:
    """S(0),R of placements. A pending sum's values are whole."""
    return ",".join("R" if one.is_partial() else str(one) for one in placements)


def _placements_of(location: str):
    """The placements that a location says; None where it says none that can be read."""
    text = location.partition("/")[2]
    found = list(_SHARD.finditer(text))
    if not text or ",".join(one[0] for one in found) != text:
        return None
    return [REPLICATE if one[1] is None else Shard(int(one[1]), None if one[2] is None else [int(n) for n in one[2].split(",")]) for one in found]


def _place_of(location: str, shape) -> tuple:
    """The mesh and the placements of a loaded tensor: those that were saved, on a default mesh of as many dims; equal
    shards where its explicit sizes don't fit."""
    mesh, placements = default_mesh(), _placements_of(location)
    if placements is None or len(placements) != len(mesh._raw.shape) or not all(is_within(one, len(shape)) for one in placements):
        return default_place(shape)
    return mesh, [one if has_sizes_for(one, extent, shape) else Shard(one.dim) for one, extent in zip(placements, mesh._raw.shape)]


def reduced(tensor: Tensor) -> tuple:
    """The pickle of a tensor. Tensors with one value share its storage in a file."""
    handle = handle_of(tensor)
    storage = _written.get(id(handle))
    if storage is None:
        storage = tensor.detach().cpu().contiguous().untyped_storage()
        storage.__class__ = _Marked
        storage.location, storage.handle = f"{DEVICE}/{_text_of(handle._placements)}", handle
        _written[id(handle)] = storage
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=tensor.dtype, _internal=True)
    hooks = collections.OrderedDict()
    plain = (torch._utils._rebuild_tensor_v2, (typed, 0, tuple(tensor.shape), row_major(tensor.shape), tensor.requires_grad and not tensor._is_param, hooks))
    return (torch._utils._rebuild_parameter, (_Pickled(plain), tensor.requires_grad, hooks)) if tensor._is_param else plain


def row_major(shape) -> tuple:
    """The strides of a dense tensor, in elements."""
    return torch.empty(shape, device="meta").stride()


class _Pickled:
    """Stands for the value that a function gives for arguments; its place in a pickle is that call."""

    def __init__(self, call: tuple):
        self._call = call

    def __reduce_ex__(self, protocol):
        return self._call


@row("set_.source_Storage_storage_offset", how="client")
def set_storage(x, storage, offset, size, stride=()):
    """x becomes what these elements of a CPU storage are, uploaded."""
    values = torch.empty(0, dtype=x.dtype).set_(storage, offset, tuple(size), tuple(stride))
    location = storage.location if isinstance(storage, _Marked) else NAME
    x.data = wrap(upload(values, *_place_of(location, values.shape)))
    return x
