"""The five questions, answered by what runs.

Page: What is torch.distributed.tensor ?
Section: People Also Ask (FAQ)
"""

import torch

import tessera as ts
import tessera.torch as tt

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    mesh = session.init_device_mesh((4,))

    # 1. What is a Distributed Tensor in PyTorch? A global tensor whose shards lie on several workers.
    x = tt.distribute_tensor(torch.arange(8.0), mesh, [ts.Shard(0)])
    assert x.shape == (8,) and [x.box((i,)) for i in range(4)] == [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 8)]]

    # 2. How is torch.distributed.tensor different from DDP? DDP replicates the model and cuts the batch; a tensor may be cut itself.
    ddp = tt.DistributedDataParallel(torch.nn.Linear(8, 8), mesh)
    cut = tt.distribute_tensor(torch.randn(8, 8), mesh, [ts.Shard(0)])
    assert ddp.module.weight.to_local((0,)).shape == (8, 8) and cut.to_local((0,)).shape == (2, 8)

    # 3. Can I use Distributed Tensors with FSDP? FSDP's parameters are such, on one dim of a mesh of two with tensor parallelism.
    grid = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    layer = tt.parallel.parallelize_module(torch.nn.Linear(8, 8), grid["tp"], tt.parallel.ColwiseParallel())
    tt.fully_shard(layer, mesh=grid["dp"])
    assert layer.weight.to_local((0, 0)).numel() == 16

    # 4. What backends support Distributed Tensors? Workers read each other's memory within a host, and exchange messages beyond it;
    # nothing in the program says which.
    assert len({worker["host"] for worker in session.status()["workers"]}) == 1

    # 5. How do I convert a sharded tensor back to normal? full_tensor(), or to_local() of a position.
    assert torch.equal(x.full_tensor(), torch.arange(8.0)) and torch.equal(x.to_local((1,)), torch.tensor([2.0, 3.0]))
