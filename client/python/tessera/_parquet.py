"""Parquet, as a decoder reads and writes it: a file, or a folder of files, each with some of a table's rows (its parts).

A part is read by groups of rows, of the columns that are wanted. Parts are written by the workers' decoders, each those
whose rows its worker has. What is wanted of them all, the *plan*, lies in the folder until the last part is there; the
columns of a worker come beside each other, so what has come of one and not of another waits in a file without a name.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import stat

import numpy as np
import pyarrow
import pyarrow.parquet

from ._stored import PLAN, Refusal, Stored, part_start, parts_stamp, plan_of

_GROUP = 32 << 20           # docs/limits.md: row_group_bytes
_GROUP_ROWS = 1 << 20
_OPEN_PARTS = 8             # of a folder that is read
_PUNCH_HOLE = 3             # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_libc = ctypes.CDLL(None)


# ---- columns: arrays of numbers as Arrow has them -----------------------------------------------------

def schema_of(columns, metadata) -> pyarrow.Schema:
    """columns: (name, dtype, extents of a row)."""
    fields = []
    for name, dtype, extents in columns:
        kind = pyarrow.from_numpy_dtype(dtype)
        for extent in reversed(extents):
            kind = pyarrow.list_(kind, extent)
        fields.append(pyarrow.field(name, kind, nullable=False))
    return pyarrow.schema(fields, metadata=metadata or None)


def table_of(schema, columns) -> pyarrow.Table:
    """columns: arrays whose first dim is the rows."""
    out = []
    for values, field in zip(columns, schema):
        column = pyarrow.array(values.reshape(-1))
        for extent in reversed(values.shape[1:]):
            column = pyarrow.FixedSizeListArray.from_arrays(column, extent)
        out.append(column.cast(field.type) if column.type != field.type else column)
    return pyarrow.table(out, schema=schema)


def _of_column(kind):
    """The dtype, None where it is no number, and the extents of a row."""
    extents = []
    while pyarrow.types.is_fixed_size_list(kind):
        extents.append(kind.list_size)
        kind = kind.value_type
    plain = pyarrow.types.is_boolean(kind) or pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind)
    return (np.dtype(kind.to_pandas_dtype()), extents) if plain else (None, extents)


# ---- reading -----------------------------------------------------------------------------------------

class _Part:
    """A file of the table: what its footer says, and how it is opened."""

    def __init__(self, opener, name):
        self._opener, self.name = opener, name
        with self.opened() as file:
            self.metadata, schema = file.metadata, file.schema_arrow
        self.rows = [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]
        self.columns = {field.name: _of_column(field.type) for field in schema}
        self.types = {field.name: field.type for field in schema}

    def opened(self, metadata=None) -> pyarrow.parquet.ParquetFile:
        return pyarrow.parquet.ParquetFile(self._opener(self.name), metadata=metadata)


class _Rows:
    """The table's rows: `ends` of its groups, over all parts."""

    def __init__(self, parts):
        self._parts, self._open = parts, collections.OrderedDict()
        self._groups = [(part, i) for part in parts for i in range(len(part.rows))]
        self.ends = np.cumsum([0, *(rows for part in parts for rows in part.rows)])

    def column(self, name, dtype, extents) -> "_Column":
        return _Column(self, name, dtype, extents)

    def chunks(self, first, last, name):
        """The statistics of a column, of some groups."""
        out = []
        for part in dict.fromkeys(part for part, _ in self._groups[first:last]):
            wanted = [i for one, i in self._groups[first:last] if one is part]
            out.extend(self._file(part).read_row_groups(wanted, columns=[name], use_threads=False).column(0).chunks)
        return out

    def _file(self, part):
        if part not in self._open:
            if len(self._open) == _OPEN_PARTS:
                self._open.popitem(last=False)[1].close()
            self._open[part] = part.opened(part.metadata)
        self._open.move_to_end(part)
        return self._open[part]


