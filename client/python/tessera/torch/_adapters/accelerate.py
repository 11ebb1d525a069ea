"""Hugging Face's accelerate: PartialState().device, and what Accelerator.prepare brings there.

accelerate has no registration of devices but the variable ACCELERATE_TORCH_DEVICE, which overrides Accelerator(cpu=True) and is handed
on to processes that have no such device; so the property that chooses is replaced.
"""

from __future__ import annotations

from .._device import DEVICE
from ._choice import has_session, warn_of_cpu


def install(module) -> None:
    """module: accelerate.state"""
    chosen_by_accelerate = module.PartialState.default_device.fget

    def default_device(state):
        if has_session():
            return DEVICE
        device = chosen_by_accelerate(state)
        if device.type == "cpu":
            warn_of_cpu("accelerate", "no session is open; connect with ts.connect(address) or ts.local_cluster() before the Accelerator is made")
        return device

    module.PartialState.default_device = property(default_device, doc=module.PartialState.default_device.__doc__)
    state = module.PartialState._shared_state
    if has_session() and state and not state.get("_cpu") and getattr(state.get("device"), "type", "") == "cpu":
        warn_of_cpu("accelerate", "its Accelerator was made before tessera.torch was imported; import tessera.torch and connect first, or "
                    "call accelerate.state.AcceleratorState._reset_state(True)")
