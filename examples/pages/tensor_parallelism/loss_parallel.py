"""Cross-entropy of scores whose classes are sharded.

Page: Tensor Parallelism - torch.distributed.tensor.parallel
Section: torch.distributed.tensor.parallel.loss_parallel()
"""

import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import loss_parallel

with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    device_mesh = session.init_device_mesh((4,))
    input = torch.randn(4, 16, requires_grad=True)          # noqa: A001 - the page's name
    dist_input = tt.distribute_tensor(input, device_mesh, placements=[ts.Shard(1)])
    target = torch.randint(16, (4,))
    dist_target = tt.distribute_tensor(target, device_mesh)
    with loss_parallel():
        with session.comm_debug() as forward:
            loss = F.cross_entropy(dist_input, dist_target, reduction="mean")
        with session.comm_debug() as backward:
            loss.backward()
    assert forward.collective_counts == {"reduce_scatter": 3, "all_gather": 3}      # three all-reduces
    assert sum(backward.bytes_received) == 0
    expected = F.cross_entropy(input, target)
    expected.backward()
    assert abs(loss.item() - expected.item()) < 1e-6 and loss.placements == (ts.Replicate(),)
    assert torch.allclose(dist_input.grad.full_tensor(), input.grad, atol=1e-6) and dist_input.grad.placements == (ts.Shard(1),)

    # weight; and label_smoothing, which torch's doesn't support
    weight = torch.rand(16)
    with loss_parallel():
        loss = F.cross_entropy(dist_input, dist_target, weight=tt.distribute_tensor(weight, device_mesh))
    assert abs(loss.item() - F.cross_entropy(input, target, weight=weight).item()) < 1e-6
