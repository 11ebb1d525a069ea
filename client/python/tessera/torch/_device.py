"""The device `tessera` as torch knows it: its name, its module torch.tessera, and the state of its random numbers.

There is one device index. Random numbers are keyed by (seed, number of the call, global index of the element), so the state
of a generator is the seed and the number of the next call, and the server has none.
"""

from __future__ import annotations

import types

import torch
from .. import _context

from . import _library  # noqa: F401 - the compiled part comes first
from . import _memory, _recorder

NAME = "tessera"
torch.utils.rename_privateuse1_backend(NAME)
DEVICE = torch.device(NAME, 0)
_SEED = 67280421310721      # torch's default
_MASK = 2**63 - 1


class _Switch:
    """`with torch.tessera.device(0)`: there is only one, and nothing to switch."""

    def __init__(self, device):
        self.idx = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


class _Stream:
    """A stream for code that has several; the device orders all by itself."""

    def __init__(self, *args, **options):
        self.device = DEVICE

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def synchronize(self):
        synchronize()

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        return event


def synchronize(device=None) -> None:
    """Waits until all that was asked of the open sessions has run."""
    for session in _context.open_sessions():
        session.sync()


class DeviceModule:
    """torch.tessera."""

    _initialized = True         # without it checkpoint does not restore the random state, silently
    device = _Switch
    Stream = _Stream
    synchronize = staticmethod(synchronize)

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def is_bf16_supported() -> bool:
        return True

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def _lazy_init() -> None:
        pass

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def set_device(device) -> None:
        pass

    @staticmethod
    def get_device_name(device=None) -> str:
        return NAME

    @staticmethod
    def get_device_capability(device=None) -> tuple[int, int]:
        return (0, 0)       # of CUDA's kind there is none

    @staticmethod
    def get_device_properties(device=None) -> types.SimpleNamespace:
        """name, total_memory (bytes of the worker with the least free), multi_processor_count (workers), major, minor."""
        workers = {(session.address, one["index"]) for session in _context.open_sessions() for one in session.status()["workers"]}
        memory = _memory.get_memory_info()[1] if workers else 0
        return types.SimpleNamespace(name=NAME, total_memory=memory, multi_processor_count=len(workers), major=0, minor=0)

    @staticmethod
    def current_stream(device=None) -> _Stream:
        return _Stream()

    default_stream = current_stream

    @staticmethod
    def stream(stream) -> _Stream:
        return _Stream()

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @staticmethod
    def manual_seed(seed: int) -> None:
        default_generator.manual_seed(int(seed) & _MASK)

    manual_seed_all = manual_seed

    @staticmethod
    def seed() -> int:
        return default_generator.seed()

    seed_all = seed

    @staticmethod
    def initial_seed() -> int:
        return default_generator.initial_seed()

    @staticmethod
    def get_rng_state(device=None) -> torch.Tensor:
        """The seed and the number of the next random call, as 16 bytes."""
        return default_generator.get_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device=None) -> None:
        default_generator.set_state(state)

    @classmethod
    def get_rng_state_all(cls) -> list[torch.Tensor]:
        return [cls.get_rng_state()]

    @classmethod
    def set_rng_state_all(cls, states) -> None:
        cls.set_rng_state(states[0])


_memory.install(DeviceModule)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
torch._register_device_module(NAME, DeviceModule)
default_generator = torch.Generator(DEVICE)
default_generator.manual_seed(_SEED)
# A hook of backward is Python that uses the caller's sessions and random state: it runs on the caller's thread.
torch.autograd.set_multithreading_enabled(False)
# The fast path of attention in eval mode is an op of its own, for tensors with an address.
torch.backends.mha.set_fastpath_enabled(False)


def next_call(generator: torch.Generator | None = None) -> list[int]:
    """[seed, number] of the next random call of a generator, by default torch's."""
    if generator is not None and generator.device.type == "cpu":       # its next number is the seed of one call
        return [int(torch.randint(_MASK, (), generator=generator)), 0]
    state = default_generator if generator is None else generator
    number = state.get_offset()
    state.set_offset(number + 1)
    seed = state.initial_seed() & _MASK
    if _recorder.current is not None and (found := _recorder.recorder()) is not None:
        found.next_call(state, seed, number)
    return [seed, number]
