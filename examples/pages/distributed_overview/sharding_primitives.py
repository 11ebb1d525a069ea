"""DTensor and DeviceMesh: tensors in shards or replicated, on N dims.

Page: PyTorch Distributed Overview
Section: Sharding primitives
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    # DeviceMesh abstracts the accelerator device communicators into a multi-dimensional array.
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("replicate", "shard"))
    assert mesh.shape == (2, 2) and mesh["shard"].ndim == 1 and mesh[1].workers == (2, 3)

    # DTensor represents a tensor that is sharded and/or replicated, and communicates automatically to reshard as needed by operations.
    whole = torch.randn(4, 4)
    x = tt.distribute_tensor(whole, mesh, [ts.Replicate(), ts.Shard(0)])
    assert torch.equal(x.to_local((0, 1)), x.to_local((1, 1)))
    with session.comm_debug() as comm:
        y = torch.softmax(x, 0)                             # along the dim that is cut
    assert sum(comm.bytes_received) > 0 and torch.allclose(y.full_tensor(), torch.softmax(whole, 0), atol=1e-6)
