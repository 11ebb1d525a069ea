"""The parts of HDF5, zarr and Parquet that a save needs, by h5py and pyarrow: the head of an HDF5 file in
which workers then write, the arrays of a zarr folder, the parts of a folder of Parquet, and the whole of a Parquet file, which is encoded in this process."""

from __future__ import annotations

import contextlib
import importlib
import os

import numpy as np

from ._downloads import rows_of
from ._dtypes import AS_BITS
from ._errors import FailedPreconditionError, InternalError, InvalidArgumentError, ResourceExhaustedError, TesseraError
from ._placements import Partial, Replicate, Shard
from ._stored import part_start

_AT_ONCE = 4 << 20      # docs/limits.md: encoded_bytes
_BLOCK = 64 << 10       # of an HDF5 file's head, at least
_TRIES = 5              # with twice the head each time
_PAGE = 4096            # values begin at one, so that what is written before them is told apart
_MAX_PARTS = 100_000    # docs/limits.md: max_table_parts
_ENTRY = 1024           # of a tensor, and of each folder on the way to it, in it


def _library(name: str, path: str):
    """h5py or pyarrow.parquet; they are wanted by these formats alone."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise FailedPreconditionError(f"save: {path}: files of this format are written by the package {package}, which "
                                      f"isn't installed: pip install {package}") from None


@contextlib.contextmanager
def _told(path: str):
    """The error of a library, as the other formats say it."""
    try:
        yield
    except (TesseraError, KeyboardInterrupt):
        raise
    except Exception as error:      # of any kind: the libraries have no class of their own for it
        if isinstance(error, OSError) and error.errno == 28:
            raise ResourceExhaustedError(f"save: {path}: the client's disk is full") from None
        raise InvalidArgumentError(f"save: {path}: {type(error).__name__}: {str(error)[:300]}") from None


def refuse_ml_dtypes(path, tensors) -> None:
    for name, x in tensors.items():
        if x.dtype in AS_BITS:
            raise InvalidArgumentError(f"save: {path}: {name!r}: such a file has no {x.dtype.name}; save to a .safetensors file, or x.astype(ts.float32)")


def hdf5_head(path, tensors, metadata, folder) -> tuple[bytes, list, int]:
    """The first bytes of the file, all that isn't values; where each tensor's values lie behind them; the file's size. HDF5
    itself says so of a file without values, sparse, that it makes in `folder`."""
    library = _library("h5py", path)
    names = sum(name.count("/") + 1 for name in tensors)
    block = _BLOCK + _ENTRY * names + sum(len(k) + len(v) + _ENTRY for k, v in metadata.items())
    made = os.path.join(folder, "head")
    with _told(path):
        for _ in range(_TRIES):
            places = _hdf5_places(library, made, tensors, metadata, block)
            size = os.path.getsize(made)
            begin = min((offset for _, offset in places), default=size)
            with open(made, "rb") as file:
                try:
                    behind = os.lseek(file.fileno(), begin, os.SEEK_DATA)
                except OSError:     # nothing but values, none of which is written
                    return file.read(begin), places, size
                if not places or behind >= size:
                    return file.read(), places, size
            os.unlink(made)
            block *= 2
    raise InternalError(f"save: {path}: HDF5 writes more than a head of {begin} bytes before values")


def _hdf5_places(library, made, tensors, metadata, block) -> list:
    way = library.h5p.create(library.h5p.LINK_CREATE)
    way.set_create_intermediate_group(True)
    how = library.h5p.create(library.h5p.DATASET_CREATE)
    how.set_layout(library.h5d.CONTIGUOUS)
    how.set_alloc_time(library.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(library.h5d.FILL_TIME_NEVER)
    places = []
    with library.File(made, "w", meta_block_size=block, alignment_threshold=1, alignment_interval=_PAGE) as file:
        file.attrs.update(metadata)
        for name, x in tensors.items():
            space = library.h5s.create_simple(tuple(x.shape)) if x.ndim else library.h5s.create(library.h5s.SCALAR)
            kind = library.h5t.py_create(np.dtype(x.dtype), logical=True)
            one = library.h5d.create(file.id, name.encode(), kind, space, dcpl=how, lcpl=way)
            if x.size:
                places.append((x, one.get_offset()))
    return places


def zarr_arrays(tensors, metadata) -> tuple[str, list]:
    """The file that the workers' decoder is to make, and (name, tensor) as they write them: a chunk is some rows, of about
    encoded_bytes, and each lies on one worker."""
    import json     # not before a file is written
    arrays, places = {}, []
    for name, x in tensors.items():
        chunks = [max(1, n) for n in x.shape]
        if x.ndim and x.size:
            chunks[0] = max(1, min(x.shape[0], _AT_ONCE // max(1, x.nbytes // x.shape[0])))
            mesh = x.device_mesh
            x = x.redistribute([Shard(0, sizes=_whole_chunks(x.shape[0], chunks[0], mesh.shape[0]))] + [Replicate()] * (mesh.ndim - 1))
        elif x.size:
            x = whole(x)
        arrays[name] = {"dtype": np.dtype(x.dtype).str, "shape": list(x.shape), "chunks": chunks}
        places.append((name, x))
    return json.dumps({"arrays": arrays, "attributes": metadata}), places


def _whole_chunks(rows, chunk, parts) -> list[int]:
    count = -(-rows // chunk)
    ends = [min(rows, chunk * (count * (i + 1) // parts)) for i in range(parts)]
    return [end - start for start, end in zip([0, *ends], ends)]


def whole(x):
    """Without pending terms."""
    return x.redistribute([Replicate() if isinstance(p, Partial) else p for p in x.placements]) if x._has_partial else x


def slabs(x) -> list[tuple[int, int]]:
    """(start, stop) of rows, as many as are brought here at a time."""
    row_bytes = max(1, x.nbytes // max(1, x.shape[0]))
    rows = max(1, _AT_ONCE // row_bytes)
    return [(start, min(start + rows, x.shape[0])) for start in range(0, x.shape[0], rows)]


def table_columns(path, tensors) -> list:
    """(name, dtype, extents of a row) of what are to be columns of one table."""
    rows = {x.shape[0] if x.ndim else None for x in tensors.values()}
    if len(rows) > 1 or None in rows:
        shapes = ", ".join(f"{name!r} has {list(x.shape)}" for name, x in tensors.items())
        raise InvalidArgumentError(f"save: {path}: columns of a table have one number of rows: {shapes}")
    for name, x in tensors.items():
        if x.dtype.kind == "c":
            raise InvalidArgumentError(f"save: {path}: {name!r}: a Parquet file has no {x.dtype}")
    return [(name, np.dtype(x.dtype), tuple(x.shape[1:])) for name, x in tensors.items()]


def table_parts(path, tensors, metadata, parts) -> tuple[str, list]:
    """The file that the workers' decoder is to make, and (name, tensor) as they write them: each worker's rows are whole parts."""
    import json     # not before a file is written
    columns = table_columns(path, tensors)
    if not columns or any(0 in extents for _, _, extents in columns):
        raise InvalidArgumentError(f"save: {path}: a table has columns, and a column has entries")
    first = next(iter(tensors.values()))
    mesh, rows = first.device_mesh.flatten(), first.shape[0]
    parts = max(1, min(mesh.size() if parts is None else parts, rows, _MAX_PARTS))
    ends = [part_start(parts * (i + 1) // mesh.size(), rows, parts) for i in range(mesh.size())]
    placements = [Shard(0, sizes=[end - start for start, end in zip([0, *ends], ends)])]
    plan = {"columns": [[name, dtype.str, extents] for name, dtype, extents in columns], "metadata": metadata, "rows": rows, "parts": parts}
    return json.dumps({"table": plan}), [(name, x.redistribute(mesh, placements)) for name, x in tensors.items()]


def write_parquet(path, tensors, metadata, made) -> None:
    """The file, in this process, at `made`: its rows come here, a slab at a time."""
    library = _library("pyarrow.parquet", path)
    from ._parquet import schema_of, table_of
    schema = schema_of(table_columns(path, tensors), metadata)
    with _told(path), library.ParquetWriter(made, schema) as writer:
        of_rows = {name: whole(x) for name, x in tensors.items()}
        widest = max(of_rows.values(), key=lambda x: x.nbytes, default=None)
        for start, stop in slabs(widest) if widest is not None and widest.shape[0] else []:
            writer.write_table(table_of(schema, [rows_of(x, start, stop) for x in of_rows.values()]))
