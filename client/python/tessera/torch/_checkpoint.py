"""tt.save: a state as safetensors files and an index.

A folder holds safetensors files and `model.safetensors.index.json`. Besides the usual `metadata` and `weight_map` the index
has `tensors` (dtype, shape, placements, pieces by name) and `state`, the tree of dicts, lists and plain values.

Where the workers see the folder they write the files, each its own shards (_worker_files.py), and a tensor is one *piece*,
that has its name. Elsewhere the client does it, shard after shard, with a file for each worker that is read from; nothing of
a tensor but one shard is in its memory at a time. Then each distinct box is a piece, taken from one of the positions that
have it: the one whose file is smallest so far. A piece that is the whole tensor has its name, so that a tensor that was
replicated is found by every reader of safetensors; others have the name and the box, "w[0:4,0:8]".
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import secrets
import shutil
import struct

import numpy as np
import torch

import _tessera
from .._errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from .._placements import REPLICATE, Shard
from . import _worker_files
from ._cell import moved
from ._dtypes import TORCH, tensor_of
from ._tensor import Tensor, handle_of

INDEX = "model.safetensors.index.json"
VERSION = 1
SAVE = "save"       # in the metadata of the index and of each file: one number for all files of a save
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64,
          "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "U16": torch.uint16,
          "U32": torch.uint32, "U64": torch.uint64, "BOOL": torch.bool, "C64": torch.complex64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_DEPTH = 100     # docs/limits.md: checkpoint_depth


class _Piece:
    """A box of a tensor, and how to fetch it."""

    def __init__(self, key: str, dtype: torch.dtype, box, fetch):
        self.key, self.dtype, self.box, self.fetch = key, dtype, box, fetch
        self.shape = [stop - start for start, stop in box]
        self.bytes = math.prod(self.shape) * dtype.itemsize


class _Plan:
    """The files and their tensors; made before anything is fetched, of handles that no later step changes."""

    def __init__(self):
        self.tensors: dict = {}
        self.sharded: dict = {}     # by session the handles by name
        self.files: dict = {}       # pieces by (session, worker); those of CPU tensors by None
        self.known: dict = {}       # (name, values) by what is the same tensor: tied parameters are stored once

    def tree(self, node, path: tuple):
        if len(path) > MAX_DEPTH:
            raise InvalidArgumentError(f"save: the state is nested {len(path)} deep at {_dotted(path[:4])}..., the limit is {MAX_DEPTH}")
        if isinstance(node, torch.Tensor):
            return {"tensor": self._tensor(node, path)}
        if node is None or isinstance(node, (bool, int, float, str)):
            return {"value": node}
        if hasattr(node, "state_dict"):
            return self.tree(node.state_dict(), path)
        if isinstance(node, dict):
            for key in node:
                if not isinstance(key, (str, int)) or isinstance(key, bool):
                    raise InvalidArgumentError(f"save: the key {key!r} at {_dotted(path)} is {type(key).__name__}; keys are str or int")
            return {"dict": [[key, self.tree(value, (*path, key))] for key, value in node.items()]}
        if isinstance(node, (list, tuple)):
            return {("tuple" if isinstance(node, tuple) else "list"): [self.tree(value, (*path, i)) for i, value in enumerate(node)]}
        raise InvalidArgumentError(f"save: {_dotted(path)} is {type(node).__name__}; a state has tensors, numbers, strings, None, and "
                                   "dicts, lists and tuples of them; what has a state_dict() is saved by it")

    def _tensor(self, tensor: torch.Tensor, path: tuple) -> str:
        if tensor.dtype not in NAMES:
            raise InvalidArgumentError(f"save: {_dotted(path)} is {tensor.dtype}, which safetensors files don't have")
        if tensor.device.type == "meta":
            raise InvalidArgumentError(f"save: {_dotted(path)} is on the device meta and has no values")
        held = handle_of(tensor) if isinstance(tensor, Tensor) else tensor.detach().to("cpu")
        same = id(held) if isinstance(tensor, Tensor) else (held.data_ptr(), held.dtype, held.shape, held.stride())
        if tensor.numel() and same in self.known:
            return self.known[same][0]
        name = _dotted(path) if path else "tensor"
        number = 1
        while name in self.tensors or name == "__metadata__":
            number += 1
            name = f"{_dotted(path)}#{number}"
        self.known[same] = (name, held)     # held, as an id is another's when its object is gone
        if isinstance(tensor, Tensor):
            # A pending sum is summed up to shards: no worker has the whole.
            goal = [(Shard(0) if held.shape else REPLICATE) if one.is_partial() else one for one in held._placements]
            self.sharded.setdefault(held._session_key, {})[name] = moved(held, goal)
            self.tensors[name] = {}     # the state's order, whoever writes it
        else:
            box = [[0, n] for n in held.shape]
            self.files.setdefault(None, []).append(_Piece(name, held.dtype, box, lambda: held))
            self._note(name, held.dtype, held.shape, None, [(name, box)])
        return name

    def whole(self, name: str, handle) -> None:
        """Workers write the tensor as one piece."""
        self._note(name, TORCH[handle._dtype], handle.shape, _dims(handle), [(name, [[0, n] for n in handle.shape])])

    def by_shards(self, name: str, handle) -> None:
        """The client fetches and writes each distinct shard."""
        shape, mesh, workers = tuple(handle.shape), handle._mesh, list(handle._mesh.workers)
        holders: dict = {}
        for flat, box in enumerate(_tessera.boxes(handle._dtype, shape, mesh, list(handle._placements))):
            holders.setdefault(tuple(tuple(one) for one in box), []).append(flat)
        pieces = []
        for box, positions in holders.items():
            if any(start == stop for start, stop in box) and math.prod(shape):
                continue
            groups = [(handle._session_key, workers[flat]) for flat in positions]
            group = min(groups, key=lambda one: sum(piece.bytes for piece in self.files.get(one, ())))
            position = tuple(int(i) for i in np.unravel_index(positions[groups.index(group)], mesh.shape))
            is_whole = all((start, stop) == (0, n) for (start, stop), n in zip(box, shape))
            key = name if is_whole else f"{name}[{','.join(f'{start}:{stop}' for start, stop in box)}]"
            box = [list(one) for one in box]
            self.files.setdefault(group, []).append(
                _Piece(key, TORCH[handle._dtype], box, lambda position=position: tensor_of(handle.to_local(position))))
            pieces.append((key, box))
        self._note(name, TORCH[handle._dtype], shape, _dims(handle), pieces)

    def _note(self, name, dtype, shape, placements, pieces) -> None:
        self.tensors[name] = {"dtype": NAMES[dtype], "shape": list(shape), "placements": placements,
                              "pieces": [{"key": key, "box": box} for key, box in pieces]}


def _dims(handle) -> list:
    """By mesh dim the dim that is in shards, or None."""
    return [one.dim if one.is_shard() else None for one in handle._placements]


def _dotted(path: tuple) -> str:
    return ".".join(str(one) for one in path) or "the state"


def _write(file: pathlib.Path, pieces: list, number: str) -> None:
    """Writes one safetensors file, piece after piece."""
    pieces = sorted(pieces, key=lambda one: (-one.dtype.itemsize, one.key))     # each begins at a multiple of its dtype's size
    header: dict = {"__metadata__": {"format": "pt", SAVE: number}}
    at = 0
    for piece in pieces:
        header[piece.key] = {"dtype": NAMES[piece.dtype], "shape": piece.shape, "data_offsets": [at, at + piece.bytes]}
        at += piece.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for piece in pieces:
            local = piece.fetch().contiguous()
            if list(local.shape) != piece.shape or local.dtype != piece.dtype:
                raise FailedPreconditionError(f"save: {piece.key} came as {local.dtype} {tuple(local.shape)}, not {piece.dtype} "
                                              f"{tuple(piece.shape)}: it changed while it was saved")
            if local.numel():
                out.write(local.reshape(-1).view(torch.uint8).numpy().data)
        out.flush()
        os.fsync(out.fileno())


def _write_all(folder: pathlib.Path, plan: _Plan, number: str) -> dict:
    """Writes the tensors of a plan, with the save's number in each file; by file the keys of its pieces and their bytes."""
    made: dict = {}
    for handles in plan.sharded.values():
        rest = dict(handles)
        for part in _worker_files.chunks(handles):
            file = f"{len(made)}.safetensors"
            if not _worker_files.write(folder / file, part, {SAVE: number}):
                break       # what they can't write now the client does
            made[file] = list(part), sum(handle.nbytes for handle in part.values())
            for name in part:
                plan.whole(name, rest.pop(name))
        for name, handle in rest.items():
            plan.by_shards(name, handle)
    for group in sorted(plan.files, key=lambda one: (one is None, one or ())):
        pieces, file = plan.files[group], f"{len(made)}.safetensors"
        _write(folder / file, pieces, number)
        made[file] = [piece.key for piece in pieces], sum(piece.bytes for piece in pieces)
    return made


