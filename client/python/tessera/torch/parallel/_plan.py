"""parallelize_module: which submodules get which style."""

from __future__ import annotations

import fnmatch
import warnings

import torch

from ..._errors import FailedPreconditionError, InvalidArgumentError
from ..._mesh import current_mesh
from ._place import bring_rest, mesh_dim_of
from ._styles import ParallelStyle


def parallelize_module(module: torch.nn.Module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0) -> torch.nn.Module:
    """Applies tensor-parallel styles to a module, in place; returns the module.

    device_mesh: a mesh of one dim, as mesh["tp"]; default that of `with mesh:`. parallelize_plan: a style for the module
    itself, or {path: style}; each part of a path may be a pattern of fnmatch ("layers.*.attention.w[qkv]"). A path that no
    submodule has is a warning; no plan at all too. What no style names is replicated. src_data_rank: taken as torch's callers
    give it.

    >>> parallelize_module(model, mesh["tp"], {"embed": RowwiseParallel(), "layers.*.w1": ColwiseParallel()})
    """
    if device_mesh is None:
        device_mesh = current_mesh()
        if device_mesh is None:
            raise FailedPreconditionError("parallelize_module: give device_mesh, or call it within `with mesh:`")
    mesh_dim_of("parallelize_module", device_mesh)
    if parallelize_plan is None:
        warnings.warn("parallelize_module: no parallelize_plan is given, and nothing is parallelized", stacklevel=2)
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan._apply(module, device_mesh)
    elif isinstance(parallelize_plan, dict):
        for path, style in parallelize_plan.items():
            if not isinstance(style, ParallelStyle):
                raise InvalidArgumentError(f"parallelize_module: the plan's entry for {path!r} is {style!r}, not a ParallelStyle")
            found = _matching(module, path.split(".")) if path else [module]
            if not found:
                warnings.warn(f"parallelize_module: no submodule of {type(module).__name__} matches {path!r}; "
                              f"its children are {[name for name, _ in module.named_children()]}", stacklevel=2)
            for submodule in found:
                style._apply(submodule, device_mesh)
    else:
        raise InvalidArgumentError(f"parallelize_module: parallelize_plan is {type(parallelize_plan).__name__}, "
                                   "not None, a ParallelStyle or a dict of them by path")
    bring_rest(module, device_mesh)
    return module


def _matching(module: torch.nn.Module, parts: list[str]) -> list[torch.nn.Module]:
    children = [child for name, child in module.named_children() if fnmatch.fnmatchcase(name, parts[0])]
    if len(parts) == 1:
        return children
    return [one for child in children for one in _matching(child, parts[1:])]
