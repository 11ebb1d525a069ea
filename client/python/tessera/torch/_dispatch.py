"""Which ops go from torch's dispatcher to their rows at once (dispatch.h)."""

from __future__ import annotations

from . import _tensor
from ._library import dispatch
from ._table import ONE_CALLS, TABLE, missing, overload
from ._tensor import REFUSALS, rebind


# The ops in place of loops and backward, which are made from the rows without; others of that kind go torch's way.
_IN_PLACE = ("add_.Tensor", "add_.Scalar", "sub_.Tensor", "mul_.Tensor", "mul_.Scalar", "div_.Tensor", "div_.Scalar")


def install() -> None:
    """All that have a row by now; of those that are one call of the catalog the device is told which. Where a row refuses, the same is asked as in __torch_dispatch__."""
    for name in _IN_PLACE:
        missing(overload(name))
    ops = [(func._schema.name.removeprefix("aten::"), func._schema.overload_name, func, ONE_CALLS.get(func))
           for func in TABLE if func.namespace == "aten"]
    dispatch(lambda *given: _tensor.again(*given), REFUSALS, rebind, ops)
