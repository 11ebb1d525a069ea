"""The text of help() for a function: its signature, what it does, each argument, what it gives, an example and its errors.

A row of the catalog says what its function does, gives an example, and tells of arguments that it alone has; other functions
say it in their documentation. Arguments, shapes and errors that many functions have in common stand here, once.
"""

from __future__ import annotations

import functools
import inspect

from _tessera_ops import ARGUMENTS as _ARGUMENTS_OF_ROWS, MAPS as _MAPS_OF_ROWS
from ._examples import EXAMPLES

_ARGUMENTS = {
    "a": "a tensor whose rows are chosen, or a number n, which stands for arange(n).",
    "alpha": "a factor.", "beta": "a factor.",
    "append": "what stands behind the elements along the axis.", "prepend": "what stands before the elements along the axis.",
    "approximate": "'none', or 'tanh' for the approximation by tanh.",
    "arrays": "tensors (for concat and stack in a list).", "operands": "tensors.", "tensors": "tensors.",
    "atol": "the absolute tolerance.", "rtol": "the relative tolerance.",
    "attn_mask": "a tensor of bools (true: attend) or of numbers that are added, or None.",
    "gradient": "its gradient.", "rate": "the learning rate, a number or a tensor without dims.", "weight_decay": "a factor of x.",
    "axes": "dims, counted from 0, or from the end where negative.",
    "axis": "a dim (negative: counted from the end), a tuple of dims where several make sense, or None for the default.",
    "axis1": "a dim.", "axis2": "a dim.", "source": "a dim, or several.", "destination": "where they go.",
    "bias": "a vector that is added, or None.",
    "ceil_mode": "whether a window that goes over the edge counts.", "count_include_pad": "whether padding counts as zeros.",
    "condition": "a tensor of bools.", "mask": "a tensor of bools.",
    "constant_values": "what is added.", "pad_width": "a number, (before, after), or a pair for each axis.",
    "copy": "False where a copy would be an error.", "correction": "what is taken off the number of elements.",
    "d": "the spacing of samples.", "descending": "the largest first.", "stable": "equal elements keep their order.",
    "device": "a mesh, as the array API calls it.", "device_mesh": "the mesh it lies on; the default is that of `with mesh:`, else all workers.",
    "placements": "a placement for each dim of the mesh, Shard(dim) or Replicate(); the default is \"auto\": small ones replicated, others sharded.",
    "dilation": "the distance of a window's elements.", "groups": "how many groups the channels make.",
    "kernel_size": "the extents of a window.", "stride": "the step from window to window.", "padding": "zeros on each side.",
    "dtype": "a dtype, ts.float32 or NumPy's.", "from_": "a dtype or a tensor.", "to": "a dtype.", "kind": "a dtype, or a name as 'real floating'.",
    "endpoint": "whether stop is the last one.", "start": "the first one.", "stop": "the end.", "step": "the difference.", "num": "how many.",
    "N": "how many columns.", "base": "a number.", "bins": "edges.", "choices": "tensors.",
    "eps": "a small number that keeps the divisor from 0.", "fill_value": "a number.",
    "full_matrices": "square U and Vh.", "upper": "an upper triangular matrix.", "transposed": "solve with the transposed matrix.",
    "unit_diagonal": "the diagonal counts as ones.",
    "high": "the bound above, which is left out.", "low": "the bound below.", "loc": "the mean.", "scale": "the spread, or a factor.", "seed": "an integer.",
    "ignore_index": "the label that doesn't count.", "labels": "a tensor of class numbers.",
    "include_initial": "begin with the neutral element.", "indexing": "'xy' or 'ij'.",
    "indices": "a tensor of integers; negative ones count from the end.", "indices_or_sections": "a number of pieces, or where to cut.",
    "input": "what is added.", "mat1": "a matrix.", "mat2": "a matrix.", "invert": "the opposite.", "is_causal": "each query attends to keys up to its own place.",
    "k": "which diagonal, or how many.", "offset": "which diagonal.", "keepdims": "keep reduced dims, with extent 1.",
    "key": "(..., keys, features).", "query": "(..., queries, features).", "value": "a number or a tensor; of attention (..., keys, features).",
    "largest": "the largest ones; else the smallest.", "max": "the bound above, or None.", "min": "the bound below, or None.",
    "mean": "by channel; of a step of Adam that of gradients.", "weight": "a factor or weights; of linear (out, in), of convolutions (out, in / groups, window).",
    "weights": "a weight for each element.", "mode": "how; see above.", "n": "how many, or how often.", "n_rows": "rows.", "n_cols": "columns; as many as rows by default.",
    "negative_slope": "the factor of negative elements.", "norm": "'backward', 'ortho' or 'forward': where it is divided by the length.",
    "notation": "letters of the operands' dims, as 'ij,jk->ik'.", "num_classes": "how many classes.",
    "obj": "a number, a list, an array, or a tensor.", "y": "a tensor.", "xp": "places.", "fp": "heights.", "ord": "which norm.", "out": "nothing: use the result, or write it into a tensor, y[...] = result.",
    "pivots": "a vector of integers, as lu_factor gives it.", "p": "a probability; of choice one for each row.", "reduction": "'mean', 'sum' or 'none'.", "repeats": "a number, or one for each element.",
    "replace": "whether a row may be chosen twice.", "s": "extents along the axes.",
    "shape": "the extents, a tuple of integers.", "shapes": "tuples of integers.", "shift": "by how many places; a tuple for several axes.",
    "side": "'left' or 'right'.", "sorter": "indices that sort x1.",
    "src_data_rank": "0: the client has the data.", "tensor": "an array (NumPy, DLPack, a memory map), or a tensor.",
    "timeout": "seconds; None waits as long as there is progress.", "training": "False gives x itself.", "updates": "what goes there.",
    "values": "tensors, dtypes and numbers.", "x": "a tensor.", "x1": "a tensor or a number.", "x2": "a tensor or a number; one of the operands is a tensor.",
    "mesh_dim_names": "a name for each mesh dim.", "workers": "which workers, or how many.", "locals": "a dict by position, a nested list in mesh shape, or f(position).",
    "address": "unix:/path or tls://host:port, #token=... behind it", "token": "beats the address's.", "resume": "a session to come back to, its id, its name or its resume_text.",
    "lease": "seconds that the session outlives its connection.", "name": "of the session, to come back to it.",
    "ca": "PEM file of who signed the server's certificate; TESSERA_CA; else those that the system trusts.", "stall_timeout": "seconds without progress that end a wait.",
    "door": "a worker's address, tls://host:port, by way of which the bytes of all workers go; TESSERA_DOOR.",
    "memory": "bytes of each worker, as \"1GiB\".", "transport": "\"shm\", \"ucx\", or of GPUs \"nccl\".", "coordinator_flags": "more flags of the coordinator.", "worker_flags": "more flags of each worker.",
    "relabel": "the workers in the order that moves least.", "async_op": "taken and not needed: no call blocks.",
    "policy": "\"allow\", \"warn\" or \"forbid\".", "function": "what would be called.", "args": "its arguments.", "kwargs": "its arguments.",
    "path": "of a file on the workers' host: below a folder that the cluster serves, absolute or relative to it.",
    "session": "the session; the default is the last one that was opened.", "names": "of the tensors that are wanted.",
    "metadata": "a dict of strings.", "equal_nan": "two NaN count as equal.", "kth": "the place, or several.", "to_end": "what stands behind.",
    "to_begin": "what stands before.", "val": "a number, or several.", "vals": "numbers.", "v": "numbers, or where they go.", "ind": "places in row-major order.",
    "dimensions": "extents.", "sequences": "vectors of places, or masks.", "bitorder": "'big' where the first bit is the highest, or 'little'.",
    "return_index": "where each is first, too.", "return_inverse": "which one each element is, too.", "return_counts": "how often each is there, too.",
    "returned": "the sum of the weights, too.", "deg": "in degrees.", "dst": "a tensor, which is written.", "src": "what is written.", "where": "a mask, or True.",
    "wrap": "go on at the top.", "sparse": "with extent 1 in the other dims.", "m": "columns; as many as rows by default.", "ndim": "dims.", "ndmin": "dims, at least.",
    "keys": "vectors; the last one counts first.", "lower": "the lower triangle.", "trans": "0, 1 or 2: as it is, transposed, conjugated and transposed.",
    "c_and_lower": "what cho_factor gives.", "b": "a tensor.", "compute_uv": "False: the singular values alone.", "retstep": "the distance of two, too.",
    "order": "'C', or 'F' where the first dim runs fastest.", "end_values": "where a ramp ends.", "stat_length": "of how many elements, at each edge.", "files": "folders whose files the workers load and save.",
    "f": "a function of tensors.", "in_placements": "a list of placements for each tensor.", "out_placements": "the placements of the results.",
}

