"""Between this process and the mesh, and from placements to placements."""

from __future__ import annotations

import numpy as np
import torch

import _tessera
from .. import _context
from .._errors import InvalidArgumentError, ResourceExhaustedError
from .._mesh import DeviceMesh, current_mesh
from .._placements import REPLICATE, counted, fitting, kept, replicated
from .._session import distribute_array, session_of
from .._catalog import OPS
from ._gradients import watch
from ._cell import Lost, Unfilled
from ._conversions import become
from ._dtypes import CODES, TORCH, array_of, code, tensor_of
from ._tensor import Tensor, base_of, handle_of, wrap, wrap_unfilled

_call = _tessera.call
_MOVE = OPS["redistribute"]
_defaults: list = []        # (mesh, placements) of default_placement, the innermost last


# ---- where tensors go that say only `device="tessera"` ----------------------------------------------------

class default_placement:  # noqa: N801 - it is used as a function
    """Where torch's factories, `.to("tessera")` and loaded tensors put their values: on this mesh, with these placements
    (default: Replicate). Counts from the call on, or within a `with` block.

    >>> tt.default_placement(mesh)
    >>> with tt.default_placement(mesh, [ts.Shard(0), ts.Replicate()]):
    ...     batch = torch.randn(64, 32, device="tessera")

    Without one: the mesh of `with mesh:`, else the default mesh of the current session. A Shard of a dim that a tensor
    doesn't have is Replicate for it.
    """

    def __init__(self, device_mesh: DeviceMesh | None = None, placements=None):
        mesh = device_mesh if device_mesh is not None else default_mesh()
        if not isinstance(mesh, DeviceMesh):
            raise InvalidArgumentError(f"default_placement: device_mesh is {mesh!r}, not a DeviceMesh")
        placements = mesh._placed(placements, "default_placement")
        self._entry = (mesh, placements)
        _defaults.append(self._entry)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        _defaults.remove(self._entry)
        return False


def default_mesh() -> DeviceMesh:
    for mesh, _ in reversed(_defaults):
        if mesh._session._open:
            return mesh
    mesh = current_mesh()
    return mesh if mesh is not None else _context.current_session().default_mesh


def default_place(shape) -> tuple:
    """The mesh and the placements of a new tensor of that shape."""
    for mesh, placements in reversed(_defaults):
        if mesh._session._open:
            ndim = len(shape)
            return mesh, fitting(placements, ndim)
    mesh = default_mesh()
    return mesh, replicated(len(mesh._raw.shape))


def create(op: str, shape, dtype: torch.dtype | None, scalars, default: torch.dtype | None = None) -> Tensor:
    """A creation row of the catalog where new tensors go."""
    mesh, placements = default_place(shape)
    return wrap(mesh._session._create(OPS[op], dtype=code(dtype, default), shape=[int(n) for n in shape], mesh=mesh._raw,
                                      placements=placements, scalars=scalars))


# ---- up and down ----------------------------------------------------------------------------------------------

def upload(tensor: torch.Tensor, mesh: DeviceMesh, placements: list):
    """The handle of a CPU tensor's values: each worker takes its shards from this process."""
    if tensor.device.type == "meta":
        raise InvalidArgumentError(f"tessera: a meta tensor has no values to bring to {mesh}; use module.to_empty(device='tessera')")
    array = array_of(tensor if tensor.device.type == "cpu" else tensor.cpu())
    return distribute_array(mesh._session, array, mesh._raw, placements)


def replace(tensor: Tensor, source: torch.Tensor) -> None:
    """All of a tensor, which is no view, becomes a CPU tensor's values, in its own dtype and placements; a pending sum becomes
    replicated. Where memory is short the value of before is given up first."""
    base, cell = base_of(tensor), tensor._cell
    mesh, dtype = DeviceMesh._wrap(base._session, base._mesh), TORCH[base._dtype]
    placements = [REPLICATE if one.is_partial() and base._has_partial else one for one in base._placements]
    lost = Lost(base._session, base._mesh, placements, base._dtype, base.shape)
    del base
    source = source if source.dtype == dtype else source.to(dtype)
    try:
        handle = upload(source, mesh, placements)
    except ResourceExhaustedError:
        if cell.handle is None:
            raise
        cell.handle, cell.load = None, lost
        handle = upload(source, mesh, placements)
    cell.bind(handle)


