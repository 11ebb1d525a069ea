"""Files of the workers' host: each worker reads and writes its own part, and no tensor passes through the client. Where
values don't lie plainly in a file a process beside each worker decodes them (decoder.py). One file of Parquet alone is
written here (_encoded.py)."""

from __future__ import annotations

import io
import os

import _tessera
import numpy as np
from _tessera import Tensor

from . import _context, _encoded
from ._dtypes import AS_BITS, bfloat16, code_of, float8_e4m3fn, float8_e5m2
from ._errors import ArgumentError, DTypeError, InvalidArgumentError, NotFoundError, UnimplementedError
from ._file_tensor import FileTensor
from ._placements import Partial, Placement, Replicate, Shard, listed
from ._progress import background_bar_of, bar_of
from ._session import distribute, mesh_for

_PART = 1 << 20                 # of a header that is fetched at a time
_MAX_HEADER = 100_000_000       # as safetensors has it
_SENT = 16 << 20                # of an encoded file at a time
_LEAST_RUN = 4096               # bytes that a worker writes in one piece, or rows go to fewer workers
_SAFETENSORS = {"BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "F16": np.float16,
                "BF16": bfloat16, "F8_E4M3": float8_e4m3fn, "F8_E5M2": float8_e5m2, "U32": np.uint32, "I32": np.int32, "F32": np.float32, "U64": np.uint64, "I64": np.int64,
                "F64": np.float64, "C64": np.complex64}


class _File:
    """An open file: its path, the files through which a worker looks at it, and its stamp."""

    def __init__(self, path, op, session):
        self.path, self.op = path, op
        self.session = session or _context.current_session()
        self.files = _tessera.FileClient.open(self.session, self.session.default_mesh.workers[0])

    def look(self):
        self.bytes, self.modified_ns, self.head = self.files.look(self.path, 0, _PART)
        return self

    def describe(self) -> dict:
        """The answer of the workers' decoder."""
        import json     # not before a file is read
        self.bytes, self.modified_ns, said = self.files.describe(self.path)
        try:
            return json.loads(said)
        except (ValueError, RecursionError) as error:
            raise self.refuse(f"the decoder of worker {self.session.default_mesh.workers[0]} says what is no JSON: {error}") from None

    def part(self, offset: int, count: int) -> bytes:
        out = self.head[offset:offset + count]
        while len(out) < count:
            _, modified_ns, more = self.files.look(self.path, offset + len(out), min(count - len(out), 16 * _PART))
            if not more or modified_ns != self.modified_ns:
                break
            out += more
        return out

    def refuse(self, why) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self.op}: {self.path}: {why}")

    def load(self, parts, device_mesh, placements) -> list[Tensor]:
        """parts: (FileTensor, shape, offset, strides) of each, placements: of each. The workers read them as one transfer."""
        mesh = mesh_for(device_mesh, self.op, self.session)
        asked, size = [], 0
        for (tensor, shape, offset, strides), chosen in zip(parts, placements):
            if tensor._refused:
                raise self.refuse(f"{tensor.name!r}: {tensor._refused}")
            if chosen is None:
                chosen = [Shard(0) if m == 0 and shape else Replicate() for m in range(mesh.ndim)]
            elif not isinstance(chosen, Placement):
                chosen = listed(chosen, self.op)
            placed = mesh._placements(chosen, self.op)
            if any(isinstance(p, Partial) for p in listed(chosen, self.op)):
                raise self.refuse(f"nothing is read as Partial: placements are {chosen!r}; load it sharded or replicated")
            # A bool in a file may have any bits.
            code = code_of(np.uint8 if tensor.dtype == np.bool_ else tensor.dtype, self.op)
            is_reversed = tensor._stored != tensor.dtype and not tensor._is_decoded
            item = tensor.dtype.itemsize
            strides = [s if n > 1 and s else item for n, s in zip(shape, strides)]
            asked.append((code, [int(n) for n in shape], mesh._raw, placed, int(offset), strides, is_reversed,
                          tensor._member if tensor._is_decoded else None))
            size += item * int(np.prod(shape, dtype=object))
        with background_bar_of(f"load {os.path.basename(self.path)}", size):
            loaded = self.files.load(self.path, self.bytes, self.modified_ns, asked)
        return [out != 0 if part[0].dtype == np.bool_ else out for part, out in zip(parts, loaded)]


