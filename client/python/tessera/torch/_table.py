"""The table of ATen ops: which function runs an overload, and what coverage() says of it.

An overload has a row by `@row(...)`, or is made from one that has: `add_` from `add`, `add.out` from `add`. Others are taken
apart by torch's own decompositions, as long as these lead to rows. What is left raises NotImplementedError with its name and
overload: nothing is computed on the CPU in silence.
"""

from __future__ import annotations

import torch

from .._recorded import Kinds, recorded
from . import _tensor
from ._tensor import Tensor, handle_of, rebind, wrap

aten = torch.ops.aten
TABLE: dict = {}
KINDS: dict = {}        # of each overload how it is done, for coverage()
ONE_CALLS: dict = {}    # of overloads that are one call of the catalog: which (_one_call.py)
WHERE_TORCH_HAS_NONE: dict = {}     # what older versions of torch don't take apart


class _Kinds(Kinds):
    tensor = Tensor
    shares_handles = True       # a cell of its own
    values = (torch.dtype, torch.device, torch.layout, torch.memory_format)

    def handle_of(self, tensor):
        return handle_of(tensor)

    def wrap(self, handle):
        return wrap(handle)

    def identity(self, tensor) -> int:
        return id(tensor._cell)

    def note(self, tensor):
        return tensor.requires_grad

    def settings(self):
        return torch.get_default_dtype(), torch.get_float32_matmul_precision()

    def mesh_of(self, kwargs: dict):
        return None

    def is_result(self, tensor) -> bool:
        """Views, tensors whose values come later, and those with notes of rows have more to them."""
        cell = tensor._cell
        return tensor._view is None and cell.handle is not None and cell.eps is None and cell.row_sum is None


_KINDS = _Kinds()


def overload(name: str):
    """`add.Tensor` as torch.ops.aten.add.Tensor; None where this torch has none."""
    base, _, which = name.partition(".")
    return getattr(getattr(aten, base, None), which or "default", None)


def row(*names: str, how: str = "catalog", one_call=None):
    """Gives ATen overloads their function. how: catalog, composed (of several rows of the catalog, for now), view, or
    client (what needs no op). A composed one asks for its ops as one from the second call of a kind on. one_call: the call of
    the catalog that the function mostly is, which the compiled device makes by itself then."""
    def register(function):
        made = recorded(function, _KINDS) if how == "composed" else function
        for name in names:
            found = overload(name)
            if found is not None:
                put(found, made, how, one_call)
        return function
    return register


def row_where_torch_has_none(name: str, function) -> None:
    """For an overload that later versions of torch take apart by themselves, as they do it there."""
    WHERE_TORCH_HAS_NONE[overload(name)] = function


def put(func, function, how: str, one_call=None) -> None:
    """Into the table; and to the overload itself, whose hash costs a call each time that it is looked up."""
    TABLE[func], KINDS[func] = function, how
    if one_call is None:
        ONE_CALLS.pop(func, None)
    else:
        ONE_CALLS[func] = one_call
    func.tessera_row = function


def run(name: str):
    """The function of an overload that has a row."""
    return TABLE[overload(name)]


def in_place(function, name: str):
    """x op= ... of a function that gives x op ...."""
    def write(self, *args, **kwargs):
        return rebind(name, self, handle_of(function(self, *args, **kwargs)))
    return write


def _reshaped_in_place(function, name: str):
    """x.squeeze_() and its like: x becomes the view."""
    def write(self, *args, **kwargs):
        self.data = function(self, *args, **kwargs)
        return self
    return write


def _into(function, name: str, base=None):
    """op(..., out=x) of a function; a factory makes it on x's device, in its dtype."""
    is_factory = base is not None and any(one.name == "device" for one in base._schema.arguments)

    def write(*args, out, **kwargs):
        if is_factory:
            kwargs = {**kwargs, "device": out.device, "dtype": out.dtype}
        result = function(*args, **kwargs)
        if tuple(out.shape) != tuple(result.shape):
            if out.numel() != 0:
                raise NotImplementedError(f"{name}: out= is {out!r}, and the result is {result!r}; give a tensor of its shape, "
                                          "or an empty one")
            run("resize_.default")(out, result.shape)
        return rebind(name, out, handle_of(result))
    return write


