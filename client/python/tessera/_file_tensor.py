"""FileTensor: what a file says of a tensor in it."""

from __future__ import annotations

import numpy as np
from _tessera import Tensor

from . import _index


class FileTensor:
    """A tensor in a file: what it is, known, and its values, not read yet. `f[a:b]`, or `f.load(...)`, has the workers read."""

    def __init__(self, file, name, dtype, shape, offset, strides, *, is_decoded=False, member="", refused=""):
        """Its bytes lie in the file, or, decoded, are those that the workers' decoder gives for `member`. refused: why it can't be read."""
        self._file, self.name, self._is_decoded, self._member, self._refused = file, name, is_decoded, member, refused
        self._stored = np.dtype(dtype)              # with its byte order
        self.dtype = self._stored.newbyteorder("=")
        self.shape, self._offset, self._strides = tuple(int(n) for n in shape), int(offset), tuple(int(n) for n in strides)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __repr__(self):
        name = f"{self.name!r} of " if self.name else ""
        return f"<FileTensor {self.dtype.name}{list(self.shape)}: {name}{self._file.path}>"

    def __getitem__(self, index) -> Tensor:
        return self.load(index=index)

    def load(self, device_mesh=None, placements=None, *, index=...) -> Tensor:
        """The tensor, or the part of it that a basic index takes (x[a:b, ::2, None]), on a mesh: each worker reads its own
        shard. placements: Shard(0) over the first mesh dim if they are not given."""
        return self._file.load([self._part(index)], device_mesh, [placements])[0]

    def _part(self, index):
        """(this, shape, offset, strides) of what the index takes."""
        shape, strides, offset, dim = [], [], self._offset, 0
        for kind, start, size, step in _index.normalise(index, self.shape):
            if kind == 2:       # None
                shape.append(1)
                strides.append(0)
                continue
            offset += start * self._strides[dim] if size or kind == 1 else 0
            if kind == 0:
                shape.append(size)
                strides.append(self._strides[dim] * step)
            dim += 1
        return self, shape, offset, strides


FileTensor.__module__ = "tessera"