def _npy(file) -> FileTensor:
    import tokenize     # its error is one of NumPy's parser
    stream = io.BytesIO(file.part(0, _PART))
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version in ((2, 0), (3, 0)):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"version {version} of the format is unknown")
    except (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise file.refuse(f"is no .npy file: {str(error)[:200]}") from None
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or dtype.kind in "SUVmM":
        raise file.refuse(f"has the dtype {dtype}, which no tensor has")
    if any(n < 0 for n in shape):
        raise file.refuse(f"says its shape is {shape}")
    offset, item = stream.tell(), dtype.itemsize
    if offset + item * int(np.prod(shape, dtype=object)) > file.bytes:
        raise file.refuse(f"is cut: {dtype.name}{list(shape)} from byte {offset} on, and the file has {file.bytes}")
    strides, step = [], item
    for n in (shape if fortran else reversed(shape)):
        strides.append(step)
        step *= max(n, 1)
    return FileTensor(file, "", dtype, shape, offset, strides if fortran else strides[::-1])


def _safetensors(file) -> dict[str, FileTensor]:
    length = int.from_bytes(file.part(0, 8), "little")
    if file.bytes < 8 or length > min(_MAX_HEADER, file.bytes - 8):
        raise file.refuse(f"is no safetensors file: a header of {length} bytes in a file of {file.bytes}")
    try:
        import json
        header = json.loads(file.part(8, length), object_pairs_hook=_unique)
        entries = []
        for name, one in header.items():
            if name != "__metadata__":
                start, stop = map(_whole, one["data_offsets"])
                entries.append((name, str(one["dtype"]), [_whole(n) for n in one["shape"]], start, stop))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise file.refuse(f"is no safetensors file: its header: {repr(error)[:200]}") from None
    out = {}
    for name, kind, shape, start, stop in entries:
        if kind not in _SAFETENSORS:
            raise file.refuse(f"{name!r} has the dtype {kind}, which no tensor has")
        dtype = np.dtype(_SAFETENSORS[kind])
        wanted = dtype.itemsize * int(np.prod(shape, dtype=object))
        if any(n < 0 for n in shape) or start < 0 or stop - start != wanted or 8 + length + stop > file.bytes:
            raise file.refuse(f"{name!r} is {kind}{shape}, {wanted} bytes, at bytes {start} to {stop} of {file.bytes - 8 - length}")
        out[name] = FileTensor(file, name, dtype.newbyteorder("<"), shape, 8 + length + start, _row_major(shape, dtype.itemsize))
    end, before = 0, ""
    for start, stop, name in sorted((start, stop, name) for name, _, _, start, stop in entries if stop > start):
        if start < end:
            raise file.refuse(f"{before!r} and {name!r} have the same bytes, {start} to {min(end, stop)}")
        end, before = stop, name
    return out


def _unique(pairs) -> dict:
    """An object of JSON, each of whose names is there once."""
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return out


def _whole(number) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{number!r} is no whole number")
    return number


def _decoded(file):
    """Parts that lie plainly in the file are read as .npy is; the decoder reads the rest."""
    found, said = {}, file.describe()
    try:
        for name, one in said.items():
            dtype, shape, offset = np.dtype(one["dtype"]), [int(n) for n in one["shape"]], one.get("offset")
            try:
                code_of(dtype.newbyteorder("="), file.op)
            except DTypeError:
                continue
            found[name] = FileTensor(file, name, dtype, shape, offset or 0, _row_major(shape, dtype.itemsize),
                                     is_decoded=offset is None, member=str(one.get("member", name)), refused=str(one.get("refused", "")))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SyntaxError) as error:
        raise file.refuse(f"what the decoder says of it makes no sense: {repr(error)[:200]}") from None
    return found[""] if list(found) == [""] else found


def _row_major(shape, item) -> list[int]:
    strides = []
    for n in reversed(shape):
        strides.append(item)
        item *= max(n, 1)
    return strides[::-1]


_READERS = {".npy": _npy, ".safetensors": _safetensors}
_DECODED = (".h5", ".hdf5", ".parquet", ".zarr", "")        # without one: a folder of Parquet


