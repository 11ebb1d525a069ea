"""The error of a write into a view: which expression made the view, and what to write instead.

x[0], x.T and x.reshape(-1) have elements of their own here, where NumPy's share memory with x. A write into one is refused
while x, or another view of x, is there (client/python/view_module.h); this module finds the words.
"""

from __future__ import annotations

from ._errors import InvalidArgumentError

_SYMBOLS = {"add": "+=", "subtract": "-=", "multiply": "*=", "divide": "/=", "matmul": "@=", "floor_divide": "//=", "remainder": "%=",
            "pow": "**=", "bitwise_and": "&=", "bitwise_or": "|=", "bitwise_xor": "^=", "bitwise_left_shift": "<<=",
            "bitwise_right_shift": ">>="}


def refuse_write(op: str, view, key):
    """Raises. `key` is that of view[key] = v, else None."""
    steps = [_Index(given) if name == "slice" else (name, given) for name, given in view._view_steps]
    made = "x"
    for step in steps:
        made = _text(made, step)
    is_element = op == "x[i] = v"
    whole = _joined([*steps, _Index(key)] if is_element else steps)
    if whole is None:
        instead = "write into x itself"
    else:
        instead = f"write {_text('x', whole)} {'=' if is_element else _SYMBOLS.get(op, '=')} v"
    raise InvalidArgumentError(f"{op}: {made} has elements of its own, and x would keep what it has; {instead}, or take y = {made}.copy() "
                               "and write into y")


class _Index(tuple):
    """The items of a basic index."""

    def __new__(cls, key):
        return super().__new__(cls, key if isinstance(key, tuple) else (key,))


def _item_text(item) -> str:
    if isinstance(item, slice):
        step = "" if item.step is None else f":{item.step}"
        return f"{'' if item.start is None else item.start}:{'' if item.stop is None else item.stop}{step}"
    return "..." if item is Ellipsis else f"{item}"


def _text(made: str, step) -> str:
    """The expression of a step, of what `made` says."""
    if isinstance(step, _Index):
        return f"{made}[{', '.join(map(_item_text, step)) or '()'}]"
    name, given = step
    if name == "reshape":
        shape = given["shape"] if isinstance(given, dict) else given
        return f"{made}.reshape({', '.join(map(str, shape)) or '()'})"
    if name == "permute_dims":
        dims = tuple(given["dims"])
        return f"{made}.T" if dims == (1, 0) else f"ts.permute_dims({made}, {dims})"
    return f"{made}.{name}" if name in ("real", "imag") else f"ts.{name}({made})"


def _is_whole(item) -> bool:
    return isinstance(item, slice) and item == slice(None)


def _joined(steps):
    """One index of x for several steps; None where there is none, or it isn't plain to say."""
    found = _Index(())
    for step in steps:
        if not isinstance(step, _Index):
            return _of_transposed(steps) if step is steps[0] else None
        found = _then(found, step)
        if found is None:
            return None
    return found if found else None


def _then(first: _Index, second: _Index):
    """x[first][second] as x[key]: numbers stay, and what `first` takes whole takes the items of `second`."""
    items, rest = [], list(second)
    if not all(isinstance(item, int) or _is_whole(item) for item in first):
        return None
    for item in first:
        if isinstance(item, int) or not rest:
            items.append(item)
        elif rest[0] is None or rest[0] is Ellipsis:
            return None
        else:
            items.append(rest.pop(0))
    return _Index((*items, *rest))


def _of_transposed(steps):
    """x.T[i, j] as x[j, i]: of numbers, one for each dim."""
    name, given = steps[0]
    if name != "permute_dims" or len(steps) != 2 or not isinstance(steps[1], _Index):
        return None
    dims, items = given["dims"], steps[1]
    if len(items) != len(dims) or not all(isinstance(item, int) for item in items):
        return None
    return _Index(tuple(items[list(dims).index(d)] for d in range(len(dims))))
