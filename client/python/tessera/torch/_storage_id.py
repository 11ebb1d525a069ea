"""The storage of a tensor on workers, as far as a process can have it: an id and a size, by which safetensors, PEFT and
transformers find out which tensors share their elements. They bring the elements by tensor.cpu() then."""

from __future__ import annotations

import itertools

from .._errors import FailedPreconditionError

# Above all addresses of a process, so that none is taken for memory that is there.
_FIRST = 1 << 63
_SPACE = 1 << 44        # ids are so far apart that no offset of one reaches the next
_numbers = itertools.count()


class StorageId:
    """tensor.untyped_storage()"""

    def __init__(self, tensor):
        self._tensor = tensor

    @property
    def device(self):
        return self._tensor.device

    @property
    def is_cuda(self) -> bool:
        return False

    def data_ptr(self) -> int:
        cell = self._tensor._cell
        if cell.storage_id is None:
            cell.storage_id = _FIRST + next(_numbers) % (1 << 18) * _SPACE
        return cell.storage_id

    def nbytes(self) -> int:
        cell = self._tensor._cell
        base = self._tensor if self._tensor._view is None else cell.get()
        return int(base.nbytes)

    size = __len__ = nbytes

    def element_size(self) -> int:
        return 1

    def resizable(self) -> bool:
        return False

    def is_shared(self) -> bool:
        return False

    def is_pinned(self, device=None) -> bool:
        return False

    def __eq__(self, other):
        return isinstance(other, StorageId) and other._tensor._cell is self._tensor._cell

    def __hash__(self):
        return hash(id(self._tensor._cell))

    def __repr__(self):
        return f"<storage of {self._tensor!r}: {self.nbytes()} bytes on workers>"

    def __getattr__(self, name):
        if name.startswith("_"):        # that torch asks whether there is one
            raise AttributeError(name)
        raise FailedPreconditionError(f"untyped_storage().{name}: {self._tensor!r} lives on workers and has no storage in this process; "
                                      "take x.cpu() first")
