"""Publications: sets of tensors under a name, which other sessions and other tenants attach without a byte moving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import _tessera
from _tessera import Tensor

from . import _context
from ._errors import ArgumentError
from ._session import session_of


class Publication(Mapping):
    """The tensors of a publication, by their names. They keep their bytes while they are held, whatever becomes of the name."""

    def __init__(self, name: str, version: int, tensors: dict):
        self.name = name
        self.version = version
        self._tensors = tensors

    def __getitem__(self, name):
        return self._tensors[name]

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def __repr__(self):
        return f"Publication({self.name!r}, version {self.version}: {', '.join(map(repr, self._tensors))})"


Publication.__module__ = "tessera"


def _text(op: str, what: str, value) -> str:
    if not isinstance(value, str):
        raise ArgumentError(f"{op}: {what} is {value!r}; it must be a str")
    return value


def publish_of(session, tensors, name, readers) -> int:
    op = "publish"
    _text(op, "name", name)
    if not isinstance(tensors, Mapping):
        raise ArgumentError(f"{op}: tensors is {tensors!r}; write {{\"w\": w}}, a mapping of names to tensors")
    for key, tensor in tensors.items():
        _text(op, "name of a tensor", key)
        if not isinstance(tensor, Tensor):
            raise ArgumentError(f"{op}: {key!r} is {tensor!r}, which is no Tensor")
    if isinstance(readers, str) or not isinstance(readers, Iterable):
        raise ArgumentError(f"{op}: readers is {readers!r}; it is a list of tenants, and [\"*\"] is every tenant")
    return _tessera.publish(session, dict(tensors), name, [_text(op, "reader", reader) for reader in readers])


def attach_of(session, name) -> Publication:
    return Publication(name, *_tessera.attach(session, _text("attach", "name", name)))


def publish(tensors, name, readers=()):
    """Publishes tensors as one set under a name: other sessions attach them where they lie, and no byte moves.

    >>> ts.publish({"w": w, "b": b}, "vision/weights", readers=["speech"])
    1

    The name begins with the tenant of the session, "vision" here; without a tenants file that is "default". It waits until
    the tensors are there. From then on nothing writes to them: `w += 1` gives w memory of its own. The set stays, charged to
    the tenant, until `session.unpublish(name)`, also when the session is closed. A name that is published again gets a new
    version; who has the former one keeps it.

    tensors: a mapping of names to tensors of one session.
    name: TENANT/NAME.
    readers: the tenants that may attach it beside its own; ["*"] is every tenant.

    Gives the version, which is larger than that of what had the name before.

    Errors:
    PermissionDeniedError: the name is another tenant's.
    InvalidArgumentError: an argument that it doesn't take; the message says which."""
    first = next(iter(tensors.values()), None) if isinstance(tensors, Mapping) else None
    session = session_of(first) if isinstance(first, Tensor) else _context.current_session()
    return publish_of(session, tensors, name, readers)


def attach(name):
    """Gives the tensors of a publication, as tensors of the current session: no byte moves.

    >>> weights = ts.attach("vision/weights")
    >>> y = x @ weights["w"]

    They are as they were published, for as long as they are held, whatever is done with the name meanwhile. An op that would
    write to one, `w += 1`, takes memory of the session's own tenant.

    name: TENANT/NAME, as it was published.

    Gives a mapping of names to tensors, which has a `name` and a `version`.

    Errors:
    NotFoundError: no such publication is there, or it is not for this tenant: which is not told.
    UnavailableError: a tensor went with a worker that was lost; the message names both."""
    return attach_of(_context.current_session(), name)
