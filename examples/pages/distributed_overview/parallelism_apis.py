"""The modules that compose with existing models: DDP, FSDP, tensor parallelism, pipelines.

Page: PyTorch Distributed Overview
Section: Parallelism APIs
"""

import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


with ts.local_cluster(workers=4, memory="64MiB") as cluster, cluster.connect() as session:
    line = session.init_device_mesh((4,), mesh_dim_names=("dp",))
    x, alone = torch.randn(8, 8), model()
    cases = {"DDP": tt.DistributedDataParallel(model(), line),
             "FSDP2": tt.fully_shard(model(), mesh=line),
             "TP": parallelize_module(model(), line, {"0": ColwiseParallel(), "2": RowwiseParallel()})}
    for name, module in cases.items():
        out = module(tt.distribute_tensor(x, line, [ts.Shard(0)]))
        assert torch.allclose(out.full_tensor(), alone(x), atol=1e-6), name

    stages_mesh = session.init_device_mesh((2, 2), mesh_dim_names=("pp", "dp"))
    whole = model()
    parts = [nn.Sequential(whole[0], whole[1]), whole[2]]
    stages = [tt.PipelineStage(tt.distribute_module(part, stages_mesh[k]), k, 2, group=stages_mesh["pp"]) for k, part in enumerate(parts)]
    losses = []
    out = tt.ScheduleGPipe(stages, 2, F.mse_loss).step(x, target=x, losses=losses)
    assert torch.allclose(out.full_tensor(), alone(x), atol=1e-6) and len(losses) == 2