def download(tensor: Tensor) -> torch.Tensor:
    """A CPU tensor of the values. Blocks."""
    return tensor_of(np.asarray(handle_of(tensor).full_tensor()))


def distribute_tensor(tensor, device_mesh: DeviceMesh | None = None, placements=None, *, src_data_rank=0) -> Tensor:
    """A torch tensor on the mesh: a leaf with the requires_grad of `tensor`.

    tensor: a CPU tensor, whose values are brought there; or one on tessera, which is redistributed. device_mesh: default
    default_placement's. placements: one per mesh dim, default Replicate. src_data_rank: taken as DTensor's callers give it.

    >>> w = tt.distribute_tensor(torch.randn(512, 64), mesh, [ts.Replicate(), ts.Shard(0)])
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"distribute_tensor: takes a torch tensor, not {type(tensor).__name__}")
    mesh = default_mesh() if device_mesh is None else device_mesh
    if not isinstance(mesh, DeviceMesh):
        raise InvalidArgumentError(f"distribute_tensor: device_mesh is {mesh!r}, not a DeviceMesh")
    placements = mesh._placed(placements, "distribute_tensor")
    if isinstance(tensor, Tensor):
        source = handle_of(tensor)
        handle = _call(_MOVE, (source,), placements=placements) if source._mesh.same(mesh._raw) else _call(
            _MOVE, (source,), mesh=mesh._raw, placements=placements)
    else:
        handle = upload(tensor, mesh, placements)
    out = wrap(handle)
    if tensor.requires_grad:
        out.requires_grad_()
        if tensor.is_leaf:
            watch(out)
    if isinstance(tensor, torch.nn.Parameter):
        out._is_param = True
    return out


def on_mesh(tensor: torch.Tensor, mesh: DeviceMesh, placements: list | None = None) -> Tensor:
    """A CPU tensor's values on the whole mesh, by default replicated. One on the device meta has none, and is zeros where it is read before
    module.to_empty(device="tessera") and the module's own initialization give it values."""
    placements = replicated(len(mesh._raw.shape)) if placements is None else placements
    if tensor.device.type != "meta":
        return wrap(upload(tensor.detach(), mesh, placements))
    return wrap_unfilled(mesh._session, mesh._raw, placements, code(tensor.dtype), tensor.shape)


def bring_parameter(parameter: torch.nn.Parameter, mesh: DeviceMesh, placements: list | None = None) -> torch.nn.Parameter:
    """Brings a CPU parameter and its gradient to the whole mesh. It stays the same object, for all that share it."""
    grad = parameter.grad
    become(parameter, on_mesh(parameter, mesh, placements))
    if grad is not None:
        parameter.grad = on_mesh(grad, mesh, placements)
    return parameter


def place(parameter: torch.nn.Parameter, mesh: DeviceMesh, placements: list) -> None:
    """Gives a parameter these placements on the whole mesh, wherever it is. It stays the same object."""
    if not isinstance(parameter, Tensor):
        bring_parameter(parameter, mesh, placements)
        return
    if isinstance(base_of(parameter), Unfilled):
        parameter.data = wrap_unfilled(mesh._session, mesh._raw, placements, base_of(parameter)._dtype, parameter.shape)
        return
    handle = handle_of(parameter)
    if not handle._mesh.same(mesh._raw):
        handle = _call(_MOVE, (handle,), mesh=mesh._raw, placements=placements)
    elif list(handle._placements) != placements:
        handle = _call(_MOVE, (handle,), placements=placements)
    if parameter._view is not None:
        parameter.data = wrap(handle)
    elif handle is not parameter._cell.handle:
        parameter._cell.bind(handle)


