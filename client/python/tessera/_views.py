"""The error of a write into a view that is read-only: ts.broadcast_to(x), ts.diagonal(x), and the imaginary part of a real tensor.

All other views are written, and x with them (client/python/view_module.h).
"""

from __future__ import annotations

from ._errors import InvalidArgumentError


def refuse_write(op: str, view, key):
    """Raises. `key` is that of view[key] = v, else None."""
    made = "x"
    for name, given in view._view_steps:
        made = _text(made, name, given)
    raise InvalidArgumentError(f"{op}: {made} is read-only, as NumPy's is; write into x, or take y = {made}.copy() and write into y")


def _item_text(item) -> str:
    if isinstance(item, slice):
        step = "" if item.step is None else f":{item.step}"
        return f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}{step}"
    return "..." if item is Ellipsis else f"{item}"


def _text(made: str, name: str, given) -> str:
    """The expression of a step, of what `made` says."""
    if name == "index":
        items = given if isinstance(given, tuple) else (given,)
        return f"{made}[{', '.join(map(_item_text, items)) or '()'}]"
    if name == "reshape":
        return f"{made}.reshape({', '.join(map(str, given)) or '()'})"
    if name == "permute_dims":
        return f"{made}.T" if list(given) == [1, 0] else f"ts.permute_dims({made}, {tuple(given)})"
    return f"{made}.{name}" if name in ("real", "imag") else f"ts.{name}({made})"