_MAPS = _MAPS_OF_ROWS | {"dropout", "isin", "masked_fill"}
_REDUCTIONS = frozenset("all any argmax argmin average count_nonzero logsumexp max mean median min nanargmax nanargmin nanmax nanmean nanmin nanprod nanstd nansum nanvar prod ptp std sum var vector_norm".split())
_SAME = frozenset("""argsort batch_norm cumprod cumsum cumulative_max cumulative_min cumulative_prod cumulative_sum fft fftn fftshift flip group_norm
ifft ifftn fft2 ifft2 fliplr flipud ifftshift index_add inv layer_norm log_softmax normalize permutation rms_norm roll scatter scatter_add shuffle softmax sort tril triu
cholesky matrix_power redistribute""".split())
_GIVES = {name: "a tensor of x's shape; of several operands of the shape that they have together by broadcasting." for name in _MAPS}
_GIVES |= {name: "a tensor of x's shape without the axes (with extent 1 there where keepdims is true); of all axes one number, 0-d." for name in _REDUCTIONS}
_GIVES |= {name: "a tensor of x's shape." for name in _SAME}
_CREATES = "a tensor of the shape, at once."
_GIVES |= {name: _CREATES for name in """bernoulli empty exponential full normal ones rand randint randn uniform zeros""".split()}
_GIVES |= {name: "a tensor like x." for name in "empty_like full_like ones_like zeros_like".split()}
_MATRIX = "(..., m, k) @ (..., k, n) gives (..., m, n); leading dims are broadcast."
_GIVES |= {name: _MATRIX for name in "matmul mm bmm addmm baddbmm".split()}


