"""nn.LayerNorm, nn.Dropout and RMSNorm on positions in shards.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: class torch.distributed.tensor.parallel.SequenceParallel(*, sequence_dim=1, use_local_output=False)
"""

import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import SequenceParallel, parallelize_module

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    tp_mesh = session.init_device_mesh((4,), mesh_dim_names=("tp",))

    x = torch.randn(2, 8, 16)
    for norm in (nn.LayerNorm(16), nn.RMSNorm(16)):
        expected = norm(x)
        sharded_mod = parallelize_module(nn.ModuleDict({"norm": norm}), tp_mesh, {"norm": SequenceParallel()})
        out = sharded_mod["norm"](x)
        assert out.placements == (ts.Shard(1),) and norm.weight.placements == (ts.Replicate(),)
        assert torch.allclose(out.full_tensor(), expected, atol=1e-6)
        # A tensor that is not sharded so is redistributed.
        assert sharded_mod["norm"](tt.distribute_tensor(x, tp_mesh, [ts.Shard(2)])).placements == (ts.Shard(1),)

    # nn.Dropout: random numbers are keyed by an element's place in the whole tensor, so every placement drops the same ones.
    dropout = parallelize_module(nn.Dropout(0.5), tp_mesh, SequenceParallel(sequence_dim=1))
    torch.manual_seed(0)
    cut = dropout(x).full_tensor()
    torch.manual_seed(0)
    assert torch.equal(cut, nn.Dropout(0.5)(tt.distribute_tensor(x, tp_mesh)).full_tensor())

    # Note: weights needn't be ones, nor be broadcast by hand: there is one of each, and it is replicated.
    norm = nn.LayerNorm(16)
    nn.init.normal_(norm.weight)
    expected = norm(x)
    assert torch.allclose(parallelize_module(norm, tp_mesh, SequenceParallel())(x).full_tensor(), expected, atol=1e-5)