class _Column:
    """The groups of rows that a read touches are decoded, of this column alone."""

    def __init__(self, rows, name, dtype, extents):
        self._rows, self._name, self._dtype, self._extents = rows, name, dtype, extents

    def read(self, slices) -> np.ndarray:
        ends = self._rows.ends
        start, stop, step = slices[0].indices(int(ends[-1]))
        if stop <= start:
            return np.empty((0, *self._extents), self._dtype)[(slice(None), *slices[1:])]
        first = int(np.searchsorted(ends, start, "right")) - 1
        last = int(np.searchsorted(ends, stop, "left"))
        parts = []
        for chunk in self._rows.chunks(first, last, self._name):
            for _ in self._extents:
                if chunk.null_count:
                    break
                chunk = chunk.flatten()
            if chunk.null_count:
                raise Refusal("InvalidArgument", f"column {self._name!r} has values that are missing (null), which no tensor has")
            parts.append(chunk.to_numpy(zero_copy_only=False))
        values = np.concatenate(parts).astype(self._dtype, copy=False).reshape(-1, *self._extents)
        offset = int(ends[first])
        return values[(slice(start - offset, stop - offset, step), *slices[1:])]


def read(file: int) -> dict:
    """{column: Stored} of an open file or folder."""
    is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
    if is_folder:
        stamp, parts = parts_stamp(file), _parts_of(file)
    else:
        parts = [_Part(lambda _: f"/proc/self/fd/{file}", "")]
    rows, found = _Rows(parts), {}
    for name, (dtype, extents) in parts[0].columns.items():
        if dtype is None:
            continue
        kind = parts[0].types[name]
        others = [part for part in parts if part.types.get(name) != kind]
        more = {"refused": f"{others[0].name} has it as {others[0].types.get(name, 'nothing')}, {parts[0].name} as {kind}"} if others else {}
        if is_folder:
            more["member"] = f"{name}\n{stamp}"
        found[name] = Stored(dtype, (int(rows.ends[-1]), *extents), rows.column(name, dtype, extents).read, ends=rows.ends, **more)
    return found