def _known(path, op) -> tuple[str, str]:
    """The path as a string, and its ending, which says the format."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(path, str):
        raise ArgumentError(f"{op}: a path is a string, not {type(path).__name__}")
    if "\0" in path or any("\ud800" <= character <= "\udfff" for character in path):
        raise InvalidArgumentError(f"{op}: {path!r} is no path: it has a character that no file's name has")
    path = path.rstrip("/") or path
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _READERS and suffix not in _DECODED:
        raise UnimplementedError(f"{op}: {path!r}: formats are known by their ending, {', '.join([*_READERS, *filter(None, _DECODED)])}, or none, a folder "
                                 f"of Parquet; not {suffix}")
    return path, suffix


def _opened(path, suffix, op, session):
    """A tensor, or a dict of them by name."""
    file = _File(path, op, session)
    found = _decoded(file) if suffix in _DECODED else _READERS[suffix](file.look())
    return found if isinstance(found, FileTensor) else _Members(file, found)


class _Members(dict):
    """The tensors of a file by name. A name that it doesn't have is told with those that it has."""

    def __init__(self, file, found):
        super().__init__(found)
        self._file = file

    def __missing__(self, name):
        raise NotFoundError(f"{self._file.op}: {self._file.path} has no {name!r}; it has {', '.join(sorted(self)) or 'nothing'}")


def open(path, *, session=None):   # noqa: A001 - as gzip.open and others are called
    """A file, not read yet: a FileTensor of a .npy file, a dict of them by name of a safetensors, HDF5 or Parquet file or
    folder of Parquet (of its columns), of zarr either, as it is an array or a group.

    >>> f = ts.open("images.npy")       # float32[1797, 8, 8]
    >>> f.shape, f[100:200].mean()      # the workers read 100 rows

    Files are of the workers' host, in the folders that the cluster serves: local_cluster(files=...), tessera up --files. Each
    worker reads what its shard takes of it. What is compressed or chunked in HDF5, Parquet and zarr is decoded by a process
    beside each worker, with h5py, pyarrow or zarr.

    Errors:
    FailedPreconditionError: the package that reads the format isn't installed where the worker runs; the message says what to
    install. NotFoundError: there is no such file. PermissionDeniedError: it lies outside of the folders.
    InvalidArgumentError: it is no such file, or it is cut.
    FailedPreconditionError, of the tensor: the file changed while it was read."""
    path, suffix = _known(path, "open")
    return _opened(path, suffix, "open", session)


def load(path, device_mesh=None, placements=None, *, names=None, session=None):
    """The tensor of a .npy file, or a dict of those of a file of several (of the names alone, if they are given): each
    worker reads its own shard, straight from the file, and the call returns at once.

    >>> x = ts.load("images.npy", mesh, [ts.Shard(0)])
    >>> weights = ts.load("model.safetensors", mesh, [ts.Replicate()])

    placements: Shard(0) over the first mesh dim if they are not given; a dict by name says it of each. The tensors of one file come together: they are ready at
    the same time, and what fails one of them (a part that can't be decoded, memory for all of them) fails all; ts.open gives each
    by itself.

    Errors:
    Those of ts.open; InvalidArgumentError: a name that the file doesn't have."""
    path, suffix = _known(path, "load")
    found = _opened(path, suffix, "load", session)
    if isinstance(found, FileTensor):
        if names is not None:
            raise ArgumentError(f"load: {path}: a {suffix} file has one tensor, without a name")
        if isinstance(placements, dict):
            raise ArgumentError(f"load: {path}: a {suffix} file has one tensor, without a name; placements is a list for it")
        return found.load(device_mesh, placements)
    chosen = placements if isinstance(placements, dict) else {}
    missing = [name for name in (*(names or ()), *chosen) if name not in found]
    if missing:
        raise InvalidArgumentError(f"load: {path} has no {', '.join(map(repr, missing))}; it has {', '.join(sorted(found)) or 'nothing'}")
    wanted = {name: one for name, one in found.items() if names is None or name in names}
    if not wanted:
        return {}
    file = next(iter(wanted.values()))._file
    of_each = [chosen.get(name) if isinstance(placements, dict) else placements for name in wanted]
    return dict(zip(wanted, file.load([one._part(...) for one in wanted.values()], device_mesh, of_each)))


