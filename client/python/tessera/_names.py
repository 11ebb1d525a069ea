"""Names that people try: what NumPy, torch and Dask call it, what was typed wrong, and what completion shows.

A name that isn't there is an AttributeError that says what to write, so hasattr() and libraries that look for a name are
told the truth. Completion (dir) shows public names alone.
"""

from __future__ import annotations

import difflib
import types

import _tessera
from ._namespace import public

# A name of other libraries -> the words to write here. `x` is the tensor.
_ELSEWHERE = {
    "tensor": "ts.asarray(values)", "as_tensor": "ts.asarray(values)", "from_numpy": "ts.asarray(values)",
    "from_array": "ts.distribute_tensor(array, mesh, placements)", "map_blocks": "ts.local_map(f, x)", "cat": "ts.concat(tensors, axis=0)",
    "mv": "ts.matmul(a, b)",
    "clamp": "ts.clip(x, min, max)", "unsqueeze": "ts.expand_dims(x, axis)", "permute": "ts.permute_dims(x, axes)", "view": "ts.reshape(x, shape)",
    "view_as": "ts.reshape(x, y.shape)", "flatten": "x.flatten()",
    "inv": "ts.linalg.inv(x)", "det": "ts.linalg.det(x)", "svd": "ts.linalg.svd(x)", "qr": "ts.linalg.qr(x)", "eigh": "ts.linalg.eigh(x)",
    "solve": "ts.linalg.solve(a, b)", "norm": "ts.linalg.norm(x)", "cholesky": "ts.linalg.cholesky(x)",
    "eig": "ts.linalg.eig(x)", "pinv": "ts.linalg.pinv(x)", "lstsq": "ts.linalg.lstsq(a, b)", "lu": "ts.linalg.lu(x)", "expm": "ts.linalg.matrix_exp(x)",
    "sigmoid_": "ts.sigmoid(x)",
    "vectorize": "the function itself: ops take whole tensors",
    "common_type": "ts.result_type(a, b)",
    "savez": "ts.save(path, tensors)", "savetxt": "ts.save(path, x)",
    "chunk": "ts.split(x, count)",
    "seed": "ts.manual_seed(seed)",
    "float": "ts.float32", "long": "ts.int64", "no_grad": "nothing: tensors carry no gradients; tessera.torch does",
    "arrange": "ts.arange(stop)",
}
_OF_TENSORS = {
    "cuda": "nothing: tensors live on the workers of their mesh; x.device_mesh says which, x.to_device(mesh) moves",
    "cpu": "x.full_tensor() for a NumPy array", "numpy": "x.full_tensor()", "compute": "x.full_tensor()", "persist": "x.wait()",
    "to": "x.astype(dtype) for a dtype, x.to_device(mesh) for a mesh, x.redistribute(placements) for placements",
    "rechunk": "x.redistribute(placements)", "chunks": "x.placements and x.box(position)",
    "detach": "x itself: tensors carry no gradients", "clone": "x.copy()",
    "contiguous": "x itself", "requires_grad": "nothing: tensors carry no gradients; tessera.torch does",
    "backward": "nothing: tensors carry no gradients; tessera.torch does", "grad": "nothing: tensors carry no gradients; tessera.torch does",
    "dim": "x.ndim", "numel": "x.size", "nelement": "x.size", "element_size": "x.itemsize",
    "t": "x.T", "H": "x.conj().mT", "type": "x.astype(dtype)", "float": "x.astype(ts.float32)", "double": "x.astype(ts.float64)",
    "half": "x.astype(ts.float16)", "int": "x.astype(ts.int32)", "long": "x.astype(ts.int64)", "bool": "x.astype(ts.bool)",
    "is_cuda": "nothing: x.device_mesh says where it lies", "local_tensor": "x.to_local(position)",
    "resize": "ts.resize(x, shape)", "tobytes": "x.full_tensor().tobytes()",
    "tofile": "ts.save(path, x)", "dump": "ts.save(path, x)", "byteswap": "nothing: numbers are in the workers' byte order",
    "permute": "ts.permute_dims(x, axes)", "unsqueeze": "x.expand_dims(axis)", "clamp": "x.clip(min, max)",
    "mm": "x @ y", "strides": "nothing: shards are in row-major order", "data": "x.full_tensor()", "values": "x.full_tensor()",
    "get": "x.full_tensor()", "result": "x.full_tensor()", "block_until_ready": "x.wait()", "sharding": "x.placements", "addressable_shards": "x.to_local(position)",
}
_OF_SESSIONS = {
    "full": "ts.full(...)", "zeros": "ts.zeros(...)", "ones": "ts.ones(...)", "asarray": "ts.asarray(values)", "array": "ts.asarray(values)",
    "scatter": "session.distribute_tensor(array, mesh, placements)", "put": "session.distribute_tensor(array, mesh, placements)",
    "upload": "session.distribute_tensor(array, mesh, placements)", "gather": "x.full_tensor()", "get": "x.full_tensor()",
    "device_mesh": "session.init_device_mesh(shape)", "mesh": "session.default_mesh",
    "shutdown": "session.close()", "stop": "session.close()", "wait": "session.sync()", "barrier": "session.sync()",
}