def _parts_of(folder: int) -> list:
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name == PLAN:
                raise Refusal("FailedPrecondition", "a table that is not whole: not all of its parts were written")
            if entry.name[0] in "._":       # as all readers of such folders do
                continue
            if entry.is_dir(follow_symlinks=False):
                raise Refusal("InvalidArgument", f"it has a folder in it, {entry.name!r}; a table's rows are read from the files of one folder")
            if entry.name.endswith(".parquet"):
                names.append(entry.name)

    def opener(name):
        """No link is followed."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            raise Refusal("FailedPrecondition", f"{name!r} went while the folder was read") from None
        except OSError as error:
            raise PermissionError(f"{name!r} can't be opened, or is a link: {error.strerror}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise Refusal("InvalidArgument", f"{name!r} is no regular file")
        return os.fdopen(fd, "rb")

    if not names:
        raise Refusal("InvalidArgument", "a folder without a .parquet file in it is no table")
    parts = []
    for name in sorted(names):
        try:
            parts.append(_Part(opener, name))
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, PermissionError):
                raise
            raise Refusal("InvalidArgument", f"{name!r}: {type(error).__name__}: {error}") from None
    return parts


# ---- writing -----------------------------------------------------------------------------------------

def part_name(number: int, count: int) -> str:
    return f"part-{number:0{max(5, len(str(count - 1)))}}.parquet"


def create(folder: int, plan: dict) -> None:
    """{"columns": [[name, dtype, extents of a row], ...], "metadata": {...}, "rows": n, "parts": n}, into a new folder."""
    schema = schema_of([(name, np.dtype(kind), extents) for name, kind, extents in plan["columns"]], plan["metadata"])
    if not plan["rows"]:
        with _new_file(folder, part_name(0, 1)) as file, pyarrow.parquet.ParquetWriter(file, schema):
            pass
        return
    plan["number"] = os.urandom(8).hex()
    with _new_file(folder, PLAN) as file:
        file.write(json.dumps(plan).encode())


def _new_file(folder, name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    return os.fdopen(fd, "w+b")


class TableWriter:
    """The parts of one worker. Each column's rows come in their order, from the same row on, which begins a part."""

    def __init__(self, folder: int, plan: str):
        self._folder, self._plan = os.dup(folder), plan
        said = json.loads(plan)
        self._rows, self._count = said["rows"], said["parts"]
        self._names = [name for name, _, _ in said["columns"]]
        self._dtypes = [np.dtype(kind) for _, kind, _ in said["columns"]]
        self._extents = [tuple(extents) for _, _, extents in said["columns"]]
        self._schema = schema_of(zip(self._names, self._dtypes, self._extents), said["metadata"])
        self._row_bytes = [dtype.itemsize * int(np.prod(extents, dtype=object)) for dtype, extents in zip(self._dtypes, self._extents)]
        self._group_rows = max(1, min(_GROUP_ROWS, _GROUP // sum(self._row_bytes)))
        # The waiting file has the columns one after the other, and holes in the place of what isn't there, or is encoded.
        self._bases = np.cumsum([0, *(n * self._rows for n in self._row_bytes)]).tolist()
        self._reached = None            # by column, bytes
        self._done = self._part = self._seen = 0
        self._waiting = self._file = self._writer = None

    def is_of(self, folder: int) -> bool:
        return plan_of(folder) == self._plan

    def is_wanted(self) -> bool:
        return self._folder >= 0 and self.is_of(self._folder)

    def close(self) -> None:
        for one in (self._writer, self._file, self._waiting):
            if one is not None:
                with contextlib.suppress(Exception):        # of a table that is given up
                    one.close()
        if self._folder >= 0:
            os.close(self._folder)
        self._folder, self._writer, self._file, self._waiting = -1, None, None, None

    def write(self, name: str, question: dict, buffer) -> None:
        """Bytes of a column, which follow each other in it."""
        if self._folder < 0:
            raise Refusal("FailedPrecondition", "the table was given up")
        if name not in self._names:
            raise Refusal("InvalidArgument", f"the table has no column {name!r}")
        column = self._names.index(name)
        offset, count = question["offset"], question["item"] * int(np.prod(question["extents"], dtype=object))
        if self._reached is None:
            self._begin(column, offset)
        if offset != self._reached[column] or offset + count > self._rows * self._row_bytes[column] or count > len(buffer):
            raise Refusal("FailedPrecondition", f"column {name!r}: {count} bytes from byte {offset} on do not follow those that came, which reach "
                                                f"byte {self._reached[column]}; the decoder was started anew, or they come from elsewhere")
        with memoryview(buffer)[:count] as values:
            written = 0
            while written < count:
                written += os.pwrite(self._waiting.fileno(), values[written:], self._bases[column] + offset + written)
        self._reached[column] += count
        self._encode(min(reached // row for reached, row in zip(self._reached, self._row_bytes)))

    def _begin(self, column: int, offset: int) -> None:
        row = offset // self._row_bytes[column]
        # part_start turned round: the last part that begins at or before the row.
        self._part = ((row + 1) * self._count - 1) // self._rows
        if part_start(self._part, self._rows, self._count) * self._row_bytes[column] != offset:
            raise Refusal("FailedPrecondition", f"row {row} begins no part of the table; the decoder was started anew, or the rows come from elsewhere")
        self._reached, self._done = [row * n for n in self._row_bytes], row
        name = f".waiting-{os.urandom(8).hex()}"
        self._waiting = _new_file(self._folder, name)
        os.unlink(name, dir_fd=self._folder)

    def _encode(self, stop: int) -> None:
        """The groups of rows of which all columns are there."""
        while self._done < stop:
            end = part_start(self._part + 1, self._rows, self._count)
            group = min(self._done + self._group_rows, end)
            if group > stop:
                return
            if self._writer is None:
                self._file = _new_file(self._folder, "." + part_name(self._part, self._count))
                self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema)
            self._writer.write_table(table_of(self._schema, [self._taken(column, group) for column in range(len(self._names))]))
            self._done = group
            if group == end:
                self._end_part()

    def _taken(self, column: int, stop: int) -> np.ndarray:
        """The rows of a column up to one; they wait no longer."""
        row = self._row_bytes[column]
        at, count = self._bases[column] + self._done * row, (stop - self._done) * row
        values = np.empty(count, np.uint8)
        if os.preadv(self._waiting.fileno(), [values], at) != count:
            raise Refusal("Internal", "rows that wait to be encoded are gone")
        # Where a file system has no holes, the disk holds them until the end.
        _libc.fallocate(self._waiting.fileno(), _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(count))
        return values.view(self._dtypes[column]).reshape(-1, *self._extents[column])

    def _end_part(self) -> None:
        self._writer.close()
        self._file.close()
        self._writer = self._file = None
        name = part_name(self._part, self._count)
        os.rename("." + name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._part += 1
        # Whoever sees the last one, which may be more than one, says that the table is whole.
        with contextlib.suppress(FileNotFoundError):
            while self._seen < self._count:
                os.stat(part_name(self._seen, self._count), dir_fd=self._folder, follow_symlinks=False)
                self._seen += 1
            os.unlink(PLAN, dir_fd=self._folder)
