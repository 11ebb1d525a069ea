"""Collectives of Python objects between ranks. An object comes as a pickle: ranks that receive trust those that send."""

from __future__ import annotations

import pickle

import numpy as np

from .._errors import InvalidArgumentError
from . import _rank_calls
from ._world import group_of, rank_of


def _bytes_of(value) -> np.ndarray:
    return np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy()


def _object_of(data: np.ndarray):
    return pickle.loads(data.tobytes())


def all_gather_object(object_list, obj, group=None) -> None:
    """object_list[i] becomes the object of rank i."""
    op, group = "all_gather_object", group_of("all_gather_object", group)
    _check_list(op, "object_list", object_list, group.size())
    data = _bytes_of(obj)
    sizes = np.zeros(group.size(), dtype=np.int64)
    _rank_calls.all_gather_into_tensor(sizes, np.array([data.size]), group)
    parts = [np.empty(size, dtype=np.uint8) for size in sizes]
    _rank_calls.all_gather(parts, data, group)
    for i, part in enumerate(parts):
        object_list[i] = _object_of(part)


def gather_object(obj, object_gather_list=None, dst=None, group=None, group_dst=None) -> None:
    """At `dst` object_gather_list[i] becomes the object of rank i."""
    op, group = "gather_object", group_of("gather_object", group)
    root = rank_of(op, "dst", dst, group_dst, group)
    data, size = _bytes_of(obj), np.zeros(group.size(), dtype=np.int64)
    if group.rank() == root:
        _check_list(op, "object_gather_list", object_gather_list, group.size())
    _rank_calls.all_gather_into_tensor(size, np.array([data.size]), group)
    most = int(size.max())
    padded = np.zeros(most, dtype=np.uint8)
    padded[:data.size] = data
    if group.rank() != root:
        _rank_calls.gather(padded, None, group=group, group_dst=root)
        return
    parts = [np.empty(most, dtype=np.uint8) for _ in range(group.size())]
    _rank_calls.gather(padded, parts, group=group, group_dst=root)
    for i, part in enumerate(parts):
        object_gather_list[i] = _object_of(part[:size[i]])


def broadcast_object_list(object_list, src=None, group=None, device=None, group_src=None) -> None:
    """Each object of the list becomes that of `src`."""
    op, group = "broadcast_object_list", group_of("broadcast_object_list", group)
    root = rank_of(op, "src", src, group_src, group)
    _check_list(op, "object_list", object_list, None)
    is_root = group.rank() == root
    data = _bytes_of(list(object_list)) if is_root else None
    size = np.array([data.size if is_root else 0])
    _rank_calls.broadcast(size, group=group, group_src=root)
    if not is_root:
        data = np.empty(int(size[0]), dtype=np.uint8)
    _rank_calls.broadcast(data, group=group, group_src=root)
    object_list[:] = _received(op, data, len(object_list))


def scatter_object_list(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None) -> None:
    """scatter_object_output_list[0] becomes the object of `src`'s list at this rank's place."""
    op, group = "scatter_object_list", group_of("scatter_object_list", group)
    root = rank_of(op, "src", src, group_src, group)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise InvalidArgumentError(f"{op}: scatter_object_output_list is {scatter_object_output_list!r}; it is a list with one place")
    sizes = np.zeros(group.size(), dtype=np.int64)
    parts = None
    if group.rank() == root:
        _check_list(op, "scatter_object_input_list", scatter_object_input_list, group.size())
        parts = [_bytes_of(one) for one in scatter_object_input_list]
        sizes[:] = [part.size for part in parts]
    _rank_calls.broadcast(sizes, group=group, group_src=root)
    most = int(sizes.max())
    own = np.empty(most, dtype=np.uint8)
    if parts is not None:
        parts = [np.pad(part, (0, most - part.size)) for part in parts]
    _rank_calls.scatter(own, parts, group=group, group_src=root)
    scatter_object_output_list[0] = _object_of(own[:sizes[group.rank()]])


def send_object_list(object_list, dst=None, group=None, device=None, group_dst=None) -> None:
    """Sends the objects of a list to another rank."""
    data = _bytes_of(list(object_list))
    _rank_calls.send(np.array([data.size]), dst, group, 0, group_dst)
    _rank_calls.send(data, dst, group, 0, group_dst)


def recv_object_list(object_list, src=None, group=None, device=None, group_src=None) -> int:
    """Receives the objects of a list from another rank, or from whichever sends first; the rank that sent."""
    size = np.zeros(1, dtype=np.int64)
    source = _rank_calls.recv(size, src, group, 0, group_src)
    data = np.empty(int(size[0]), dtype=np.uint8)
    _rank_calls.recv(data, source, group, 0)
    object_list[:] = _received("recv_object_list", data, len(object_list))
    return source


def _received(op: str, data: np.ndarray, count: int) -> list:
    values = _object_of(data)
    if len(values) != count:
        raise InvalidArgumentError(f"{op}: {len(values)} objects came for a list of {count}")
    return values


def _check_list(op: str, name: str, values, count) -> None:
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise InvalidArgumentError(f"{op}: {name} is {values!r}; it is a list" + (f" of {count} places" if count is not None else ""))
