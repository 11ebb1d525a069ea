"""tt.load: what tt.save wrote, on any mesh and with any placements.

First everything is compared, the folder with its index and the index with what it is loaded into; then the workers read the
tensors, or the client brings them to their places one after the other, of each only the boxes that positions have; modules
and optimizers take their states last. So an error leaves them as they were.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import pathlib

import torch

import _tessera
from .._errors import InvalidArgumentError, NotFoundError, TesseraError
from .._mesh import DeviceMesh
from .._placements import REPLICATE, Shard, counted, fitting, kept, replicated
from .._session import session_of
from ._checkpoint import DTYPES, INDEX, SAVE, VERSION
from ._dtypes import array_of, code
from ._moving import default_mesh, upload
from ._plain_folder import by_prefix, head_of, index_of, with_tied
from ._tensor import Tensor, handle_of, wrap
from ._worker_files import Reader

# An optimizer's state that has its parameter's shape.
_LIKE_PARAMETER = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf", "acc_delta")
_SHOWN = 8      # of a long list of differences


class _Tensor:
    """A tensor of the checkpoint in a tree: its name, and what it is."""

    def __init__(self, name: str, entry: dict):
        self.name, self.shape, self.dtype = name, tuple(entry["shape"]), DTYPES[entry["dtype"]]
        self.placements = entry["placements"]       # by mesh dim the dim that is in shards, or None; None for a CPU tensor
        self.pieces = [(piece["key"], [(operator.index(start), operator.index(stop)) for start, stop in piece["box"]]) for piece in entry["pieces"]]
        self._check_pieces()

    def _check_pieces(self) -> None:
        """They lie in the tensor, each element in one of them."""
        if any(not isinstance(n, int) or n < 0 for n in self.shape):
            raise ValueError(f"{self.name} has the shape {self.shape}")
        boxes = [box for _, box in self.pieces]
        for box in boxes:
            if len(box) != len(self.shape) or any(not 0 <= start <= stop <= n for (start, stop), n in zip(box, self.shape)):
                raise ValueError(f"a piece {box} of {self.name} is none of the shape {self.shape}")
        count = sum(math.prod(stop - start for start, stop in box) for box in boxes)
        overlap = any(all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(box, other))
                      for i, box in enumerate(boxes) for other in boxes[:i] if self.shape)
        if overlap or not self.shape and len(boxes) > 1:
            raise ValueError(f"two pieces of {self.name} have the same elements")
        if count > math.prod(self.shape):
            raise ValueError(f"the pieces of {self.name} have {count} elements of {math.prod(self.shape)}")


def _save_of(file: pathlib.Path) -> str | None:
    """The number of the save that wrote a safetensors file; None where its head doesn't say one."""
    metadata = head_of(file)[0].get("__metadata__")
    return metadata.get(SAVE) if isinstance(metadata, dict) else None


