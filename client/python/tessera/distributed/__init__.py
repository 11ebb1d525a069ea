"""Collectives on values by position: what torch.distributed's ranks do in N processes, from one program.

A LocalTensor has one value for each position of a mesh, on the worker of that position. The functions have torch's names,
arguments and results; each is a redistribution, so it moves the fewest bytes, and every position gets the same bits.

>>> import tessera.distributed as dist
>>> x = dist.LocalTensor([np.full(3, rank) for rank in range(4)], mesh)
>>> dist.all_reduce(x)
>>> x[2]
array([6., 6., 6.])

A group is a subset of the positions (`new_group([0, 2])`), or the lines along some mesh dims (`group="tp"`, `group=mesh["tp"]`):
then each line is a group of its own. Without `group` it is all positions.
"""

from ._collectives import (all_gather, all_gather_into_tensor, all_reduce, all_to_all, all_to_all_single, barrier, broadcast, gather,
                           reduce, reduce_scatter, reduce_scatter_tensor, scatter)
from ._groups import ProcessGroup, new_group
from ._local_tensor import LocalTensor
from ._reduce_op import ReduceOp
from ._work import Work

__all__ = ["LocalTensor", "ProcessGroup", "ReduceOp", "Work", "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all",
           "all_to_all_single", "barrier", "broadcast", "gather", "new_group", "reduce", "reduce_scatter", "reduce_scatter_tensor",
           "scatter"]

for _name in __all__:
    globals()[_name].__module__ = "tessera.distributed"
