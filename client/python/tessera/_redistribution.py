"""Attributes of redistribute, as its callers may write where a tensor goes."""

from __future__ import annotations

import numpy as np

import _tessera
from ._catalog import OPS
from ._dtypes import code_of
from ._errors import ArgumentError, InvalidArgumentError
from ._mesh import DeviceMesh
from ._placements import Placement, checked, kept, listed, replicated
from ._session import check_cluster, session_of


def _kept_as(tensor, dtype: int) -> list:
    """The tensor's placements as another dtype can have them: pending terms can't be converted, and are reduced."""
    if dtype == tensor._dtype:
        return list(tensor._placements)
    return kept(tensor._placements)


def attributes_of(tensor, device_mesh, placements, dtype, relabel):
    """A list of placements is accepted first too."""
    op = "redistribute"
    if not isinstance(relabel, (bool, np.bool_)):
        raise ArgumentError(f"{op}: relabel is {relabel!r}, not a bool")
    if placements is None and device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        device_mesh, placements = None, device_mesh
    if placements is not None and not isinstance(placements, Placement):
        placements = listed(placements, op)
    attributes = {}     # those that are not as usual
    if dtype is not None:
        attributes["dtype"] = code_of(dtype, op)
    if relabel:
        attributes["relabel"] = True
    if device_mesh is None and placements is None and attributes:     # dtype or relabel alone
        attributes["placements"] = _kept_as(tensor, attributes.get("dtype", tensor._dtype))
        return attributes
    if device_mesh is None and placements is not None:
        wanted = checked(placements, op)
        if len(wanted) == tensor._mesh_ndim:     # without a mesh: the tensor's
            attributes["placements"] = wanted
            return attributes
    if device_mesh is None:
        mesh = DeviceMesh._wrap(session_of(tensor), tensor._mesh)
    elif isinstance(device_mesh, DeviceMesh):
        mesh = device_mesh
        check_cluster(op, mesh, session_of(tensor))
    else:
        raise InvalidArgumentError(f"{op}: device_mesh is {device_mesh!r}, not a DeviceMesh")
    if placements is None:
        if len(mesh._raw.shape) != tensor._mesh_ndim:
            placements = replicated(len(mesh._raw.shape))
        else:
            placements = list(tensor._placements)
        if device_mesh is None:
            placements = replicated(len(mesh._raw.shape))  # as DTensor: no placements means Replicate
    else:
        placements = mesh._placements(placements, op)
    attributes["mesh"], attributes["placements"] = mesh._raw, placements
    return attributes


def redistribute_all(tensors, device_mesh, placements, dtype, relabel) -> list:
    """Several tensors by one op. `placements`: one list for all, or a list of lists."""
    op = "redistribute"
    if not tensors:
        raise InvalidArgumentError(f"{op}: the list of tensors is empty")
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, _tessera.Tensor):
            raise ArgumentError(f"{op}: item {i} of the list is {type(tensor).__name__}, not a Tensor")
    if placements is None and device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
        device_mesh, placements = None, device_mesh
    each = [placements] * len(tensors)
    if isinstance(placements, (list, tuple)) and any(isinstance(one, (list, tuple)) for one in placements):
        each = list(placements)
        if len(each) != len(tensors):
            raise InvalidArgumentError(f"{op}: {len(each)} lists of placements for {len(tensors)} tensors")
    calls = []
    for i, (tensor, one) in enumerate(zip(tensors, each)):
        try:
            calls.append(attributes_of(tensor, device_mesh, one, dtype, relabel))
        except InvalidArgumentError as error:
            raise type(error)(f"{op}: operand {i}, {tensor._spec}: {str(error).removeprefix(op + ': ')}") from None
    attributes = {name: calls[0][name] for name in ("dtype", "relabel") if name in calls[0]}
    if device_mesh is not None:
        attributes["mesh"] = calls[0]["mesh"]
    placements = [one["placements"] for one in calls]
    if all(one == placements[0] for one in placements):
        attributes["placements"] = placements[0]
    else:
        attributes["placements_each"] = placements
    return _tessera.call_all(OPS[op], tuple(tensors), **attributes)