class _Folder:
    """The files of a checkpoint, compared with their index when it is opened."""

    def __init__(self, path: pathlib.Path, stack: contextlib.ExitStack):
        self.stack, self.open = stack, {}
        self.path, index, self.is_own = self._index(path)
        self.workers = Reader(self.path)
        path = self.path
        try:
            version = index["metadata"]["version"]
            if version != VERSION:
                raise InvalidArgumentError(f"load: {path} is of version {version!r} of tt.save; this one reads {VERSION}")
            for file, expected in index["metadata"]["file_bytes"].items():
                self._check(file, expected, index["metadata"].get(SAVE))
            self.files = index["weight_map"]
            if not set(self.files.values()) <= set(index["metadata"]["file_bytes"]):
                raise InvalidArgumentError(f"load: {path / INDEX} is damaged: weight_map names files that file_bytes doesn't")
            self.tensors = {name: _Tensor(name, entry) for name, entry in index["tensors"].items()}
            self.state = self._tree(index["state"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            if isinstance(error, TesseraError):
                raise
            raise InvalidArgumentError(f"load: {path / INDEX} is damaged: {type(error).__name__}: {error}") from None

    @staticmethod
    def _index(path: pathlib.Path) -> tuple[pathlib.Path, dict, bool]:
        """The folder, its index, and whether tt.save wrote it."""
        try:
            index = json.loads((path / INDEX).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return *index_of(path), False
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"load: {path / INDEX} can't be read, it may be cut: {error}") from None
        metadata = index.get("metadata") if isinstance(index, dict) else None
        if isinstance(metadata, dict) and metadata.get("format") == "tessera" or not isinstance(index, dict) or "weight_map" not in index:
            return path, index, True
        return *index_of(path), False

    def _check(self, file: str, expected: int, number: str | None) -> None:
        if pathlib.PurePath(file).name != file:
            raise InvalidArgumentError(f"load: {self.path / INDEX} names the file {file!r}, which is not in its folder")
        if not (self.path / file).is_file():
            raise NotFoundError(f"load: {self.path} is cut: the file {file} of {expected} bytes is missing")
        found = (self.path / file).stat().st_size
        if found != expected:
            raise InvalidArgumentError(f"load: {self.path} is cut: the file {file} has {found} bytes, not {expected}")
        if number is not None and (own := _save_of(self.path / file)) != number:
            raise InvalidArgumentError(f"load: {self.path / file} is of another save than {INDEX}: its number is {own!r}, not {number!r}")

    def _tree(self, node):
        (kind, value), = node.items()
        if kind == "dict":
            return {key: self._tree(one) for key, one in value}
        if kind in ("list", "tuple"):
            return (tuple if kind == "tuple" else list)(self._tree(one) for one in value)
        return self.tensors[value] if kind == "tensor" else node["value"]

    def _file(self, key: str):
        import safetensors
        file = self.files[key]
        if file not in self.open:
            try:
                self.open[file] = self.stack.enter_context(safetensors.safe_open(self.path / file, framework="pt"))
            except (safetensors.SafetensorError, OSError) as error:
                raise InvalidArgumentError(f"load: {self.path / file} can't be read, it may be cut: {error}") from None
        return self.open[file]

    def load(self, tensor: _Tensor, mesh, placements):
        """The handle of a tensor that the workers read themselves; None where they can't."""
        if len(tensor.pieces) != 1 or list(tensor.pieces[0][1]) != [(0, n) for n in tensor.shape]:
            return None
        (key, _), = tensor.pieces
        return self.workers.load(self.files[key], key, tensor, mesh, placements)

    def read(self, tensor: _Tensor, box) -> torch.Tensor:
        """The values of a box as a CPU tensor: only the parts of pieces that are in it are read."""
        import safetensors
        sizes = [stop - start for start, stop in box]
        out = None
        count = 0
        for key, piece in tensor.pieces:
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, piece)]
            if any(start >= stop for start, stop in common):
                continue
            try:
                if not box:
                    part = self._file(key).get_tensor(key)
                else:
                    part = self._file(key).get_slice(key)[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, piece))]
            except (KeyError, safetensors.SafetensorError) as error:
                raise InvalidArgumentError(f"load: {self.path} has no {key} in its files: {error}") from None
            if part.dtype != tensor.dtype or list(part.shape) != [b - a for a, b in common]:
                raise InvalidArgumentError(f"load: {key} is {part.dtype} {tuple(part.shape)} in its file, and {tensor.dtype} "
                                           f"{tuple(b - a for a, b in common)} in the index of {self.path}")
            count += part.numel()
            if common == list(box):
                return part
            out = torch.empty(sizes, dtype=tensor.dtype) if out is None else out
            out[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(common, box))] = part
        if count != math.prod(sizes):
            raise InvalidArgumentError(f"load: {self.path} has {count} of {math.prod(sizes)} elements of {tensor.name}{list(box)}: its index "
                                       "is cut")
        return torch.empty(sizes, dtype=tensor.dtype) if out is None else out


