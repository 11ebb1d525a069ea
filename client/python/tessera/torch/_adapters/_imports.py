"""when_imported(module, function): calls function(module) once the module has been imported, and never imports it itself."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys

_waiting: dict = {}     # functions by the module's name


class _Loader(importlib.abc.Loader):
    """The module's own loader, and the functions after it."""

    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in _waiting.pop(module.__name__, ()):
            function(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def when_imported(name: str, function) -> None:
    module = sys.modules.get(name)
    if module is not None:
        function(module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(function)
