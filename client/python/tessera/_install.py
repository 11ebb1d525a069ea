"""Puts NumPy's ways of calling, records of many ops and answers to unknown names around what the package shows."""

from __future__ import annotations

import types

import _tessera
from . import _names
from ._numpy_calls import called_as_numpy
from ._recorded import OF_MANY_OPS, recorded


def _hint_methods(target) -> None:
    for name, value in list(vars(target).items()):
        if isinstance(value, types.FunctionType) and (not name.startswith("_") or name == "__init__") and value.__code__.co_argcount + value.__code__.co_kwonlyargcount > 1:
            setattr(target, name, called_as_numpy(value))


def install(spaces, classes) -> None:
    """For the namespaces of the package, and its classes."""
    for names in spaces:
        for name, value in list(names.items()):
            if isinstance(value, types.FunctionType) and not name.startswith("_") and not hasattr(value, "__wrapped__"):
                names[name] = called_as_numpy(recorded(value) if name in OF_MANY_OPS else value)
    for target in (_tessera.Tensor, _tessera.Session, *classes):
        _hint_methods(target)
        target.__dir__ = _names.public_dir
    _tessera.Tensor.__getattr__ = _names.tensor_getattr
    _tessera.Session.__getattr__ = _names.session_getattr
    for target in classes:
        target.__getattr__ = _names.plain_getattr