def save(path, x, *, metadata=None, parts=None):
    """Writes a tensor to a .npy or .zarr file, or a dict of tensors to a .safetensors, .h5, .hdf5, .parquet (as its columns)
    or .zarr file (metadata: a dict of strings in its header): each worker writes its own shard. Waits until the file is there,
    whole, in the place of one that was there before.

    >>> ts.save("result.npy", x)
    >>> ts.save("model.safetensors", {"w": w, "b": b})
    >>> ts.save("table", {"age": age, "height": height})        # a folder of Parquet

    A path without an ending is a folder of Parquet, part-00000.parquet and on, which pyarrow and pandas read as one table. Its
    parts (parts of them; one for each worker of the first column's mesh if it isn't given) are written by the workers. A path
    that ends in .parquet is one file, unless parts says more: it is encoded in this process, and its rows come through it, a
    slab at a time.

    The file appears under its name when all is written: what fails before, a full disk too, leaves the old one as it was.
    Pending values are reduced first.

    Errors:
    ResourceExhaustedError: the disk is full. PermissionDeniedError: a folder that isn't served, or for reading alone.
    InvalidArgumentError: a dtype that the format doesn't have; a folder of something else in the place of a table.
    FailedPreconditionError: the package that writes the format isn't installed."""
    path, suffix = _known(path, "save")
    if metadata is not None and not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):
        raise ArgumentError("save: metadata is a dict of strings")
    if parts is not None:
        if suffix not in ("", ".parquet"):
            raise ArgumentError(f"save: {path}: parts are those of a table, a path without an ending or with .parquet")
        if isinstance(parts, bool) or not isinstance(parts, (int, np.integer)) or parts < 1:
            raise ArgumentError(f"save: {path}: parts is a number from 1 on, not {parts!r}")
    if isinstance(x, Tensor) and suffix == ".zarr":
        return _save_zarr(path, {"": x}, metadata)
    if isinstance(x, Tensor) and suffix == ".npy":
        if metadata is not None:
            raise ArgumentError("save: a .npy file has no metadata")
        head = _npy_head(x)
        return _write(path, head, len(head) + x.nbytes, [(x, len(head))])
    if suffix == ".npy":
        raise ArgumentError(f"save: a .npy file takes one Tensor, not {type(x).__name__}; a dict of them goes to a .safetensors file")
    if not isinstance(x, dict) or not all(isinstance(k, str) and isinstance(t, Tensor) for k, t in x.items()):
        raise ArgumentError(f"save: {f'a {suffix} file' if suffix else 'a folder of Parquet'} takes a dict of tensors by name")
    for name in x:
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise InvalidArgumentError(f"save: {path}: the name {name!r} can't be written as UTF-8")
    if suffix == ".safetensors":
        if "__metadata__" in x:
            raise InvalidArgumentError(f"save: {path}: a .safetensors file has its metadata under the name '__metadata__'; take another name")
        return _write(path, *_safetensors_head(x, metadata))
    if suffix == "" or parts is not None and parts > 1:
        return _save_table(path, x, metadata, parts)
    return {".zarr": _save_zarr, ".parquet": _save_parquet}.get(suffix, _save_hdf5)(path, x, metadata)


def _save_hdf5(path, tensors, metadata) -> None:
    _encoded.refuse_ml_dtypes(path, tensors)
    import tempfile     # not before a file is written
    with tempfile.TemporaryDirectory() as folder:
        head, places, size = _encoded.hdf5_head(path, tensors, dict(metadata or {}), folder)
    _write(path, head, size, places)


def _save_zarr(path, tensors, metadata) -> None:
    _encoded.refuse_ml_dtypes(path, tensors)
    session = _session_of(tensors.values())
    arrays, places = _encoded.zarr_arrays(tensors, dict(metadata or {}))
    files, name, beside = _door_beside(path, session)
    try:
        files.create_folder(path, name, arrays)
        with bar_of(f"save {os.path.basename(path)}", sum(x.nbytes for _, x in places)):
            files.write([(x, beside, 0, _row_major(x.shape, x.dtype.itemsize), name) for name, x in places if x.size])
        files.commit()
    finally:
        del files


def _save_table(path, tensors, metadata, parts) -> None:
    _encoded.refuse_ml_dtypes(path, tensors)
    session = _session_of(tensors.values())
    plan, places = _encoded.table_parts(path, tensors, dict(metadata or {}), parts)
    files, name, beside = _door_beside(path, session)
    try:
        files.create_folder(path, name, plan)
        with bar_of(f"save {os.path.basename(path)}", sum(x.nbytes for _, x in places)):
            files.write([(x, beside, 0, _row_major(x.shape, x.dtype.itemsize), name) for name, x in places if x.size])
        files.describe(beside)       # refused unless all parts are there: a decoder that ended has lost what waited in it
        files.commit()
    finally:
        del files


