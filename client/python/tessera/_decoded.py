"""Files that a library of Python decodes in this process: HDF5 (h5py), Parquet (pyarrow) and zarr.

They are the client's own files, read as its user. Bytes pass through the client, but for one slab, or one chunk of the
file where that is larger, never at one time: rows are decoded into the memory that workers take them from.
"""

from __future__ import annotations

import contextlib
import importlib
import os

import numpy as np

from . import _index
from ._downloads import rows_of
from ._dtypes import code_of
from ._errors import (DTypeError, FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError, ResourceExhaustedError,
                      TesseraError)
from ._file_tensor import FileTensor
from ._placements import Partial, Replicate, Shard
from ._progress import bar_of
from ._session import distribute, mesh_for

_AT_ONCE = 4 << 20      # docs/limits.md: decoded_bytes


def _library(name: str, op: str, path: str):
    """h5py, pyarrow.parquet or zarr; they are wanted by these formats alone."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise FailedPreconditionError(f"{op}: {path}: files of this format are read and written by the package {package}, which "
                                      f"isn't installed: pip install {package}") from None


@contextlib.contextmanager
def _told(op: str, path: str):
    """What a library says of a file, as the other formats say it."""
    try:
        yield
    except (TesseraError, KeyboardInterrupt):
        raise
    except FileNotFoundError:
        raise NotFoundError(f"{op}: {path}: there is no such file") from None
    except PermissionError:
        raise PermissionDeniedError(f"{op}: {path}: this process may not") from None
    except Exception as error:      # of any kind: the libraries have no class of their own for it
        if isinstance(error, OSError) and error.errno == 28:
            raise ResourceExhaustedError(f"{op}: {path}: the disk is full") from None
        raise InvalidArgumentError(f"{op}: {path}: {type(error).__name__}: {str(error)[:300]}") from None


class DecodedTensor(FileTensor):
    """A tensor in a file that is decoded here. `read` takes forward slices, one for each dim."""

    def __init__(self, file, name, dtype, shape, read, chunk_rows):
        self._file, self.name, self._read, self._chunk_rows = file, name, read, max(1, chunk_rows)
        self.dtype = np.dtype(dtype).newbyteorder("=")
        self.shape = tuple(int(n) for n in shape)
        self._code = code_of(self.dtype, file.op)

    def load(self, device_mesh=None, placements=None, *, index=...):
        """The tensor, or the part of it that a basic index takes, on a mesh. It is read here, by rows, and has been read
        when this returns. placements: Shard(0) over the first mesh dim if they are not given."""
        part = _Part(self, _index.normalise(index, self.shape))
        mesh = mesh_for(device_mesh, self._file.op, self._file.session)
        if placements is None:
            placements = [Shard(0) if m == 0 and part.shape else Replicate() for m in range(mesh.ndim)]
        session = self._file.session or mesh._session
        nbytes = self.dtype.itemsize * int(np.prod(part.shape, dtype=object))
        if not part.shape or nbytes <= _AT_ONCE:
            return distribute(session, part.rows(0, part.shape[0] if part.shape else 1), mesh, placements)

        def read(start, stop, memory):
            out = np.frombuffer(memory, np.uint8).view(self.dtype).reshape(stop - start, *part.shape[1:])
            out[...] = part.rows(start, stop)

        with bar_of(f"load {os.path.basename(self._file.path)}", nbytes):
            return session._distribute_rows(self._code, list(part.shape), mesh._raw, mesh._placements(placements, self._file.op), read)


class _Part:
    """What a basic index takes of a tensor, by rows of its own first dim. A block of whole chunks is kept: slabs follow each
    other in it."""

    def __init__(self, tensor, items):
        self._tensor, self._items = tensor, items
        self.shape = tuple(1 if kind == 2 else size for kind, _, size, _ in items if kind != 1)
        stored = [item for item in items if item[0] != 2]
        self._stored = stored
        first = next((i for i, item in enumerate(items) if item[0] != 1), None)
        # The stored dim that the first dim is; none where that is new.
        self._row_dim = None if first is None or items[first][0] == 2 else first
        self._block, self._block_start = np.empty((0, *self.shape[1:]), tensor.dtype), 0

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows of the part; of a part without dims, the number."""
        if self._row_dim != 0 or self._stored[0][3] != 1:
            return self._decode(start, stop)
        if not self._block_start <= start <= self._block_start + len(self._block):
            self._block, self._block_start = self._block[:0], start
        head = self._block[start - self._block_start:stop - self._block_start]
        if len(head) == stop - start:
            return head
        first, chunk = self._stored[0][1], self._tensor._chunk_rows
        self._block_start += len(self._block)       # the chunk goes on in the rows that are left
        ahead = -(-(first + stop) // chunk) * chunk - first
        self._block = self._decode(self._block_start, min(ahead, self.shape[0]))
        rest = self._block[:stop - self._block_start]
        return np.concatenate([head, rest]) if len(head) else rest

    def _decode(self, start: int, stop: int) -> np.ndarray:
        slices, turned = [], []
        for d, (kind, first, size, step) in enumerate(self._stored):
            if kind == 1:
                size, step = 1, 1
            elif d == self._row_dim:
                first, size = first + start * step, stop - start
            last = first + (size - 1) * step
            slices.append(slice(min(first, last), max(first, last) + 1, abs(step)) if size > 0 else slice(0, 0, 1))
            turned.append(slice(None, None, -1 if step < 0 else 1))
        file = self._tensor._file
        with _told(file.op, file.path):
            array = np.asarray(self._tensor._read(tuple(slices)))[tuple(turned)]
        shape = (stop - start, *self.shape[1:]) if self._row_dim is not None else self.shape
        return array.reshape(shape)


class _Decoded:
    """An open file: what its tensors say of it."""

    def __init__(self, path, op, session):
        self.path, self.op, self.session = path, op, session

    def tensor(self, name, dtype, shape, read, chunk_rows):
        try:
            return DecodedTensor(self, name, dtype, shape, read, chunk_rows)
        except DTypeError:
            raise InvalidArgumentError(f"{self.op}: {self.path}: {name or 'it'} has the dtype {dtype}, which no tensor has") from None


def _has_dtype(dtype) -> bool:
    try:
        code_of(dtype, "")
    except DTypeError:
        return False
    return True


# ---- reading ------------------------------------------------------------------------------------

def read_hdf5(path, op, session):
    """The datasets of numbers, by their names from the root on."""
    library = _library("h5py", op, path)
    if not os.path.isfile(path):
        raise NotFoundError(f"{op}: {path}: there is no such file")
    file, found = _Decoded(path, op, session), {}
    with _told(op, path):
        opened = library.File(path, "r")
        names = []
        opened.visit(names.append)
        for name in names:
            one = opened[name]
            if isinstance(one, library.Dataset) and one.shape is not None and _has_dtype(one.dtype):
                chunk_rows = one.chunks[0] if one.chunks else 1
                found[name] = file.tensor(name, one.dtype, one.shape, one.__getitem__, chunk_rows)
    return found


def read_zarr(path, op, session):
    """The array; of a group those in it, by their names from it on."""
    library = _library("zarr", op, path)
    if not os.path.isdir(path):
        wrong = InvalidArgumentError if os.path.exists(path) else NotFoundError
        raise wrong(f"{op}: {path}: there is no such folder, which a zarr file is")
    file = _Decoded(path, op, session)

    def tensor(name, array):
        chunk_rows = (array.shards or array.chunks)[0] if array.ndim else 1
        return file.tensor(name, array.dtype, array.shape, array.__getitem__, chunk_rows)

    with _told(op, path):
        opened = library.open(path, mode="r")
        if isinstance(opened, library.Array):
            return tensor("", opened)
        members = dict(opened.members(max_depth=None))
        return {name: tensor(name, one) for name, one in members.items() if isinstance(one, library.Array) and _has_dtype(one.dtype)}


def read_parquet(path, op, session):
    """The columns of numbers, by name: one dim each, two where an entry is a list of a fixed size."""
    library = _library("pyarrow.parquet", op, path)
    file, found = _Decoded(path, op, session), {}
    with _told(op, path):
        opened = library.ParquetFile(path, memory_map=True)
        groups = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
        ends = np.cumsum([0, *groups])
        for field in opened.schema_arrow:
            dtype, extents = _column_dtype(field.type)
            if dtype is not None:
                column = _Column(opened, field.name, ends, dtype, extents, file)
                found[field.name] = file.tensor(field.name, dtype, (int(ends[-1]), *extents), column.read, max(groups, default=1))
    return found


def _column_dtype(kind):
    import pyarrow
    extents = []
    while pyarrow.types.is_fixed_size_list(kind):
        extents.append(kind.list_size)
        kind = kind.value_type
    plain = pyarrow.types.is_boolean(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    return (np.dtype(kind.to_pandas_dtype()), extents) if plain else (None, extents)


class _Column:
    def __init__(self, opened, name, ends, dtype, extents, file):
        self._opened, self._name, self._ends, self._dtype, self._extents, self._file = opened, name, ends, dtype, extents, file

    def read(self, slices) -> np.ndarray:
        start, stop, step = slices[0].indices(int(self._ends[-1]))
        first = int(np.searchsorted(self._ends, start, "right")) - 1
        last = int(np.searchsorted(self._ends, stop, "left"))
        if stop <= start:
            return np.empty((0, *self._extents), self._dtype)[(slice(None), *slices[1:])]
        table = self._opened.read_row_groups(range(first, last), columns=[self._name])
        parts = []
        for chunk in table.column(0).chunks:
            for _ in self._extents:
                if chunk.null_count:
                    break
                chunk = chunk.flatten()
            if chunk.null_count:
                raise InvalidArgumentError(f"{self._file.op}: {self._file.path}: column {self._name!r} has values that are missing "
                                           "(null), which no tensor has")
            parts.append(chunk.to_numpy(zero_copy_only=False))
        values = np.concatenate(parts).astype(self._dtype, copy=False).reshape(-1, *self._extents)
        offset = int(self._ends[first])
        return values[(slice(start - offset, stop - offset, step), *slices[1:])]


# ---- writing ------------------------------------------------------------------------------------

def _slabs(x):
    """(start, stop) of rows, as many as an upload takes at a time."""
    row_bytes = max(1, x.nbytes // max(1, x.shape[0]))
    rows = max(1, _AT_ONCE // row_bytes)
    return [(start, min(start + rows, x.shape[0])) for start in range(0, x.shape[0], rows)]


def _whole(x):
    """Without pending terms."""
    return x.redistribute([Replicate() if isinstance(p, Partial) else p for p in x.placements]) if x._has_partial else x


def _copy(x, stored) -> None:
    """The values of a tensor into what takes slices of rows."""
    x = _whole(x)
    if not x.ndim or not x.size:
        if x.size:
            stored[...] = x.full_tensor()
        return
    for start, stop in _slabs(x):
        stored[start:stop] = rows_of(x, start, stop)


def _remove(folder, **options) -> None:
    import shutil       # not before a file is written
    shutil.rmtree(folder, **options)


@contextlib.contextmanager
def _replacing(path):
    """A path beside, which takes the place of `path` when the block ends well."""
    beside = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.tessera-{os.urandom(8).hex()}")
    try:
        with _told("save", path):
            yield beside
            if os.path.isdir(beside) and os.path.lexists(path):     # a folder takes no other's place by itself
                old = f"{beside}-old"
                os.rename(path, old)
                os.rename(beside, path)
                _remove(old) if os.path.isdir(old) else os.unlink(old)
            else:
                os.replace(beside, path)
    finally:
        if os.path.isdir(beside):
            _remove(beside, ignore_errors=True)
        elif os.path.lexists(beside):
            os.unlink(beside)


def _refuse_bfloat16(path, tensors) -> None:
    for name, x in tensors.items():
        if x.dtype.name == "bfloat16":
            raise InvalidArgumentError(f"save: {path}: {name!r}: such a file has no bfloat16; save to a .safetensors file, or x.astype(ts.float32)")


def write_hdf5(path, tensors, metadata) -> None:
    library = _library("h5py", "save", path)
    _refuse_bfloat16(path, tensors)
    with _replacing(path) as beside, library.File(beside, "w") as file:
        file.attrs.update(metadata)
        for name, x in tensors.items():
            _copy(x, file.create_dataset(name, x.shape, x.dtype))


def write_zarr(path, tensors, metadata) -> None:
    """`tensors`: a dict, or one, which is the file's only array."""
    library = _library("zarr", "save", path)
    _refuse_bfloat16(path, tensors if isinstance(tensors, dict) else {"x": tensors})

    def create(place, x):
        chunks = tuple(max(1, n) for n in x.shape)
        if x.ndim and x.size:
            chunks = (_slabs(x)[0][1], *chunks[1:])
        return place(shape=x.shape, dtype=x.dtype, chunks=chunks)

    with _replacing(path) as beside:
        if not isinstance(tensors, dict):
            _copy(tensors, create(lambda **options: library.create_array(beside, attributes=metadata, **options), tensors))
            return
        group = library.create_group(beside, attributes=metadata)
        for name, x in tensors.items():
            _copy(x, create(lambda name=name, **options: group.create_array(name, **options), x))


def write_parquet(path, tensors, metadata) -> None:
    library = _library("pyarrow.parquet", "save", path)
    import pyarrow
    _refuse_bfloat16(path, tensors)
    rows = {x.shape[0] if x.ndim else None for x in tensors.values()}
    if len(rows) > 1 or None in rows:
        shapes = ", ".join(f"{name!r} has {list(x.shape)}" for name, x in tensors.items())
        raise InvalidArgumentError(f"save: {path}: columns of a table have one number of rows: {shapes}")
    fields = []
    for name, x in tensors.items():
        if x.dtype.kind == "c":
            raise InvalidArgumentError(f"save: {path}: {name!r}: a .parquet file has no {x.dtype}")
        kind = pyarrow.from_numpy_dtype(x.dtype)
        for extent in reversed(x.shape[1:]):
            kind = pyarrow.list_(kind, extent)
        fields.append(pyarrow.field(name, kind, nullable=False))
    schema = pyarrow.schema(fields, metadata=metadata or None)

    def column(x, field, start, stop):
        values = rows_of(x, start, stop)
        out = pyarrow.array(values.reshape(-1))
        for extent in reversed(x.shape[1:]):
            out = pyarrow.FixedSizeListArray.from_arrays(out, extent)
        return out.cast(field.type) if out.type != field.type else out

    with _replacing(path) as beside, library.ParquetWriter(beside, schema) as writer:
        whole = {name: _whole(x) for name, x in tensors.items()}
        widest = max(whole.values(), key=lambda x: x.nbytes, default=None)
        for start, stop in _slabs(widest) if widest is not None and widest.shape[0] else []:
            writer.write_table(pyarrow.table([column(x, field, start, stop) for x, field in zip(whole.values(), fields)], schema=schema))