class _Place:
    """Where a tensor of the checkpoint goes: a mesh and placements, or the CPU."""

    def __init__(self, mesh: DeviceMesh | None, placements=None):
        self.mesh, self.placements = mesh, placements

    @classmethod
    def of(cls, tensor: torch.Tensor):
        if not isinstance(tensor, Tensor):
            return cls(None)
        handle = handle_of(tensor)
        return cls(DeviceMesh._wrap(session_of(handle), handle._mesh), kept(handle._placements))

    def key(self):
        return None if self.mesh is None else (self.mesh._session._key, self.mesh._raw.hash(), tuple(self.placements))

    def bring(self, folder: _Folder, tensor: _Tensor):
        """The handle of a tensor's values there, or a CPU tensor."""
        whole = [(0, n) for n in tensor.shape]
        if self.mesh is None:
            return folder.read(tensor, whole).clone()
        handle = folder.load(tensor, self.mesh, self.placements)
        if handle is not None:
            return handle
        raw = self.mesh._raw
        boxes = [tuple(tuple(one) for one in box) for box in _tessera.boxes(code(tensor.dtype), tensor.shape, raw, self.placements)]
        if all(one.is_replicate() for one in self.placements):
            return upload(folder.read(tensor, whole), self.mesh, self.placements)
        values = {box: array_of(folder.read(tensor, list(box))) for box in dict.fromkeys(boxes)}
        whole_mesh = DeviceMesh._wrap(self.mesh._session, raw)
        by_position = dict(zip(whole_mesh.positions(), (values[box] for box in boxes)))
        return self.mesh._session.from_local(by_position, whole_mesh, self.placements, shape=tensor.shape)


class _Owned:
    """A tree whose state a module or an optimizer takes."""

    def __init__(self, owner, state):
        self.owner, self.state = owner, state


