"""Tensor parallelism by styles: torch.distributed.tensor.parallel with torch's names and signatures.

>>> from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
>>> model = parallelize_module(model, mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})

A style places a module's parameters and redistributes what goes in and comes out. One process sees all tensors whole: where
torch gives a rank its local part (use_local_output=True), the same global tensor is given here, with the same placements.
"""

from ._experts import ExpertParallel, MixtureOfExperts
from ._loss import loss_parallel
from ._model_plan import tp_plan
from ._plan import parallelize_module
from ._styles import (ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput,
                      RowwiseParallel, SequenceParallel)

__all__ = ["ColwiseParallel", "ExpertParallel", "MixtureOfExperts", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput",
           "RowwiseParallel", "SequenceParallel", "loss_parallel", "parallelize_module", "tp_plan"]
for _name in __all__:
    globals()[_name].__module__ = "tessera.torch.parallel"
