"""Messages to a capture while it records: numbers that are read anew each time that a step is asked for again.

Who makes such a number says where it comes from, before the call that takes it: the optimizers' rows of the learning rate, the
generator of its next call's number. Outside of a capture that costs a look at `current`.
"""

from __future__ import annotations

import threading

current = None      # the recorder that is open, of one thread


def recorder():
    """The recorder of this thread, or None."""
    return current if current is not None and current.thread == threading.get_ident() else None


class Reading:
    """A number of an optimizer's group: what it is now, and where it stands."""

    __slots__ = ("group", "name")

    def __init__(self, group, name):
        self.group, self.name = group, name


def rate_of(parameter, lr):
    """The learning rate of a parameter, as a Reading where a capture records it and it is a plain number."""
    if current is None or not isinstance(lr, float):
        return lr
    found = recorder()
    group = None if found is None else found.groups.get(id(parameter))
    if group is None or group["lr"] != lr:
        return lr
    found.read_of.add((id(group), "lr"))
    return Reading(group, "lr")


def number(value, formula, key):
    """formula(value), where that is a number; of a Reading also each time that the step is asked for again."""
    if not isinstance(value, Reading):
        return formula(value)
    group, name = value.group, value.name
    found = formula(group[name])
    current.pending.append((found, ("group", id(group), name, key), lambda: formula(group[name])))
    return found
