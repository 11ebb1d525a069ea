"""NumPy's other functions on tensors: np.sort(x) is ts.sort(x). What there is no function for works on downloaded values, as
NumPy has it, and says so."""

from __future__ import annotations

import contextvars
import inspect
import sys
import warnings

import numpy as np

import _tessera
from ._namespace import public


class ImplicitDownloadWarning(UserWarning):
    """A function of NumPy's downloads a tensor: there is none for tensors that takes these arguments."""


ImplicitDownloadWarning.__module__ = "tessera"

# The function of NumPy's that runs on what it downloads.
_running = contextvars.ContextVar("running", default=None)


def _function_of(function):
    """Tessera's function of that name; None where there is none."""
    own = public()
    place = {"numpy": own, "numpy.linalg": own.linalg, "numpy.fft": own.fft}.get(function.__module__)
    found = None if place is None else vars(place).get(function.__name__)
    return found if inspect.isroutine(found) else None


def _takes(function, args, kwargs) -> bool:
    """Whether the function has such a call, or NumPy's of its name has and means the same."""
    numpy = getattr(function, "numpy", None)
    if numpy is None:
        try:
            inspect.signature(function).bind(*args, **kwargs)
        except TypeError:
            return False
        return True
    return numpy.least <= len(args) and numpy.fits(args, kwargs) or numpy.plan(args, kwargs) is not None


def array_function(tensor, function, types, args, kwargs):
    """Tensor.__array_function__"""
    if not all(issubclass(one, (_tessera.Tensor, np.ndarray)) for one in types):
        return NotImplemented
    own = _function_of(function)
    if own is not None and isinstance(next(iter(args), None), (_tessera.Tensor, list, tuple, str)) and _takes(own, args, kwargs):
        return own(*args, **kwargs)
    token = _running.set(function)
    try:
        return function._implementation(*args, **kwargs)
    finally:
        _running.reset(token)


def tell_download(tensor) -> None:
    """Warns where a function of NumPy's is what downloads."""
    function = _running.get()
    if function is None:
        return
    level, frame = 1, sys._getframe()
    while frame is not None and (frame.f_globals.get("__package__") or "").partition(".")[0] in ("numpy", __package__):
        level, frame = level + 1, frame.f_back
    name = f"np.{function.__name__}"
    warnings.warn(f"{name}: {tensor._spec} is downloaded, {tensor.nbytes} bytes; use a function of tessera, or write "
                  f"{name}(x.full_tensor()) for it", ImplicitDownloadWarning, stacklevel=level)