def _closest(word: str, names) -> str:
    found = difflib.get_close_matches(word, [name for name in names if not name.startswith("_")], 1, 0.66)
    return found[0] if found else ""


def public_names(names) -> list[str]:
    return [name for name in names if not name.startswith("_") or name.startswith("__")]


def _missing(what: str, name: str, advice: str, own) -> AttributeError:
    if advice:
        return AttributeError(f"{what} has no {name}: write {advice}" if not advice.startswith("nothing") else f"{what} has no {name}: {advice[9:]}")
    near = _closest(name, own)
    return AttributeError(f"{what} has no {name}" + (f"; did you mean {near}?" if near else ""))


# ---- the module ---------------------------------------------------------------------------------

def module_getattr(module_names: dict):
    def missing(name: str):
        if name.startswith("_"):
            raise AttributeError(f"module 'tessera' has no attribute {name!r}")
        advice = _ELSEWHERE.get(name, "")
        if not advice and not name.startswith("_") and hasattr(_tessera.Tensor, name):
            advice = f"x.{name}" + ("(...)" if callable(getattr(_tessera.Tensor, name)) else "")
        if not advice and hasattr(_tessera.Session, name):
            advice = f"session.{name}(...)"
        raise _missing("tessera", name, advice, module_names)
    return missing


# ---- classes ------------------------------------------------------------------------------------

def public_dir(self):
    return public_names(object.__dir__(self))


def tensor_getattr(self, name: str):
    if name.startswith("_"):
        raise AttributeError(f"'Tensor' object has no attribute {name!r}")
    advice, function = _OF_TENSORS.get(name, ""), vars(public()).get(name)
    if not advice and name.endswith("_") and hasattr(type(self), name[:-1]):
        advice = f"x = x.{name[:-1]}(...)"
    if not advice and isinstance(function, types.FunctionType):
        advice = f"ts.{name}(x, ...)"
    if not advice and name in public().linalg.__all__:
        advice = f"ts.linalg.{name}(x)"
    if not advice:
        advice = _ELSEWHERE.get(name, "")
    raise _missing("Tensor", name, advice, dir(self))


def session_getattr(self, name: str):
    if name.startswith("_"):
        raise AttributeError(f"'Session' object has no attribute {name!r}")
    raise _missing("Session", name, _OF_SESSIONS.get(name, ""), dir(self))


def plain_getattr(self, name: str):
    kind = type(self).__name__
    if name.startswith("_"):
        raise AttributeError(f"{kind!r} object has no attribute {name!r}")
    raise _missing(kind, name, "", dir(self))


# ---- keyword arguments --------------------------------------------------------------------------

# Names of arguments in torch and NumPy.
_ARGUMENTS = {"dim": "axis", "dims": "axes", "keepdim": "keepdims", "size": "shape", "mesh": "device_mesh", "placement": "placements",
              "input": "x", "other": "x2", "n_workers": "workers", "num_workers": "workers", "memory_limit": "memory"}


def suggestion(name: str, known) -> str:
    """"; did you mean axis=?", or ""."""
    wanted = _ARGUMENTS.get(name, "")
    near = wanted if wanted in known else _closest(name, known)
    return f"; did you mean {near}=?" if near else ""