def _base_of(func):
    """The overload without its effect on an operand, and how it is made from that."""
    name, which = func._schema.name.split("::")[1], func._overloadname
    if name.endswith("_") and not name.endswith("__"):
        found = overload(f"{name[:-1]}.{which}")
        if found is not None and _is_known(found):
            return found, _reshaped_in_place if KINDS.get(found) == "view" else in_place
    elif which == "out" or which.endswith("_out"):
        for one in [which[:-4], f"dim_{which[:-4]}"] if which != "out" else ["default", "Tensor", "self"]:
            found = overload(f"{name}.{one}")
            if found is not None and _is_known(found):
                return found, _into
    return None, None


def _is_known(func) -> bool:
    return func in TABLE or func in _decompositions()


def missing(func):
    """The function of an overload without a row of its own."""
    custom = kernel_of(func)
    base, make = (None, None) if func.namespace != "aten" else _base_of(func)
    one_call = ONE_CALLS.get(base) if make is in_place else None
    if custom is not None:
        found, how = custom, "by its own kernel"
    elif base is not None:
        function = TABLE.get(base) or missing(base)
        found = _into(function, str(func), base) if make is _into else make(function, str(func))
        how = f"from {base}"
    elif torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        found, how = func.decompose, "decomposed by torch"      # as where a graph is recorded; inference_mode brings these whole
    elif func in _decompositions() and not any(one.is_out for one in func._schema.arguments):
        found, how = _taken_apart(func, _decompositions()[func]), "decomposed by torch"
    elif func in WHERE_TORCH_HAS_NONE:
        found, how = WHERE_TORCH_HAS_NONE[func], "composed"
    else:
        raise NotImplementedError(f"{func}: has no row in Tessera (tt.coverage() lists those that have); "
                                  "x.cpu() brings the tensor here, if that is what you want")
    put(func, found, how, one_call)
    return found


def kernel_of(func):      # replaced by _custom_ops
    return None


def set_kernel_of(function) -> None:
    global kernel_of
    kernel_of = function


def _taken_apart(func, decomposition):
    """A decomposition; where it ends in an op without a row, the error is of the op that was called."""
    def run_(*args, **kwargs):
        try:
            out = decomposition(*args, **kwargs)
            if out is NotImplemented:
                raise NotImplementedError(f"{func}: has no row in Tessera, and torch takes it apart for other extents alone")
            return out
        except NotImplementedError as error:
            part = str(error).split(":")[0]
            if part == str(func) or not part.startswith(("prims.", "aten.")):
                raise
            raise NotImplementedError(f"{func}: has no row in Tessera, nor has {part}, which torch makes it of") from None
    return run_


def apart(name: str):
    """How torch takes an overload apart."""
    return _decompositions()[overload(name)]


def _decompositions() -> dict:
    from torch._decomp import decomposition_table
    return decomposition_table


def coverage(file=None) -> None:
    """Prints the ATen overloads that have a row, by how they are done; others raise NotImplementedError, but for those that
    torch takes apart into these."""
    groups: dict = {}
    for func, how in KINDS.items():
        groups.setdefault(how, []).append(str(func).removeprefix("aten."))
    for how in sorted(groups):
        print(f"{how} ({len(groups[how])}):", file=file)
        line = " "
        for name in sorted(groups[how]):
            if len(line) + len(name) > 118:
                print(line, file=file)
                line = " "
            line += " " + name
        print(line, file=file)


coverage.__module__ = "tessera.torch"
_tensor.set_missing(missing)
__all__ = ["TABLE", "Tensor", "aten", "coverage", "in_place", "overload", "row", "run"]