def bring_buffers(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Replicates the buffers of a module, and of all in it, that are not on tessera. One that has several names stays one."""
    brought: dict = {}
    for submodule in module.modules():
        for name, buffer in submodule._buffers.items():
            if buffer is not None and not isinstance(buffer, Tensor):
                if id(buffer) not in brought:
                    brought[id(buffer)] = buffer, on_mesh(buffer, mesh)
                submodule._buffers[name] = brought[id(buffer)][1]


# ---- redistribute -----------------------------------------------------------------------------------------------

class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, attributes, backward_dtype):
        source = handle_of(x)
        ctx.mesh, ctx.placements, ctx.dtype, ctx.backward_dtype = source._mesh, list(source._placements), source._dtype, backward_dtype
        return wrap(_call(_MOVE, (source,), **attributes))

    @staticmethod
    def backward(ctx, grad):
        h = handle_of(grad)
        if ctx.backward_dtype is not None and h._dtype != ctx.backward_dtype:
            h = _call(OPS["astype"], (h,), dtype=ctx.backward_dtype)
        if not h._mesh.same(ctx.mesh):
            h = _call(_MOVE, (h,), mesh=ctx.mesh, placements=kept(ctx.placements))
        else:
            # A pending sum's gradient is replicated, as each term gets it; the gradient of what was replicated may stay pending.
            wanted = [REPLICATE if one.is_partial() else own if one.is_replicate() and own.is_partial() else one
                      for one, own in zip(ctx.placements, h._placements)]
            if list(h._placements) != wanted:
                h = _call(_MOVE, (h,), placements=wanted)
        if h._dtype != ctx.dtype:
            h = _call(OPS["astype"], (h,), dtype=ctx.dtype)
        return wrap(h), None, None


def redistribute(x: Tensor, device_mesh=None, placements=None, *, async_op=False, forward_dtype=None, backward_dtype=None) -> Tensor:
    """See Tensor.redistribute."""
    if not isinstance(x, Tensor):
        raise InvalidArgumentError(f"redistribute: takes a tensor on tessera, not {type(x).__name__}; tt.distribute_tensor brings it there")
    if placements is None and device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        device_mesh, placements = None, device_mesh
    handle = handle_of(x)
    mesh = DeviceMesh._wrap(session_of(handle), handle._mesh) if device_mesh is None else device_mesh
    if not isinstance(mesh, DeviceMesh):
        raise InvalidArgumentError(f"redistribute: device_mesh is {mesh!r}, not a DeviceMesh")
    if placements is None and (forward_dtype is not None or device_mesh is None):
        placements = list(handle._placements) if len(mesh._raw.shape) == handle._mesh_ndim else replicated(len(mesh._raw.shape))
    else:
        placements = mesh._placed(placements, "redistribute")
    return _redistributed(x, mesh._raw, placements, forward_dtype, backward_dtype)


def _redistributed(x: Tensor, raw_mesh, placements: list, forward_dtype=None, backward_dtype=None) -> Tensor:
    handle = handle_of(x)
    ndim = x.ndim
    placements = counted(placements, ndim)
    attributes: dict = {"placements": placements}
    same_mesh = raw_mesh is None or handle._mesh.same(raw_mesh)
    if not same_mesh:
        attributes["mesh"] = raw_mesh
    if forward_dtype is not None and CODES.get(forward_dtype) != handle._dtype:
        attributes["dtype"] = code(forward_dtype)
    if same_mesh and "dtype" not in attributes and list(handle._placements) == placements:
        return x
    return _Redistribute.apply(x, attributes, None if backward_dtype is None else code(backward_dtype))


def from_handle(handle) -> Tensor:
    """A torch tensor of a Tensor of the client; it doesn't require grad. Nothing is copied, as a write makes another value."""
    if not isinstance(handle, _tessera.Tensor):
        raise InvalidArgumentError(f"from_handle: takes a tessera.Tensor, not {type(handle).__name__}")
    return wrap(handle._copy())


def to_handle(tensor: Tensor):
    """The client's Tensor of what a torch tensor is now; what is done to that later doesn't show in it."""
    if not isinstance(tensor, Tensor):
        raise InvalidArgumentError(f"to_handle: takes a tensor on tessera, not {type(tensor).__name__}")
    return handle_of(tensor)._copy()


class _FromLocal(torch.autograd.Function):
    """Each CPU tensor's gradient is what its position has of the tensor's; of a term of a sum it is the whole gradient."""

    @staticmethod
    def forward(ctx, handle, positions, *tensors):
        ctx.placements, ctx.positions = kept(handle._placements), positions
        return wrap(handle)

    @staticmethod
    def backward(ctx, grad):
        h = handle_of(grad)
        if list(h._placements) != ctx.placements:
            h = _call(_MOVE, (h,), placements=ctx.placements)
        return (None, None, *(tensor_of(np.asarray(h.to_local(one))) if wanted else None
                              for one, wanted in zip(ctx.positions, ctx.needs_input_grad[2:])))


def from_local(local_tensors, device_mesh: DeviceMesh | None = None, placements=None, *, run_check: bool = False, shape=None, stride=None) -> Tensor:
    """A tensor of the CPU tensors at each position: a dict by position, a nested list in mesh shape, or f(position).

    Those that require grad get theirs in backward, each its shard; one that stands at several positions gets the sum, as of
    ranks that have a copy each. run_check, stride: taken as DTensor's callers give them; shapes are always checked.

    >>> x = tt.from_local([torch.randn(2, 3) for _ in range(4)], mesh, [ts.Shard(0)])     # [8, 3] on four workers
    """
    mesh = default_mesh() if device_mesh is None else device_mesh
    if isinstance(local_tensors, torch.Tensor):
        raise InvalidArgumentError(f"from_local: one tensor, {list(local_tensors.shape)}; this process has all positions of {mesh}: give a list of their "
                                   "tensors, a dict by position or f(position), or the whole to tt.distribute_tensor")
    positions, tensors = [], []

    def array(one, position):
        if isinstance(one, torch.Tensor) and one.requires_grad and torch.is_grad_enabled():
            positions.append(position)
            tensors.append(one)
        return array_of(one) if isinstance(one, torch.Tensor) else one

    def arrays(one, position=()):
        if isinstance(one, dict):
            return {key: array(value, key) for key, value in one.items()}
        if isinstance(one, (list, tuple)):
            return [arrays(value, (*position, i)) for i, value in enumerate(one)]
        return (lambda position: array(one(position), position)) if callable(one) else array(one, position)

    handle = mesh._session.from_local(arrays(local_tensors), mesh, placements, shape=shape)
    if not tensors:
        return wrap(handle)
    if mesh._dims is not None:      # a position of the view, and the first one along the others
        own = [0] * len(mesh._raw.shape)
        positions = [tuple(one) if isinstance(one, tuple) else (one,) for one in positions]
        positions = [tuple({**dict(enumerate(own)), **dict(zip(mesh._dims, one))}.values()) for one in positions]
    return _FromLocal.apply(handle, positions, *tensors)


def distribute_module(module: torch.nn.Module, device_mesh: DeviceMesh | None = None, partition_fn=None, input_fn=None,
                      output_fn=None) -> torch.nn.Module:
    """Brings a module's parameters and buffers to the mesh, in place; returns the module.

    partition_fn(name, submodule, device_mesh) places parameters itself (with tt.distribute_tensor); what it leaves on the CPU
    is replicated. input_fn(module, inputs, device_mesh) and output_fn(module, outputs, device_mesh) run before and after
    forward. Parameters stay the objects that they are, as in module.to: for submodules that share them, and for an optimizer.
    """
    mesh = default_mesh() if device_mesh is None else device_mesh
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
    for parameter in module.parameters():
        if not isinstance(parameter, Tensor):
            bring_parameter(parameter, mesh)
    bring_buffers(module, mesh)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda mod, inputs: input_fn(mod, inputs, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda mod, inputs, outputs: output_fn(mod, outputs, mesh))
    return module


for _function in (default_placement, distribute_tensor, redistribute, from_handle, to_handle, from_local, distribute_module):
    _function.__module__ = "tessera.torch"
