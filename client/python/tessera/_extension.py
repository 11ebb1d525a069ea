"""Whether the compiled extension module is for this Python: another one would load it and die, or miss a symbol.

The build writes `_tessera_python.py` beside the extension (client/python/BUILD).
"""

from __future__ import annotations

import importlib.util
import sys


def check_python() -> None:
    """ImportError, before the extension is loaded, where it was built for another version of Python."""
    try:
        from _tessera_python import VERSION
    except ModuleNotFoundError:
        return
    if tuple(sys.version_info[:2]) == VERSION:
        return
    found = importlib.util.find_spec("_tessera")
    built, here = (f"{version[0]}.{version[1]}" for version in (VERSION, sys.version_info))
    raise ImportError(f"tessera: the extension {found.origin if found else '_tessera'} was built for Python {built}, and this is Python {here} "
                      f"({sys.executable}); run python{built}, or install a wheel of tessera for Python {here}", name="_tessera")
