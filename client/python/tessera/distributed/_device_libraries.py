"""Libraries by which the GPUs of ranks move and reduce tensors themselves: NCCL, as the torch of this Python has it."""

from __future__ import annotations

import datetime
import os

# The order in which NCCL adds depends on the algorithm that it takes. These leave out those whose sums differ from run to run, and let an error
# be told instead of ending the process. A program may say otherwise in its environment.
NCCL_ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "^NVLS,NVLSTree,CollnetDirect,CollnetChain",
                    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


class Nccl:
    @staticmethod
    def name_of(device) -> str:
        """A name that no other GPU has; "" where this torch has no NCCL."""
        import torch
        import torch.distributed
        if not torch.distributed.is_nccl_available():
            return ""
        return f"nccl {'.'.join(map(str, torch.cuda.nccl.version()))} {torch.cuda.get_device_properties(device).uuid}"

    @staticmethod
    def make(store, rank: int, size: int, timeout: datetime.timedelta):
        from torch.distributed import ProcessGroupNCCL
        for name, text in NCCL_ENVIRONMENT.items():
            os.environ.setdefault(name, text)
        options = ProcessGroupNCCL.Options()
        options._timeout = timeout
        return ProcessGroupNCCL(store, rank, size, options)


# By torch's name of a kind of devices. `name_of(device)` and `make(store, rank, size, timeout)` are as Nccl's.
LIBRARIES = {"cuda": Nccl}