def save(path, state) -> None:
    """Saves a state as a folder of safetensors files and an index; tt.load reads it on any mesh.

    path: a folder that doesn't exist yet; it appears when all is written, under a temporary name in the same place before.
    state: dicts (with str or int keys), lists and tuples of tensors, numbers, strings and None; modules, optimizers and what
    else has a state_dict() stand for that. Tied parameters are stored once; a pending sum is summed up. Values are those of
    the moment of the call: what is done to the tensors meanwhile doesn't show. Blocks.

    Where the path lies in a folder that the cluster serves (local_cluster(files=...), tessera up --files) and the workers are
    on this host, or the disk is shared, they write it, each its own shards at the same time. Elsewhere the client writes:
    every distinct shard is fetched once, from one worker that has it; one of them at a time is in its memory.

    A module by itself is saved by its own names, and one of transformers with its config: where the workers write, or nothing is in shards,
    from_pretrained reads the folder.

    FailedPreconditionError: the path exists. NotFoundError: its parent doesn't. InvalidArgumentError: a value that no state
    has, with its path in the state. What workers report is raised as it is, and nothing is left at the path.

    >>> tt.save("checkpoints/100", {"model": model, "optimizer": optimizer, "step": 100})
    """
    path = pathlib.Path(path)
    _check_free(path)
    if not path.absolute().parent.is_dir():
        raise NotFoundError(f"save: {path} can't be made, as the folder {path.parent} doesn't exist")
    plan = _Plan()
    tree = plan.tree(state, ())
    folder = path.absolute().parent / f".{path.name}.{secrets.token_hex(4)}.partial"
    folder.mkdir()
    try:
        save_number = secrets.token_hex(8)
        made = _write_all(folder, plan, save_number)     # bytes and pieces of each file
        weights, sizes, total = {}, {}, 0
        for number, (file, (names, count)) in enumerate(made.items(), 1):
            name = f"model-{number:05d}-of-{len(made):05d}.safetensors"
            os.rename(folder / file, folder / name)
            sizes[name] = (folder / name).stat().st_size
            weights.update((key, name) for key in names)
            total += count
        index = {"metadata": {"total_size": total, "format": "tessera", "version": VERSION, "file_bytes": sizes,
                              SAVE: save_number},
                 "weight_map": weights, "tensors": plan.tensors, "state": tree}
        with open(folder / INDEX, "w", encoding="utf-8") as out:
            json.dump(index, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        _write_config(folder, state)
        _check_free(path)
        try:
            os.rename(folder, path)
        except OSError as error:
            raise FailedPreconditionError(f"save: {path} can't be made: {error.strerror}") from None
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_config(folder: pathlib.Path, state) -> None:
    """The configs of a model of transformers, by which from_pretrained reads the folder."""
    for name in ("config", "generation_config"):
        one = getattr(state, name, None) if isinstance(state, torch.nn.Module) else None
        if hasattr(one, "save_pretrained"):
            one.save_pretrained(folder)


def _check_free(path: pathlib.Path) -> None:
    if path.exists() or path.is_symlink():
        raise FailedPreconditionError(f"save: {path} exists already; a checkpoint is never written over another")


save.__module__ = "tessera.torch"
