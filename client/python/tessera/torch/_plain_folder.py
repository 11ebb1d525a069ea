"""Safetensors files that others wrote, as tt.load reads them: Hugging Face's folders, adapters, a file by itself.

Such a folder has one safetensors file, or several and an index `NAME.safetensors.index.json` with `weight_map`. Its state is flat, a
dict of tensors by name. An index as tt.save writes it is made of the heads of the files, so that one way reads both.
"""

from __future__ import annotations

import json
import pathlib
import re
import struct

from .._errors import InvalidArgumentError, NotFoundError
from ._checkpoint import DTYPES, INDEX, VERSION

_INDEX_ENDS = ".safetensors.index.json"
MAX_HEAD = 100 << 20        # as safetensors has it


def head_of(file: pathlib.Path) -> tuple[dict, int]:
    """The head of a safetensors file, and the byte where its tensors begin; InvalidArgumentError where it has none."""
    try:
        with open(file, "rb") as opened:
            size, = struct.unpack("<Q", opened.read(8))
            head = json.loads(opened.read(min(size, MAX_HEAD)))
    except (OSError, ValueError, RecursionError, struct.error) as error:
        raise InvalidArgumentError(f"load: {file} can't be read, it may be cut: {str(error)[:200]}") from None
    if not isinstance(head, dict):
        raise InvalidArgumentError(f"load: {file} can't be read: its head is {type(head).__name__}, not a dict")
    return head, 8 + size


def _files_of(path: pathlib.Path) -> tuple[pathlib.Path, dict | None, list[str]]:
    """The folder, the weight_map of its index, where it has one, and its files."""
    if path.is_file() and path.suffix == ".safetensors":
        return path.parent, None, [path.name]
    found = sorted(one.name for one in path.glob("*" + _INDEX_ENDS)) if path.is_dir() else []
    files = sorted(one.name for one in path.glob("*.safetensors")) if path.is_dir() else []
    if not found and any(re.search(r"-\d+-of-\d+\.safetensors$", one) for one in files):
        raise NotFoundError(f"load: {path} is no checkpoint, or is cut: {files[0]} is one of several files, and there is no {path / INDEX}")
    if len(found) > 1 or not found and len(files) > 1:
        names = ", ".join(found or files)
        raise InvalidArgumentError(f"load: {path} has several models: {names}; name one file, as {path / (found or files)[0]}")
    if not found:
        if not files:
            raise NotFoundError(f"load: {path} is no checkpoint: there is no {path / INDEX} and no safetensors file")
        return path, None, files
    try:
        weights = json.loads((path / found[0]).read_text(encoding="utf-8"))["weight_map"]
        if not all(isinstance(one, str) for pair in weights.items() for one in pair):
            raise ValueError("weight_map has other values than names of files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"load: {path / found[0]} can't be read, it may be cut: {type(error).__name__}: {error}") from None
    return path, weights, sorted(set(weights.values()))


def index_of(path: pathlib.Path) -> tuple[pathlib.Path, dict]:
    """The folder of a checkpoint that others wrote, and its index as tt.save would have written it.

    NotFoundError: no safetensors file is there, or one that the index names is missing. InvalidArgumentError: a file is cut, lacks a
    tensor of the index, or has a dtype that tessera hasn't."""
    folder, weights, files = _files_of(path)
    sizes, tensors, where = {}, {}, {}
    for file in files:
        if pathlib.PurePath(file).name != file:
            raise InvalidArgumentError(f"load: the index of {folder} names the file {file!r}, which is not in its folder")
        if not (folder / file).is_file():
            raise NotFoundError(f"load: {folder} is cut: the file {file} is missing")
        head, begin = head_of(folder / file)
        head.pop("__metadata__", None)
        for name, entry in head.items():
            tensors[name], where[name] = _entry(folder / file, name, entry), file
        sizes[file] = begin + max((entry["data_offsets"][1] for entry in head.values()), default=0)
    if weights is not None:
        absent = [f"{name} of {file}" for name, file in weights.items() if where.get(name) != file]
        if absent:
            raise InvalidArgumentError(f"load: {folder} is cut: its index names {', '.join(absent[:8])}, which is not in that file")
        where = weights
    names = list(where)
    return folder, {"metadata": {"format": "tessera", "version": VERSION, "file_bytes": sizes}, "weight_map": where,
                    "tensors": {name: tensors[name] for name in names}, "state": {"dict": [[name, {"tensor": name}] for name in names]}}


def _entry(file: pathlib.Path, name: str, entry) -> dict:
    try:
        dtype, shape, end = entry["dtype"], list(entry["shape"]), entry["data_offsets"][1]
    except (KeyError, TypeError, IndexError):
        raise InvalidArgumentError(f"load: {file} can't be read: its head says {entry!r} of {name}") from None
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"load: {name} of {file} is {dtype}; tessera has {', '.join(DTYPES)}")
    if not isinstance(end, int):
        raise InvalidArgumentError(f"load: {file} can't be read: {name} ends at {end!r}")
    return {"dtype": dtype, "shape": shape, "placements": [], "pieces": [{"key": name, "box": [[0, n] for n in shape]}]}


def with_tied(saved: dict, own: dict) -> dict:
    """A saved state with the names that the file leaves out since they are tied: another name of the same tensor is in it."""
    groups: dict = {}
    for name, tensor in own.items():
        if hasattr(tensor, "untyped_storage") and tensor.device.type != "meta":
            groups.setdefault((tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride()), []).append(name)
    out = dict(saved)
    for names in groups.values():
        present = next((name for name in names if name in saved), None)
        if present is not None and len(names) > 1:
            out.update((name, saved[present]) for name in names if name not in saved)
    return out


def by_prefix(saved: dict, own: dict, prefix: str) -> dict:
    """A saved state by the names of a module that is a part of the model that was saved, or has it as a part: `prefix.` goes or comes."""
    if not prefix or any(name in own for name in saved):
        return saved
    start = prefix + "."
    inside = {name[len(start):]: value for name, value in saved.items() if name.startswith(start)}
    if any(name in own for name in inside):
        return inside
    around = {start + name: value for name, value in saved.items()}
    return around if any(name in own for name in around) else saved
