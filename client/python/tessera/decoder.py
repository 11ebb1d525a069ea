"""The decoder: a process beside a worker that reads HDF5, Parquet and zarr files for it, and writes zarr and
folders of Parquet.

`python -P -m tessera.decoder MEMORY UMASK confined|unconfined [FOLDER or FOLDER:ro ...]`, started by the worker, which has it on a socket (descriptor 3)
and shares a buffer (descriptor 4) with it. The kernel keeps it to these folders, and to what Python is read from. A question is one packet: a line of JSON, a text after it (a tensor's name, or JSON), and the
open file or folder. The answer is a code, a count of bytes in the buffer, and what is wrong. Files are opened by the
worker alone, inside the folders that it serves; nothing here follows a path that a file names.

What `describe` says: {name: {"dtype": "<f8", "shape": [3, 4]}}, the name "" where the file is one array; with "offset"
where the values lie plainly in the file from that byte on, and then the worker reads them itself; with "member", what
to ask for in the place of the name; with "refused", why they can't be read.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import stat
import struct
import sys

import numpy as np

from ._confined import confine, of_python
from ._stored import Refusal, Stored, library, metadata_stamp, parts_stamp, plan_of

LINE, BUFFER = 3, 4
_MAX_QUESTION = 64 << 10
_MAX_TEXT = 1000
_KEPT = 256 << 20   # docs/limits.md: decoder_kept_bytes
_IDLE = 5.0         # seconds without a question, after which it forgets what it decoded; docs/limits.md: decoder_idle
_CODES = {"InvalidArgument": 3, "NotFound": 5, "PermissionDenied": 7, "ResourceExhausted": 8, "FailedPrecondition": 9, "Internal": 13}


def _is_number(dtype) -> bool:
    return dtype.names is None and dtype.subdtype is None and dtype.kind in "biufc" and dtype.itemsize <= 16


# ---- formats: from an open file to {name: Stored} ---------------------------------------------------

def _lies_plainly(h5py, one) -> bool:
    """Whether the values lie in the file to the bit as NumPy has them. A file's own types may be shifted, padded, of 12 bits."""
    try:
        return one.id.get_type().equal(h5py.h5t.py_create(one.dtype, logical=True))
    except TypeError:       # NumPy's type is none of HDF5's
        return False


def _dtype_of(one):
    """None of a type that NumPy has no name for."""
    try:
        return one.dtype
    except (TypeError, ValueError):
        return None


def read_hdf5(file: int) -> dict:
    h5py = library("h5py")
    opened, found, names = h5py.File(f"/proc/self/fd/{file}", "r", locking=False, rdcc_nbytes=64 << 20), {}, []
    opened.visit(names.append)      # no link to another file is followed
    for name in names:
        one = opened[name]
        if not isinstance(one, h5py.Dataset) or one.shape is None:
            continue
        dtype = _dtype_of(one)
        if dtype is None or not _is_number(dtype):
            continue
        more, offset = {}, one.id.get_offset()
        if one.external or one.is_virtual:
            more = {"refused": "its values lie in another file"}
        elif offset is not None and one.chunks is None and _lies_plainly(h5py, one):
            more = {"offset": offset}
        found[name] = Stored(one.dtype, one.shape, one.__getitem__, one.chunks[0] if one.chunks else 1, **more)
    return found


def read_parquet(file: int) -> dict:
    library("pyarrow.parquet")
    from . import _parquet
    return _parquet.read(file)


def read_zarr(file: int) -> dict:
    zarr = library("zarr")
    from ._zarr_folder import opened_folder
    opened = zarr.open(opened_folder(file), mode="r")
    members = {"": opened} if isinstance(opened, zarr.Array) else dict(opened.members(max_depth=None))
    return {name: Stored(one.dtype, one.shape, one.__getitem__, (one.shards or one.chunks)[0] if one.ndim else 1,
                         member=f"{name}\n{metadata_stamp(file, name)}")
            for name, one in members.items() if isinstance(one, zarr.Array) and _is_number(one.dtype)}


