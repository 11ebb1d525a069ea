"""Whether a tool that chooses a device is to choose this one, and the warning where it takes the CPU."""

from __future__ import annotations

import warnings

import torch

from ... import _context


def has_session() -> bool:
    return bool(_context.open_sessions())


def warn_of_cpu(tool: str, remedy: str) -> None:
    """Says that a tool takes the CPU although the program has this device; ranks of torch.distributed have their own memory."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return
    warnings.warn(f"{tool} takes the CPU: {remedy}", stacklevel=3)
