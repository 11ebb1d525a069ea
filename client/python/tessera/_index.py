"""Basic indexing: slices, integers, None and Ellipsis, as NumPy has them."""

from __future__ import annotations

import operator

import numpy as np

import _tessera
from ._creation import asarray
from ._errors import IndexOutOfRangeError, InvalidArgumentError, UnimplementedError


def has_arrays(key) -> bool:
    """Whether an item of the index is an array, a list, a tensor, or True or False."""
    for item in key if isinstance(key, tuple) else (key,):
        if isinstance(item, (list, bool, np.bool_)) or hasattr(item, "_spec_now"):
            return True
        if isinstance(item, np.ndarray) and (item.ndim > 0 or item.dtype == np.bool_):
            return True
    return False


def mask_fits(mask_shape, shape) -> bool:
    """Whether a mask may stand for the first of these dims: each of its extents is the dim's, or 0, which chooses nothing."""
    return len(mask_shape) <= len(shape) and all(of_mask in (extent, 0) for of_mask, extent in zip(mask_shape, shape))


def mask_of(key, tensor):
    """The mask of x[mask] = v, a tensor of some of x's first dims; None for another index."""
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if isinstance(key, (bool, np.bool_)):
        key = np.asarray(key)
    if isinstance(key, list) and key:
        key = np.asarray(key)
    is_array = isinstance(key, np.ndarray) and key.dtype == np.bool_
    if not is_array and not (hasattr(key, "_spec_now") and key.dtype == np.bool_):
        return None
    if not mask_fits(key.shape, tensor.shape):
        raise IndexOutOfRangeError(f"index: a mask of shape {tuple(key.shape)} for {tensor._spec}")
    if not is_array:
        return key
    return asarray(key, device_mesh=tensor.device_mesh)


def normalise(key, shape) -> list[tuple[int, int, int, int]]:
    """(kind, start, size, step) per item; dims that the key doesn't name are taken whole."""
    items = _tessera.normalise_index(key, shape)
    if items is not None:
        return items
    keys = key if isinstance(key, tuple) else (key,)
    return _tessera.normalise_index(tuple(plain(item) for item in keys), shape)


def plain(item):
    """An item of another type as one that an index has."""
    if item is None or item is Ellipsis:
        return item
    if has_arrays(item):
        raise UnimplementedError(f"index: {type(item).__name__} as an index is not supported here; use slices and integers")
    try:
        if isinstance(item, slice):
            item.indices(0)
            return item
        return operator.index(item)
    except (TypeError, ValueError) as error:
        if isinstance(item, slice):
            raise IndexOutOfRangeError(f"index: {item}: {error}") from None
        raise IndexOutOfRangeError(f"index: {item!r} is no index; use slices, integers, None and ...") from None
