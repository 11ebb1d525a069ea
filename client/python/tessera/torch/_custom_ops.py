"""Ops that libraries define (torch.library): their bodies run on global tensors, as ops of ATen that have rows.

A Python body, or a C++ kernel for all devices (CompositeExplicitAutograd), calls ops of ATen. The first time that the body has
operands of some shapes and dtypes, what it gives is compared with what the op's fake (register_fake, or a kernel for meta tensors) says of it.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree

from .._errors import InvalidArgumentError
from . import _table

MAX_CHECKED = 4096      # docs/limits.md: max_checked_custom_calls
_KEYS = ("PrivateUse1", "CompositeExplicitAutograd")
_OWN = frozenset(("aten", "prims", "prim"))
_OF_TORCH = frozenset(("quantized_decomposed",))     # whose fakes and bodies name other dtypes in places; no program can mend them


def kernel_of(func):
    """The function of an op of another library than ATen, or None where its namespace is torch's own or torch takes it apart."""
    if func.namespace in _OWN:
        return None
    if _key_of(func) is not None:
        if func.namespace in _OF_TORCH:
            key = _key_of(func)
            return lambda *args, **kwargs: func._op_dk(key, *args, **kwargs)
        return _checked(func)
    name = func.name()
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return None
    where = [one for one in ("CPU", "CUDA") if torch._C._dispatch_has_kernel_for_dispatch_key(name, one)]
    raise NotImplementedError(
        f"{name}: has a kernel for {' and '.join(where) or 'no device'}, and none that tessera can run; write one of ops of torch, "
        f"@torch.library.register_kernel({name!r}, \"tessera\"), or have the kernel run on each shard as a CPU tensor, in this process: "
        f"tt.local_map(torch.ops.{func}, out_placements)(x)")


def _key_of(func):
    """Under which key the op has a kernel; one for tessera, which may be registered at any time, comes before one for all devices."""
    return next((getattr(torch._C.DispatchKey, one) for one in _KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), one)), None)


def _checked(func):
    """Runs the op's kernel, and compares what it gives with what its fake says."""
    seen: set = set()

    def run(*args, **kwargs):
        flat, tree = _pytree.tree_flatten((args, kwargs))
        call = (tree, *[(one.shape, one.dtype) if isinstance(one, torch.Tensor) else (type(one), repr(one)) for one in flat])
        said = None
        if hash(call) not in seen:
            said = _said(func, flat, tree)
            if len(seen) < MAX_CHECKED:
                seen.add(hash(call))
        out = func._op_dk(_key_of(func), *args, **kwargs)
        if said is not None:
            _compare(func, out, said)
        return out
    return run


def _said(func, flat, tree):
    """The fake's results for meta tensors: shapes and dtypes. None: there is none, or it needs values to say it."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "Meta"):
        return None
    args, kwargs = _pytree.tree_unflatten([
        torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta") if isinstance(one, torch.Tensor) else
        torch.device("meta") if isinstance(one, torch.device) else one for one in flat], tree)
    try:
        return _pytree.tree_map(_shown, func(*args, **kwargs))
    except Exception:       # the fake's own; eager programs on other devices never run it
        return None


def _shown(value):
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None


def _compare(func, out, said) -> None:
    given = _pytree.tree_map(_shown, out)
    if given == said:
        return
    mine, fakes = (_pytree.tree_leaves(one, is_leaf=lambda x: isinstance(x, tuple) and len(x) == 2 and isinstance(x[1], torch.dtype))
                   for one in (given, said))
    for i, (one, fake) in enumerate(zip(mine, fakes)):
        if one != fake:
            which = f" for result {i}" if len(mine) > 1 else ""
            raise InvalidArgumentError(f"{func.name()}: its body gives {_text(one)}{which}, and its fake says {_text(fake)}; they have to be the same")
    raise InvalidArgumentError(f"{func.name()}: its body gives {len(mine)} results, and its fake says {len(fakes)}")


def _text(shown) -> str:
    return "no tensor" if shown is None else f"{str(shown[1]).removeprefix('torch.')}{list(shown[0])}"


_table.set_kernel_of(kernel_of)
