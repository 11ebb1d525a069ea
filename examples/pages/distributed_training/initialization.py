"""init_process_group, is_initialized, get_rank, get_world_size: a program connects to a cluster and is no rank of it.

Page: Distributed Training
Section: Initialization
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster:
    # init_process_group(backend, init_method=...): the address says where, and the cluster how its workers reach each other.
    session = ts.connect(cluster.address, timeout=30)
    # is_initialized()
    assert "closed" not in repr(session)
    # get_world_size()
    assert session.worker_count == 4
    # get_rank(): positions of a mesh have a number, as a process would have; a program sees all of them.
    mesh = session.init_device_mesh((2, 2))
    x = tt.distribute_tensor(torch.arange(4.0), mesh, [ts.Shard(0), ts.Replicate()])
    assert [x.to_local(position).tolist() for position in mesh.positions()] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    # destroy_process_group()
    session.close()
    assert "closed" in repr(session)
