"""torchrun spawns a process for each rank. Here a program is one process, and workers belong to nobody's program: `tools/tessera up
--workers 4` starts a cluster that stays, and any process of the host connects to its address.

Page: PyTorch Distributed Overview
Section: Launcher
"""

import pathlib
import subprocess
import sys

import torch

import tessera as ts
import tessera.torch as tt

PROGRAM = '''
import sys, torch, tessera as ts, tessera.torch as tt
with ts.connect(sys.argv[1]) as session:
    mesh = session.init_device_mesh((session.worker_count,))
    print(tt.distribute_tensor(torch.ones(8), mesh, [ts.Shard(0)]).sum().item())
'''

with ts.local_cluster(workers=4, memory="64MiB") as cluster:
    command = [sys.executable, "-c", PROGRAM, cluster.address]
    programs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=pathlib.Path(__file__).parent) for _ in range(2)]
    assert [program.communicate(timeout=120)[0].strip() for program in programs] == ["8.0", "8.0"]
    with cluster.connect() as session:                      # and this one, at the same time
        assert tt.distribute_tensor(torch.ones(4), session.init_device_mesh((4,))).full_tensor().sum() == 4