class _Loading:
    """Compares what is loaded with what it goes into, and collects the differences."""

    def __init__(self, folder: _Folder, default_place, strict: bool):
        self.folder, self.default_place, self.strict = folder, default_place, strict
        self.missing, self.unexpected, self.other = [], [], []
        self.owners: list = []      # (module or optimizer, state): what takes its state in the end
        self.done: dict = {}        # handles and CPU tensors by name and place

    def match(self, saved, into, path: str):
        """The tree with a (_Tensor, _Place) for each tensor."""
        if isinstance(into, torch.optim.Optimizer):
            return _Owned(into, self._optimizer(saved, into, path))
        if hasattr(into, "load_state_dict"):
            return _Owned(into, self._module(saved, into, path) if isinstance(into, torch.nn.Module) else self.place(saved))
        if isinstance(into, torch.Tensor) or isinstance(saved, _Tensor):
            if not isinstance(saved, _Tensor) or not isinstance(into, torch.Tensor):
                self.other.append(f"{path or 'the state'} is {_kind(saved)} in the checkpoint, {_kind(into)} here")
                return saved
            if saved.shape != tuple(into.shape):
                self.other.append(f"{path or 'the state'} is {saved.shape} in the checkpoint, {tuple(into.shape)} here")
            return saved, _Place.of(into)
        if isinstance(into, dict) and isinstance(saved, dict):
            self.missing += [_join(path, key) for key in into if key not in saved]
            self.unexpected += [_join(path, key) for key in saved if key not in into]
            return {key: self.match(value, into[key], _join(path, key)) for key, value in saved.items() if key in into}
        if isinstance(into, (list, tuple)) and isinstance(saved, (list, tuple)):
            if len(into) != len(saved):
                self.other.append(f"{path or 'the state'} has {len(saved)} items in the checkpoint, {len(into)} here")
            return type(saved)(self.match(a, b, _join(path, i)) for i, (a, b) in enumerate(zip(saved, into)))
        if isinstance(saved, (dict, list, tuple)) or isinstance(into, (dict, list, tuple)):
            self.other.append(f"{path or 'the state'} is {_kind(saved)} in the checkpoint, {_kind(into)} here")
        return saved

    def _module(self, saved, module, path: str):
        own = module.state_dict()
        if isinstance(saved, dict) and not self.folder.is_own:
            saved = with_tied(by_prefix(saved, own, getattr(module, "base_model_prefix", "")), own)
        return self.match(saved, own, path)

    def _optimizer(self, saved, optimizer, path: str):
        """State of a parameter goes where the parameter is; numbers of a tensor's kind are replicated beside it."""
        try:
            groups = [len(group["params"]) for group in saved["param_groups"]]
            state = saved["state"].items()
            numbers = [number for group in saved["param_groups"] for number in group["params"]]
        except (KeyError, TypeError, AttributeError):
            self.other.append(f"{path or 'the state'} is {_kind(saved)} in the checkpoint, {type(optimizer).__name__} here")
            return saved
        own = [len(group["params"]) for group in optimizer.param_groups]
        if groups != own:
            self.other.append(f"{_join(path, 'param_groups')} have {groups} parameters in the checkpoint, {own} here")
            return saved
        parameters = dict(zip(numbers, (p for group in optimizer.param_groups for p in group["params"])))
        out: dict = {}
        for number, values in state:
            parameter = parameters.get(number)
            if parameter is None:
                out[number] = self.place(values)
                continue
            beside = _Place.of(parameter)
            rest = _Place(beside.mesh, None if beside.mesh is None else replicated(len(beside.placements)))
            out[number] = {}
            for key, value in values.items():
                if not isinstance(value, _Tensor):
                    out[number][key] = self.place(value)
                    continue
                fits = value.shape == tuple(parameter.shape)
                if key in _LIKE_PARAMETER and not fits:
                    self.other.append(f"{_join(path, 'state')}.{number}.{key} is {value.shape} in the checkpoint, "
                                      f"its parameter {tuple(parameter.shape)} here")
                is_number = not value.shape     # a step is where its optimizer had it
                place = _Place(None) if is_number and value.placements is None else beside if fits and not is_number else rest
                out[number][key] = (value, place)
        return {**{key: self.place(value) for key, value in saved.items() if key != "state"}, "state": out}

    def place(self, saved):
        """The tree where nothing says how: by the default."""
        if isinstance(saved, _Tensor):
            return saved, self.default_place(saved)
        if isinstance(saved, dict):
            return {key: self.place(value) for key, value in saved.items()}
        if isinstance(saved, (list, tuple)):
            return type(saved)(self.place(value) for value in saved)
        return saved

    def check(self) -> None:
        if not self.strict:
            self.missing, self.unexpected = [], []
        parts = [f"{what}: {', '.join(names[:_SHOWN])}{f' and {len(names) - _SHOWN} more' if len(names) > _SHOWN else ''}"
                 for what, names in (("missing in the checkpoint", self.missing), ("unexpected in it", self.unexpected),
                                     ("different", self.other)) if names]
        if parts:
            raise InvalidArgumentError(f"load: {self.folder.path} is of another model; {'; '.join(parts)}")

    def bring(self, tree):
        """The values. What several names have is read once, and each has a tensor of its own."""
        if isinstance(tree, _Owned):
            state = self.bring(tree.state)
            self.owners.append((tree.owner, state))
            return state
        if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[0], _Tensor) and isinstance(tree[1], _Place):
            tensor, place = tree
            key = (tensor.name, place.key())
            known = self.done.get(key)
            if known is None:
                known = self.done[key] = place.bring(self.folder, tensor)
            elif isinstance(known, torch.Tensor):
                known = known.clone()
            return known if isinstance(known, torch.Tensor) else wrap(known)
        if isinstance(tree, dict):
            return {key: self.bring(value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)):
            return type(tree)(self.bring(value) for value in tree)
        return tree


def _join(path: str, key) -> str:
    return f"{path}.{key}" if path else str(key)