@functools.cache
def _parameters(signature: str) -> list[str]:
    inner = signature[signature.index("(") + 1:signature.rindex(")")]
    nests = "(" in inner or "[" in inner
    names, depth = [], 0
    for word in inner.split(","):
        if depth == 0:
            name = word.partition("=")[0].strip().lstrip("*")
            if name and name != "/":
                names.append(name)
        if nests:
            depth += word.count("(") + word.count("[") - word.count(")") - word.count("]")
    return names


def _errors(names: list[str]) -> list[str]:
    said = []
    if {"x", "x1", "operands", "arrays", "query"} & set(names):
        said.append("InvalidArgumentError (a TypeError, too): what should be a Tensor is none.")
    if {"axis", "axes", "axis1", "source"} & set(names):
        said.append("IndexOutOfRangeError: an axis that isn't there.")
    if {"x2", "operands", "arrays", "weight", "updates", "mask"} & set(names):
        said.append("InvalidArgumentError: shapes that don't fit each other; the message has both.")
    if {"dtype", "to", "kind"} & set(names):
        said.append("DTypeError: a dtype that is unknown, or that the function doesn't take.")
    if {"placements", "device_mesh"} & set(names):
        said.append("InvalidArgumentError: placements that don't fit the mesh or the shape.")
    if {"shape", "num", "n_rows", "stop"} & set(names):
        said.append("ResourceExhaustedError, when it is read or waited for: it doesn't fit the workers' memory; the message has the numbers.")
    return said or ["InvalidArgumentError: an argument that it doesn't take; the message says which."]


def _shown(example: str) -> str:
    expression, _, shown = example.partition(" => ")
    return "\n".join([f">>> {expression}", *([shown] if shown else [])])


def _is_signature(line: str, name: str) -> bool:
    return line.startswith(name + "(") and line.endswith(")")


def _completed(name: str, function, signature: str) -> str:
    """The whole text; the name is the public one, "linalg.inv"."""
    text = (function.__doc__ or "").strip()
    first, _, rest = text.partition("\n")
    body = (rest if _is_signature(first, function.__name__) else text).replace("\n    ", "\n").strip()
    names, lines = _parameters(signature), "\n" + body
    parts = [signature, body]
    own = _ARGUMENTS_OF_ROWS.get(name)
    told = _ARGUMENTS | own if own else _ARGUMENTS
    listed = [f"{one}: {told[one]}" for one in names if one in told and f"\n{one}: " not in lines]
    if listed:
        parts.append("\n".join(listed))
    short = name.rpartition(".")[2]
    if short in _GIVES:
        parts.append(f"Gives {_GIVES[short]}")
    if ">>>" not in body and name in EXAMPLES:
        parts.append(_shown(EXAMPLES[name]))
    if "Errors:" not in body:
        parts.append("Errors:\n" + "\n".join(_errors(names)))
    return "\n\n".join(part for part in parts if part)


def _signature(name: str, function) -> str:
    first = (function.__doc__ or "").strip().partition("\n")[0]
    taken = getattr(function, "__wrapped__", function).__code__.co_varnames
    if _is_signature(first, name) and all(one in taken for one in _parameters(first)):
        return first
    return name + _signature_of(getattr(function, "__wrapped__", function))


# inspect.signature says the same, at ten times the cost: it is most of what an import would take.
def _signature_of(function) -> str:
    """The parameters as they are written, without annotations; `unknown` takes what others call a parameter, and isn't said."""
    code, keywords = function.__code__, function.__kwdefaults__ or {}
    names, count, named = code.co_varnames, code.co_argcount, code.co_kwonlyargcount
    values = dict(zip(names[count - len(function.__defaults__ or ()):count], function.__defaults__ or ()))
    def written(name):
        known = values if name in values else keywords
        return f"{name}={known[name]!r}" if name in known else name
    parts = [written(name) for name in names[:count]]
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    others = list(names[count + named:])
    if code.co_flags & inspect.CO_VARARGS:
        parts.append("*" + others.pop(0))
    elif named:
        parts.append("*")
    parts += [written(name) for name in names[count:count + named]]
    if code.co_flags & inspect.CO_VARKEYWORDS and others[0] != "unknown":
        parts.append("**" + others[0])
    return f"({', '.join(parts)})"


def complete(functions: dict, prefix: str = "") -> None:
    """Gives each function the documentation that is enough to use it. A function with two names says the one that it was
    made with."""
    for name, function in functions.items():
        if function.__name__ == name and not hasattr(function, "_documented"):
            function.__doc__ = _completed(prefix + name, function, _signature(name, function))
            function._documented = True
