"""A zarr file's folder, by its open descriptor: keys are opened below it name by name, and no link is followed, so none leads out."""

from __future__ import annotations

import contextlib
import os
import stat

import numpy as np
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(Store):
    supports_writes = supports_deletes = supports_listing = True

    def __init__(self, folder: int, read_only=False):
        super().__init__(read_only=read_only)
        self._folder = folder

    def __eq__(self, other):
        return isinstance(other, Folder) and other._folder == self._folder

    def with_read_only(self, read_only=False):
        return Folder(self._folder, read_only)

    @contextlib.contextmanager
    def _at(self, key, make=False):
        """The folder of a key, and its last name."""
        *way, name = [part for part in key.split("/") if part] or ["."]
        if ".." in way or name == "..":
            raise PermissionError(f"{key!r} leads out of the folder")
        here = os.dup(self._folder)
        try:
            for part in way:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o777, dir_fd=here)
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here, name
        finally:
            os.close(here)

    def _read(self, key, byte_range):
        try:
            with self._at(key) as (folder, name):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PermissionError(f"{key!r} can't be opened, or is a link: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise PermissionError(f"{key!r} is no regular file")
            if isinstance(byte_range, RangeByteRequest):
                file.seek(byte_range.start)
                return file.read(byte_range.end - byte_range.start)
            if isinstance(byte_range, OffsetByteRequest):
                file.seek(byte_range.offset)
            elif isinstance(byte_range, SuffixByteRequest):
                file.seek(max(0, info.st_size - byte_range.suffix))
            return file.read()

    async def get(self, key, prototype=None, byte_range=None):
        found = self._read(key, byte_range)
        if found is None:
            return None
        prototype = prototype or zarr.core.buffer.default_buffer_prototype()
        return prototype.buffer.from_bytes(found)

    async def get_partial_values(self, prototype, key_ranges):
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key):
        return self._read(key, RangeByteRequest(0, 0)) is not None

    async def set(self, key, value):
        """Whole under its name, or as it was."""
        with self._at(key, make=True) as (folder, name):
            beside = f".{name}.{os.getpid()}"
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
            with os.fdopen(fd, "wb") as file:
                file.write(value.to_bytes())
            os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)

    async def set_if_not_exists(self, key, value):
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key):
        with contextlib.suppress(FileNotFoundError), self._at(key) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _names(self, prefix):
        """(name, whether it is a folder) of what lies in a folder."""
        try:
            with self._at(prefix) as (folder, name):
                fd = os.open(name, _FOLDER, dir_fd=folder)
        except OSError:     # none, or a link
            return []
        try:
            with os.scandir(fd) as entries:
                return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        finally:
            os.close(fd)

    async def list_dir(self, prefix):
        for name, _ in self._names(prefix):
            yield name

    async def list_prefix(self, prefix):
        for name, is_folder in self._names(prefix):
            key = f"{prefix.rstrip('/')}/{name}".lstrip("/")
            if not is_folder:
                yield key
                continue
            async for below in self.list_prefix(key):
                yield below

    def list(self):
        return self.list_prefix("")


def opened_folder(folder: int) -> Folder:
    if not stat.S_ISDIR(os.fstat(folder).st_mode):
        raise ValueError("it is no folder, which a zarr file is")
    return Folder(folder)


def create(folder: int, what: dict) -> None:
    """{"arrays": {name: {"dtype", "shape", "chunks"}}, "attributes": {...}}; the name "" for one array that is the file."""
    store, arrays = opened_folder(folder), what["arrays"]
    if list(arrays) == [""]:
        zarr.create_array(store, attributes=what["attributes"], **_told(arrays[""]))
        return
    group = zarr.create_group(store, attributes=what["attributes"])
    for name, one in arrays.items():
        group.create_array(name, **_told(one))


def _told(one: dict) -> dict:
    return {"shape": tuple(one["shape"]), "chunks": tuple(one["chunks"]), "dtype": np.dtype(one["dtype"])}
