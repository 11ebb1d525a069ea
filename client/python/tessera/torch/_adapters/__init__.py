"""Others' programs that know no device but those of a list, or expect a process for each: trainers, and parts of torch.distributed.

accelerate, transformers and Lightning have lists of the devices that they know, and take the CPU for any other one. With an open session
they choose this device: each is told when it is imported, or now where it was imported before. Without an open session they choose as
ever, and a warning says that it is the CPU.
"""

from __future__ import annotations

from . import _imports, accelerate, checkpoint, lightning, torchvision, transformers


def install() -> None:
    _imports.when_imported("accelerate.state", accelerate.install)
    _imports.when_imported("transformers.training_args", transformers.install_training_arguments)
    _imports.when_imported("transformers.modeling_utils", transformers.install_models)
    _imports.when_imported("transformers.generation.utils", transformers.install_generation)
    _imports.when_imported("torchvision.ops.roi_align", torchvision.install)
    _imports.when_imported("torch.distributed.checkpoint._state_dict_stager", checkpoint.install_stager)
    _imports.when_imported("torch.distributed.checkpoint.state_dict", checkpoint.install_state_dict)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        _imports.when_imported(f"{package}.trainer.connectors.accelerator_connector", lightning.install_trainer)
    for package in ("lightning.fabric", "lightning_fabric"):
        _imports.when_imported(f"{package}.connector", lightning.install_fabric)
