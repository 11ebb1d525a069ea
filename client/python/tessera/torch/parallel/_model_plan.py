"""tp_plan: the styles of a model that brings a plan of its own, as those of Hugging Face's transformers do."""

from __future__ import annotations

import fnmatch
import warnings

import torch

from ..._errors import InvalidArgumentError
from ..._placements import Replicate, Shard
from ._place import mesh_dim_of, place_parameter
from ._styles import ColwiseParallel, ParallelStyle, RowwiseParallel

# transformers.distributed.tensor_parallel's names. A fused weight is cut like any other one: its parts are global tensors.
_STYLES = {
    "colwise": ColwiseParallel,
    "packed_colwise": ColwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise": RowwiseParallel,
    "packed_rowwise": RowwiseParallel,
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}
# A parameter that is named itself, as experts in one tensor (experts, out, in), by the dim that is cut.
_PARAMETER_DIMS = {"colwise": -2, "packed_colwise": -2, "rowwise": -1, "packed_rowwise": -1, "grouped_gemm": 0}
# Hooks for ranks that hold local tensors. All tensors are global here, so there is nothing to add up or to gather.
_FOR_RANKS = {"all_reduce", "ep_dispatch_experts", "ep_router", "local_params", "mla_kv_a_proj", "moe_identity_expert", "moe_tp_experts", "replicate",
              "replicated_with_grad_allreduce", "sequence_parallel"}


class _CutParameters(ParallelStyle):
    """Cuts parameters of a module by name; what goes in and comes out stays as it is."""

    def __init__(self, dims: dict):
        self.dims = dims

    def _apply(self, module, device_mesh):
        dim = mesh_dim_of("tp_plan", device_mesh)
        for name, cut in self.dims.items():
            place_parameter("tp_plan", module, name, device_mesh, dim, Shard(cut))
        return module

    def __repr__(self):
        return f"cut({', '.join(f'{name}: Shard({cut})' for name, cut in self.dims.items())})"


def tp_plan(model: torch.nn.Module, plan: dict | None = None) -> dict:
    """{path: style} for parallelize_module, of a model's own plan (`model.tp_plan`, {path: name of a style}), as transformers' models have it.

    plan: entries that are added to the model's own or replace them. A path may have `*` for a part, and may name a parameter. Each style has
    transformers' name. InvalidArgumentError: the model has no plan and none is given, or a style isn't known.

    >>> parallelize_module(model, mesh["tp"], tp_plan(model))
    """
    own = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    names = {**own, **(plan or {})}
    if not names and plan is None:
        raise InvalidArgumentError(f"tp_plan: {type(model).__name__} has no plan for tensor parallelism; give {{path: style}}, as "
                                   "{'layers.*.q_proj': 'colwise'}")
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    styles, cuts, unused = {}, {}, []
    for path, name in names.items():
        if name in _FOR_RANKS:
            continue
        if name not in _STYLES and name not in _PARAMETER_DIMS:
            raise InvalidArgumentError(f"tp_plan: {path!r} has the style {name!r}; known are {', '.join(sorted({*_STYLES, *_PARAMETER_DIMS, *_FOR_RANKS}))}")
        found = [one for one in modules if _matches(one, path)]
        for one in found if name in _STYLES else ():
            if isinstance(modules[one], (torch.nn.Linear, torch.nn.Embedding)):
                styles[one] = _STYLES[name]()
            else:
                warnings.warn(f"tp_plan: {one!r} is {type(modules[one]).__name__}, which {name!r} doesn't cut; it is replicated", stacklevel=2)
        held = [one for one in parameters if _matches(one, path)] if name in _PARAMETER_DIMS else []
        for one in held:
            owner, _, own_name = one.rpartition(".")
            if parameters[one].ndim >= 2 or name == "grouped_gemm":
                cuts.setdefault(owner, {})[own_name] = _PARAMETER_DIMS[name]
        if not found and not held:
            unused.append(path)
    if unused:
        warnings.warn(f"tp_plan: nothing of {type(model).__name__} matches {', '.join(map(repr, unused))}", stacklevel=2)
    return {**styles, **{path: _CutParameters(dims) for path, dims in cuts.items()}}


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatch.fnmatchcase(a, b) for a, b in zip(parts, wanted))