def _kind(value) -> str:
    if isinstance(value, (_Tensor, torch.Tensor)):
        return f"a tensor {tuple(value.shape)}"
    return f"{len(value)} entries" if isinstance(value, (dict, list, tuple)) else repr(value)[:40]


def _default_place(device_mesh, placements):
    """Where tensors go that are loaded into nothing."""
    mesh = device_mesh

    def place(tensor: _Tensor) -> _Place:
        nonlocal mesh
        if tensor.placements is None and device_mesh is None:
            return _Place(None)
        mesh = default_mesh() if mesh is None else mesh
        wanted = placements(tensor.name, tensor.shape) if callable(placements) else placements
        ndim = len(tensor.shape)
        if wanted is not None:
            return _Place(mesh, _counted(fitting(mesh._placements(wanted, "load"), ndim), ndim))
        saved, dims = tensor.placements, len(mesh._raw.shape)
        saved = saved if saved is not None and len(saved) == dims else [None] * dims
        return _Place(mesh, [REPLICATE if one is None else Shard(one) for one in saved])

    return place


def _counted(placements, ndim: int) -> list:
    """Shards counted from the first dim."""
    if any(one.is_partial() for one in placements):
        raise InvalidArgumentError("load: placements have a Partial; values are Shard or Replicate")
    return counted(placements, ndim)


def load(path, into=None, *, device_mesh: DeviceMesh | None = None, placements=None, strict: bool = True):
    """Loads what tt.save wrote; returns the state: the same dicts, lists, tuples and values, with tensors of their saved dtypes.

    path: a folder of tt.save; or one of Hugging Face, with `model.safetensors` or several files and their index, or a safetensors file: its
    state is a dict of tensors by name, and `into` a module. Names that such a file leaves out since they are tied, and the prefix of a
    model's base (`base_model_prefix`), are found.

    into: a module, an optimizer, or dicts and lists of them and of tensors, as it was given to save. Tensors are brought to
    where those of `into` lie, whatever mesh and placements they were saved from; an optimizer's to where its parameters lie,
    also before its first step. Modules and optimizers in it then take their states by load_state_dict; plain tensors of it
    only say where. Without `into`: device_mesh is the mesh, default default_placement's (and what was a CPU tensor stays
    one); placements is a list for all tensors (a Shard of a dim that a tensor doesn't have is Replicate), or f(name, shape)
    that gives one; default those that they were saved with on a mesh of as many dims, else Replicate. strict: False loads what has a name in
    both, and leaves the rest as it is.

    Where the workers see the files, as tt.save says, each reads what its shards take of them, all at the same time. What is
    elsewhere, or was written shard by shard, the client reads, one tensor after the other, of each only the boxes that the
    mesh's positions hold; what is replicated is read and sent once. Blocks until all is there.

    NotFoundError: no checkpoint is there, or a file of it is missing. InvalidArgumentError: a file is cut; or the checkpoint
    is of another model: all missing and unexpected keys and both shapes are named, and nothing has been loaded.

    >>> step = tt.load("checkpoints/100", {"model": model, "optimizer": optimizer, "step": 0})["step"]
    """
    if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        raise InvalidArgumentError(f"load: device_mesh is {device_mesh!r}, not a DeviceMesh")
    if into is not None and (device_mesh is not None or placements is not None):
        raise InvalidArgumentError("load: device_mesh and placements are for a load without into, whose tensors say where")
    with contextlib.ExitStack() as stack:
        folder = _Folder(pathlib.Path(path), stack)
        loading = _Loading(folder, _default_place(device_mesh, placements), strict)
        tree = loading.place(folder.state) if into is None else loading.match(folder.state, into, "")
        loading.check()
        out = loading.bring(tree)
        folder.workers.wait()
        for owner, state in loading.owners:
            if isinstance(owner, torch.nn.Module):
                owner.load_state_dict(state, strict=strict)
            else:
                owner.load_state_dict(state)
        return out


load.__module__ = "tessera.torch"
