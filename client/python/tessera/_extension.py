"""Whether the compiled extension module is for this Python: another one would load it and die, or miss a symbol.

The build writes `_tessera_python.py` beside the extension (client/python/BUILD).
"""

from __future__ import annotations

import importlib.util
import sys


def check_python() -> None:
    """ImportError, before the extension is loaded, where it was built for another version of Python."""
    try:
        from _tessera_python import LATER_TOO, VERSION
    except ModuleNotFoundError:
        return
    here = tuple(sys.version_info[:2])
    if here == VERSION or LATER_TOO and here > VERSION:
        return
    found = importlib.util.find_spec("_tessera")
    built, running = (f"{version[0]}.{version[1]}" for version in (VERSION, here))
    raise ImportError(f"tessera: the extension {found.origin if found else '_tessera'} was built for Python {built}{' and later' if LATER_TOO else ''}, and "
                      f"this is Python {running} ({sys.executable}); run python{built}, or install a wheel of tessera for Python {running}", name="_tessera")
