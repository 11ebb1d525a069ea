"""Checkpoint files that the workers write and read themselves, each its own shards, all at the same time.

They do where they see the folder: the client's host is theirs (or the disk is shared), and the folder lies in one that the
cluster serves (ts.save, ts.load). Elsewhere the client does it (_checkpoint.py, _restore.py); the format is one.
"""

from __future__ import annotations

import os
import pathlib

from .._dtypes import code_of
from .._errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from .._files import open as open_file
from .._files import save as save_file
from .._placements import Shard
from ._cell import moved
from ._dtypes import CODES

FILE_BYTES = 4 << 30        # docs/limits.md: checkpoint_file
_CUT_BYTES = 1 << 20       # from there on of a replicated tensor each worker writes a part
_NOT_SEEN = (NotFoundError, PermissionDeniedError)


def chunks(handles: dict) -> list[dict]:
    """Handles by name, cut into dicts of those that go into one file."""
    out, room = [], 0
    for name, handle in handles.items():
        if not out or handle.nbytes > room:
            out.append({})
            room = FILE_BYTES
        out[-1][name] = handle
        room -= handle.nbytes
    return out


def _in_parts(handle):
    """The handle; of a large replicated tensor its shards, which are there already."""
    is_whole = all(one.is_replicate() for one in handle._placements)
    if not is_whole or handle.nbytes < _CUT_BYTES or handle.shape[0] < len(handle._mesh.workers):
        return handle
    return moved(handle, [Shard(0)] * len(handle._placements))


def write(file: pathlib.Path, handles: dict, metadata: dict) -> bool:
    """Writes handles of one session as a safetensors file and waits for it. False where its workers don't see the folder, or
    may not write there: nothing has been written then."""
    try:
        save_file(os.path.realpath(file), {name: _in_parts(handle) for name, handle in handles.items()}, metadata={"format": "pt", **metadata})
    except _NOT_SEEN:
        return False
    return True


class Reader:
    """The files of a folder as the workers of sessions see them; a file is looked at once for each session."""

    def __init__(self, path: pathlib.Path):
        self.path, self.files, self.loading = pathlib.Path(os.path.realpath(path)), {}, []

    def load(self, file: str, key: str, tensor, mesh, placements):
        """The handle of a whole tensor there, whose bytes are on their way; None where the workers don't see the file."""
        session = mesh._session
        known = (session._key, file)
        if known not in self.files:
            self.files[known] = self._look(file, session)
        found = self.files[known]
        if found is None:
            return None
        if key not in found:
            raise InvalidArgumentError(f"load: {self.path} has no {key} in its files")
        one = found[key]
        if CODES[tensor.dtype] != code_of(one.dtype, "load") or one.shape != tensor.shape:
            raise InvalidArgumentError(f"load: {key} is {one.dtype} {one.shape} in its file, and {tensor.dtype} {tensor.shape} in the "
                                       f"index of {self.path}")
        handle = one.load(mesh, placements)
        self.loading.append(handle)
        return handle

    def _look(self, file: str, session):
        """The tensors of a file, by name; None where the workers see another file than the client."""
        try:
            found = open_file(os.fspath(self.path / file), session=session)
        except _NOT_SEEN:
            return None
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"load: {self.path / file} can't be read, it may be cut: {error}") from None
        here = (self.path / file).stat()
        for one in found.values():
            if (one._file.bytes, one._file.modified_ns) != (here.st_size, here.st_mtime_ns):
                return None
        return found

    def wait(self) -> None:
        """Blocks until all is there; raises the first cause of failure."""
        for handle in self.loading:
            handle.wait(None)
