"""The collectives of torch.distributed: among N processes, each a rank with a session, or on values by position of one program.

Of a rank: init_process_group, then torch's functions on Tensors of the rank's worker, or on NumPy arrays in its own memory.

>>> dist.init_process_group()                   # under tessera run or torchrun
>>> x = np.full(3, dist.get_rank())
>>> dist.all_reduce(x)                          # x is array([6, 6, 6]) at each of 4 ranks

Of one program: a LocalTensor has one value for each position of a mesh, on the worker of that position. Each function is a
redistribution, so it moves the fewest bytes, and every position gets the same bits.

>>> import tessera.distributed as dist
>>> x = dist.LocalTensor([np.full(3, rank) for rank in range(4)], mesh)
>>> dist.all_reduce(x)
>>> x[2]
array([6., 6., 6.])

A group is a subset of the positions, or of the ranks (`new_group([0, 2])`), or the lines along some mesh dims (`group="tp"`,
`group=mesh["tp"]`): then each line is a group of its own. Without `group` it is all of them.
"""

from ._collectives import (all_gather, all_gather_into_tensor, all_reduce, all_to_all, all_to_all_single, barrier, broadcast, gather,
                           reduce, reduce_scatter, reduce_scatter_tensor, scatter)
from ._groups import ProcessGroup
from ._local_tensor import LocalTensor
from ._rank_calls import (P2POp, RankWork, all_reduce_coalesced, batch_isend_irecv, irecv, isend, monitored_barrier, recv, send)
from ._rank_objects import (all_gather_object, broadcast_object_list, gather_object, recv_object_list, scatter_object_list,
                            send_object_list)
from ._reduce_op import ReduceOp
from ._work import Work
from ._world import (GroupMember, RankGroup, destroy_process_group, flight_record, get_backend, get_global_rank, get_group_rank, get_mesh,
                     get_process_group_ranks, get_rank, get_world_size, init_process_group, is_available, is_initialized,
                     new_group, new_subgroups, new_subgroups_by_enumeration)

__all__ = ["GroupMember", "LocalTensor", "P2POp", "ProcessGroup", "RankGroup", "RankWork", "ReduceOp", "Work", "all_gather",
           "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
           "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "destroy_process_group", "flight_record", "gather", "gather_object",
           "get_backend", "get_global_rank", "get_group_rank", "get_mesh", "get_process_group_ranks", "get_rank", "get_world_size",
           "init_process_group", "irecv", "is_available", "is_initialized", "isend", "monitored_barrier", "new_group", "new_subgroups",
           "new_subgroups_by_enumeration", "recv", "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
           "scatter_object_list", "send", "send_object_list"]

for _name in __all__:
    globals()[_name].__module__ = "tessera.distributed"
