"""Where a new tensor goes, and tensors of one number."""

from __future__ import annotations

import builtins

import numpy as np

from ._catalog import OPS
from ._dtypes import check_number, code_of
from ._errors import InvalidArgumentError, named
from ._mesh import integers
from ._session import mesh_for


def place(op: str, device, device_mesh, placements):
    """The mesh, and placements or None for "auto"."""
    if device is not None and device_mesh is not None and device != device_mesh:
        raise InvalidArgumentError(f"{op}: give device or device_mesh, not both")
    chosen = device_mesh if device_mesh is not None else device
    device_type = chosen if isinstance(chosen, str) and chosen in ("cpu", "cuda") else None
    mesh = mesh_for(None if device_type else chosen, op)
    if device_type not in (None, mesh.device_type):
        raise InvalidArgumentError(f"{op}: device is {device_type!r}, the workers of {mesh} are {mesh.device_type}")
    if placements is None or (isinstance(placements, str) and placements == "auto"):
        return mesh, None
    return mesh, mesh._placements(placements, op)


def extents_of(op: str, shape) -> list[int]:
    extents = integers(shape, "shape", op)
    if builtins.any(n < 0 for n in extents):
        raise InvalidArgumentError(f"{op}: shape {tuple(extents)} has a negative extent")
    return extents


def create(op: str, shape, dtype, scalars, device, device_mesh, placements):
    mesh, placements = place(op, device, device_mesh, placements)
    return mesh._session._create(OPS[op], dtype=code_of(dtype, op), shape=shape, mesh=mesh._raw, placements=placements,
                                 scalars=scalars)


def filled(op: str, shape, number, dtype=None, device=None, device_mesh=None, placements=None):
    """A tensor of one number of Python's, by default of its kind's dtype."""
    if not isinstance(number, (bool, int, float, complex)):
        raise InvalidArgumentError(f"{op}: fill_value is {number!r}, not a number")
    if dtype is None:
        kinds = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
        dtype = next(wanted for kind, wanted in kinds.items() if isinstance(number, kind))
    check_number(op, "fill_value", number, dtype)
    with named(op):
        return create("full", extents_of(op, shape), dtype, [number], device, device_mesh, placements)