# A folder that is a table needs no ending.
FORMATS = {".h5": read_hdf5, ".hdf5": read_hdf5, ".parquet": read_parquet, "": read_parquet, ".zarr": read_zarr}
# The stamp of what a folder has in it. A read question names a tensor with its stamp, a line below, and the number of the look, another line
# below.
STAMPS = {read_parquet: lambda folder, name: parts_stamp(folder), read_zarr: metadata_stamp}
_BEING_MADE = ".tessera"        # what is beside the file that it becomes ends so, and with a number


# ---- parts of a tensor -----------------------------------------------------------------------------

def slices_of(shape, item: int, offset: int, extents, strides) -> list:
    """(first, size, step) for each dim of a tensor, of the elements that lie at `offset` and on by these strides of its
    row-major bytes.

    >>> slices_of((9, 6), 8, 8 * 13, [2, 3], [96, 8])
    [(2, 2, 2), (1, 3, 1)]
    """
    rows, left = [], int(np.prod(shape, dtype=object))
    for n in shape:
        left //= max(n, 1)
        rows.append(left)
    at, out = offset // item, []
    for n, row in zip(shape, rows):
        first, at = divmod(at, max(row, 1))
        out.append((first, 1, 1))
        if not 0 <= first < n:
            raise Refusal("InvalidArgument", f"byte {offset} is none of a tensor of the shape {list(shape)}")
    dim = 0
    for extent, stride in zip(extents, strides):
        step = stride // item
        if extent == 1:
            continue
        while dim < len(shape) and not (shape[dim] > 1 and rows[dim] <= abs(step) < rows[dim] * shape[dim]):
            dim += 1
        if dim == len(shape) or step % rows[dim] or not 0 <= out[dim][0] + (extent - 1) * (step // rows[dim]) < shape[dim]:
            raise Refusal("InvalidArgument", f"{list(extents)} elements by strides of {list(strides)} bytes are no part of the shape {list(shape)}")
        out[dim] = (out[dim][0], extent, step // rows[dim])
        dim += 1
    return out


def _state_of(folder: int):
    """A folder's state changes when a name in it is made or removed, or the folder itself."""
    info = os.fstat(folder)
    return info.st_ino, info.st_nlink, info.st_mtime_ns


class Reader:
    """Parts of one tensor. Those by rows follow each other, and end within chunks: the rows of the chunks that were decoded
    last are kept."""

    def __init__(self, stored: Stored):
        self.stored, self._columns, self._block, self._start = stored, None, None, 0

    @property
    def kept_bytes(self) -> int:
        return self._block.nbytes if self._block is not None else 0

    def part(self, items) -> np.ndarray:
        forward, turned = [], []
        for first, size, step in items:
            last = first + (size - 1) * step
            forward.append(slice(min(first, last), max(first, last) + 1, abs(step)))
            turned.append(slice(None, None, -1 if step < 0 else 1))
        if forward and forward[0].step == 1:
            return self._rows(forward[0].start, forward[0].stop, tuple(forward[1:]))[tuple(turned)]
        return np.asarray(self.stored.read(tuple(forward)))[tuple(turned)]

    def _rows(self, start: int, stop: int, columns: tuple) -> np.ndarray:
        if columns != self._columns or not self._start <= start <= self._start + len(self._block):
            self._columns, self._block, self._start = columns, self._read(start, start, columns), start
        head = self._block[start - self._start:stop - self._start]
        if len(head) == stop - start:
            return head
        begin = self._start + len(self._block)      # the chunk goes on in the rows that are left
        self._start, self._block = begin, self._read(begin, self.stored.chunk_end(stop), columns)
        rest = self._block[:stop - begin]
        return np.concatenate([head, rest]) if len(head) else rest

    def _read(self, start: int, stop: int, columns: tuple) -> np.ndarray:
        return np.asarray(self.stored.read((slice(start, stop, 1), *columns)))


# ---- the process -----------------------------------------------------------------------------------

class Decoder:
    def __init__(self, buffer):
        self._buffer = buffer
        self._key, self._found, self._readers, self._file = None, {}, {}, -1
        self._look = None       # the number of the look at a folder that this decoder has it open for
        self._tables = {}       # that are being written, by their folders

    def answer(self, question: dict, text: str, file: int) -> int:
        what, ending = question["do"], question["format"].lower()
        if what == "create":
            self._create(json.loads(text), file)
            return 0
        if what == "write":
            return self._write(question, text, file)
        if ending.startswith(_BEING_MADE):      # whether a table that was written is whole
            ending = ""
        if ending not in FORMATS:
            raise Refusal("InvalidArgument", f"files that end in {ending!r} are not decoded")
        if what == "describe":
            said = json.dumps(self._described(ending, file)).encode()
            if len(said) > len(self._buffer):
                raise Refusal("ResourceExhausted", f"{len(said)} bytes to say what is in it, {len(self._buffer)} are allowed (decoder_buffer_bytes)")
            self._buffer[:len(said)] = said
            return len(said)
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            self._open(ending, file)
        return self._read(question, text, ending, file)

    def _described(self, ending, file) -> dict:
        """A folder's look has a number, which all decoders hear: one that has it open for another look forgets. A file
        in a folder may change and the folder's own time stay, so a folder that others write to or remove meanwhile is an error."""
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            self._open(ending, file)
            return {name: one.described() for name, one in self._found.items()}
        looks, before = [], _state_of(file)
        for _ in range(2):      # what is in groups below may change, too, and shows when it is looked at again
            self.forget()
            self._open(ending, file)
            looks.append({name: one.described() for name, one in self._found.items()})
        if looks[0] != looks[1] or _state_of(file) != before or os.fstat(file).st_nlink == 0:
            raise Refusal("FailedPrecondition", "it was changed or replaced while it was looked at; open it again")
        self._look = os.urandom(8).hex()
        out = {}
        for name, one in self._found.items():
            out[name] = one.described()
            if "member" in out[name]:
                out[name]["member"] += f"\n{self._look}"
        return out

    def forget(self):
        """The file that is open, and the parts of it that were decoded."""
        if self._file >= 0:
            os.close(self._file)
        self._key, self._found, self._readers, self._file, self._look = None, {}, {}, -1, None

    def _open(self, ending, file):
        """Once for all questions on a file that stays as it is."""
        info = os.fstat(file)
        key = (ending, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        if key != self._key:
            self.forget()
            self._file = os.dup(file)
            self._found = FORMATS[ending](self._file)
            self._key = key

    def _stored(self, name, ending, file) -> Stored:
        if not stat.S_ISDIR(os.fstat(file).st_mode):
            if name in self._found:
                return self._found[name]
            raise Refusal("InvalidArgument", f"it has no tensor {name!r}")
        member, _, look = name.rpartition("\n")
        own, _, stamp = member.rpartition("\n")
        if look != self._look or own not in self._found or self._found[own].more["member"] != member:
            self.forget()
            self._open(ending, file)
            self._look = look
        if own not in self._found or STAMPS[FORMATS[ending]](file, own) != stamp:
            raise Refusal("FailedPrecondition", "it has changed since it was looked at")
        return self._found[own]

    def _read(self, question, name, ending, file) -> int:
        stored = self._stored(name, ending, file)
        if "refused" in stored.more:
            raise Refusal("InvalidArgument", f"{name!r}: {stored.more['refused']}")
        if stored.dtype.itemsize != question["item"]:
            raise Refusal("InvalidArgument", f"{name!r} has elements of {stored.dtype.itemsize} bytes, not {question['item']}")
        items = slices_of(stored.shape, question["item"], question["offset"], question["extents"], question["strides"])
        reader = self._readers.pop(name, None) or Reader(stored)
        self._readers[name] = reader        # the last one
        values = reader.part(items)
        if reader.kept_bytes > _KEPT:
            del self._readers[name]
        # Tensors of a file come beside each other; what is kept of all is bounded.
        while sum(one.kept_bytes for one in self._readers.values()) > _KEPT:
            del self._readers[next(iter(self._readers))]
        out = np.frombuffer(self._buffer, stored.dtype.newbyteorder("="), values.size).reshape(values.shape)
        out[...] = values
        return values.nbytes

    def forget_ended(self):
        """The tables that are whole, or were given up."""
        for key in [key for key, table in self._tables.items() if not table.is_wanted()]:
            self._tables.pop(key).close()

    def _create(self, what, file):
        if "table" in what:
            library("pyarrow.parquet")
            from . import _parquet
            _parquet.create(file, what["table"])
            return
        library("zarr")
        from ._zarr_folder import create
        create(file, what)

    def _write(self, question, name, file) -> int:
        table = self._table_of(file)
        if table is not None:
            try:
                table.write(name, question, self._buffer)
            except BaseException:
                table.close()       # with what the disk has of it
                raise
            return 0
        zarr = library("zarr")
        from ._zarr_folder import opened_folder
        opened = zarr.open(opened_folder(file), mode="r+")
        array = opened[name] if name else opened
        items = slices_of(array.shape, question["item"], question["offset"], question["extents"], question["strides"])
        shape = tuple(size for _, size, _ in items)
        values = np.frombuffer(self._buffer, array.dtype, int(np.prod(shape))).reshape(shape)
        array[tuple(slice(first, first + size) for first, size, _ in items) if items else ...] = values
        return 0

    def _table_of(self, folder):
        """The tensors of a folder that is to be one of Parquet."""
        info = os.fstat(folder)
        key = (info.st_dev, info.st_ino)
        if key not in self._tables or not self._tables[key].is_of(folder):
            self.forget_ended()
            plan = plan_of(folder)
            if plan is None:
                return None
            library("pyarrow.parquet")
            from . import _parquet
            self._tables[key] = _parquet.TableWriter(folder, plan)
        return self._tables[key]


def told(error: BaseException):
    """The code, and the text, of what a library says."""
    if isinstance(error, Refusal):
        return _CODES[error.code], str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "memory allocation failed" in text or "nable to allocate" in text:
        allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
        return _CODES["ResourceExhausted"], f"to decode it takes more memory than the {allowed} bytes of --decoder-memory: {text}"
    if isinstance(error, OSError) and error.errno == 28:
        return _CODES["ResourceExhausted"], "the disk is full"
    if isinstance(error, FileNotFoundError):
        return _CODES["NotFound"], text
    if isinstance(error, PermissionError):
        return _CODES["PermissionDenied"], text
    return _CODES["InvalidArgument"], text


def serve(line: socket.socket, buffer) -> None:
    """Until the worker is gone."""
    decoder = Decoder(buffer)
    while True:
        line.settimeout(_IDLE)
        try:
            packet, files, _, _ = socket.recv_fds(line, _MAX_QUESTION + 1, 4)
        except TimeoutError:
            decoder.forget_ended()
            decoder.forget()
            continue
        if not packet:
            return
        code, count, text = 0, 0, ""
        try:
            head, _, rest = packet.partition(b"\n")
            count = decoder.answer(json.loads(head), rest.decode(), files[0])
        except Exception as error:      # of any kind: the libraries have no class of their own for it
            code, text = told(error)
            decoder.forget()
        finally:
            for file in files:
                os.close(file)
        line.send(struct.pack("<IQ", code, count) + text[:_MAX_TEXT].encode(errors="replace"))


def main() -> None:
    memory = int(sys.argv[1])
    os.umask(int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)      # PR_SET_PDEATHSIG: in the middle of a read, too
    os.environ["HDF5_PLUGIN_PRELOAD"] = "::"        # a file names filters; none is loaded for it
    line = socket.socket(fileno=LINE)
    folders = [os.path.realpath(folder.removesuffix(":ro")) for folder in sys.argv[4:]]
    read_only = {path for path, folder in zip(folders, sys.argv[4:]) if folder.endswith(":ro")}
    missing = confine([*of_python(), *folders], [path for path in folders if path not in read_only])
    if missing and sys.argv[3] != "unconfined":
        sys.exit(f"tessera.decoder: this kernel has no {' and no '.join(missing)}")
    serve(line, mmap.mmap(BUFFER, 0))
    os._exit(0)     # what libraries have under way is of no use to anyone


if __name__ == "__main__":
    main()
