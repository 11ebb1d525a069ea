"""The error classes. Each is also the built-in error that Python code would expect there."""

from __future__ import annotations

import contextlib
import re

import numpy as np

import _tessera
from ._catalog import OPS


class TesseraError(Exception):
    """Anything that went wrong in Tessera."""


class InvalidArgumentError(TesseraError, ValueError):
    """Shapes, dtypes, placements or meshes that don't fit what was asked."""


class ArgumentError(InvalidArgumentError, TypeError):
    """An argument of the wrong kind or name."""


class DTypeError(InvalidArgumentError, TypeError):
    """A dtype that is unknown, or that an op doesn't take."""


class IndexOutOfRangeError(InvalidArgumentError, IndexError):
    """A dim, an index or a position that doesn't exist."""


class NumberOutOfRangeError(IndexOutOfRangeError, RuntimeError):
    """An element that is out of the range that an op takes, as a label that is no class, or a probability above 1. The worker
    that has the element finds it, so the error comes where a result that depends on it is waited for."""


class LinAlgError(InvalidArgumentError, np.linalg.LinAlgError):
    """A matrix that has no answer: a singular one, one that isn't positive definite."""


class NotFoundError(TesseraError, KeyError):
    """Something that was named doesn't exist."""

    __str__ = Exception.__str__  # KeyError shows a repr of the message


class FailedPreconditionError(TesseraError, RuntimeError):
    """Not possible in the present state: a closed session, a server of another version."""


class ResourceExhaustedError(TesseraError, MemoryError):
    """Doesn't fit: the message says wanted, free and total bytes per worker, or which quota."""


class UnavailableError(TesseraError, ConnectionError):
    """A worker or the coordinator is gone; trying again later may work."""


class DeadlineExceededError(TesseraError, TimeoutError):
    """Not done in the time that was given, or no progress for the stall timeout."""


class CancelledError(TesseraError, RuntimeError):
    """Ended by a cancel."""


class UnauthenticatedError(TesseraError, PermissionError):
    """No token, or a wrong one."""


class PermissionDeniedError(TesseraError, PermissionError):
    """The token doesn't allow this."""


class UnimplementedError(TesseraError, NotImplementedError):
    """Reserved: it has a place in the interface and doesn't work yet."""


class InternalError(TesseraError, RuntimeError):
    """A fault of Tessera itself."""


@contextlib.contextmanager
def named(op: str):
    """Refusals of the ops in the block are said by `op`, which the user called, and what fails of them later too (op is a
    name of schemas/ops/called_as.h, else each op says it); refusals of others stay theirs. The outermost of nested
    blocks counts."""
    outer = _tessera.called_as()
    try:
        if not outer:
            _tessera.set_called_as(op)
        yield
    except TesseraError as error:
        called_as, said, rest = re.match(r"(?s)(?:([a-z_]+)(: ))?(.*)", str(error)).groups()
        if said and called_as not in OPS and called_as != "operand":
            raise
        raise type(error)(f"{op}: {rest}") from None
    finally:
        _tessera.set_called_as(outer)


# By absl's status code; "dtype" and "index" are InvalidArgument with a payload.
BY_CODE = {
    1: CancelledError,
    2: InternalError,
    3: InvalidArgumentError,
    4: DeadlineExceededError,
    5: NotFoundError,
    6: FailedPreconditionError,
    7: PermissionDeniedError,
    8: ResourceExhaustedError,
    9: FailedPreconditionError,
    10: CancelledError,
    11: IndexOutOfRangeError,
    12: UnimplementedError,
    13: InternalError,
    14: UnavailableError,
    15: InternalError,
    16: UnauthenticatedError,
    "dtype": DTypeError,
    "index": IndexOutOfRangeError,
    "linalg": LinAlgError,
    "number": NumberOutOfRangeError,
}

for _class in list(BY_CODE.values()) + [ArgumentError, TesseraError]:
    _class.__module__ = "tessera"