def _save_parquet(path, tensors, metadata) -> None:
    """It is encoded here, and its bytes are written as those of a tensor are."""
    _encoded.refuse_ml_dtypes(path, tensors)
    session = _session_of(tensors.values())
    import tempfile     # not before a file is written
    with tempfile.TemporaryDirectory() as folder, bar_of(f"save {os.path.basename(path)}", sum(x.nbytes for x in tensors.values())):
        made = os.path.join(folder, "made")
        _encoded.write_parquet(path, tensors, dict(metadata or {}), made)
        files, name, beside = _door_beside(path, session)
        try:
            size, at, mesh = os.path.getsize(made), 0, session.default_mesh
            files.create(path, name, size, b"")
            with io.open(made, "rb") as file:
                while (part := np.frombuffer(file.read(_SENT), np.uint8)).size:
                    x = distribute(session, part, mesh, [Shard(0)] + [Replicate()] * (mesh.ndim - 1))
                    files.write([(x, beside, at, [1], None)])
                    at += part.size
            files.commit()
        finally:
            del files


def _npy_head(x) -> bytes:
    if x.dtype in AS_BITS:
        raise InvalidArgumentError(f"save: a .npy file has no {x.dtype.name}; save to a .safetensors file, or x.astype(ts.float32)")
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": np.lib.format.dtype_to_descr(np.dtype(x.dtype)), "fortran_order": False,
                                               "shape": tuple(x.shape)})
    return out.getvalue()


def _safetensors_head(tensors, metadata):
    names = {np.dtype(dtype): name for name, dtype in _SAFETENSORS.items()}
    header, places, at = {}, [], 0
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    # The widest numbers first, so that each is aligned.
    for name, x in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        if np.dtype(x.dtype) not in names:
            raise InvalidArgumentError(f"save: {name!r}: a .safetensors file has no {x.dtype}")
        header[name] = {"dtype": names[np.dtype(x.dtype)], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        places.append((x, at))
        at += x.nbytes
    import json
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return head, len(head) + at, [(x, len(head) + start) for x, start in places]


def _session_of(tensors):
    sessions = {x.session.id: x.session for x in tensors}
    if len(sessions) > 1:
        raise InvalidArgumentError("save: the tensors are of different sessions")
    return next(iter(sessions.values())) if sessions else _context.current_session()


def _door_beside(path, session):
    """A files, and the name, and the path, of a file beside `path`."""
    folder, _, name = path.rpartition("/")
    name = f".{name}.tessera-{os.urandom(8).hex()}"
    beside = f"{folder}/{name}" if folder or path.startswith("/") else name
    return _tessera.FileClient.open(session, session.default_mesh.workers[0]), name, beside


def _write(path, head: bytes, size: int, places) -> None:
    """A file of so many bytes, that begins with `head`, and has each tensor from its offset on."""
    files, name, beside = _door_beside(path, _session_of([x for x, _ in places]))
    try:
        files.create(path, name, size, head)
        with bar_of(f"save {os.path.basename(path)}", sum(x.nbytes for x, _ in places)):
            files.write([(_by_rows(x), beside, at, _row_major(x.shape, x.dtype.itemsize), None) for x, at in places if x.size])
        files.commit()
    finally:
        del files        # what isn't committed goes with it, also while an exception holds this frame


def _by_rows(x) -> Tensor:
    """The same values, without pending terms, in shards that lie in pieces worth a call."""
    run = x.dtype.itemsize
    for dim in range(x.ndim - 1, -1, -1):
        cuts = [m for m, p in enumerate(x.placements) if p.is_shard(dim)]
        if cuts and dim > 0:
            run *= -(-x.shape[dim] // int(np.prod([x.device_mesh.shape[m] for m in cuts])))
            if run < _LEAST_RUN:
                return x.redistribute([Shard(0)] + [Replicate()] * (x.device_mesh.ndim - 1))
            break
        run *= x.shape[dim]
    if any(p.is_partial() for p in x.placements):
        return x.redistribute([Replicate() if p.is_partial() else p for p in x.placements])
    return x
