"""Basic indexing: slices, integers, None and Ellipsis, as NumPy has them."""

from __future__ import annotations

import operator

import numpy as np

from ._errors import IndexOutOfRangeError, InvalidArgumentError, UnimplementedError

_SLICE, _INTEGER, _NEW_AXIS = 0, 1, 2


def _slice_item(key: slice, extent: int) -> tuple[int, int, int, int]:
    try:
        start, stop, step = key.indices(extent)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"index: {key}: {error}") from None
    size = len(range(start, stop, step))
    return (_SLICE, start, size, step if size > 1 else 1)


def has_arrays(key) -> bool:
    """Whether an item of the index is an array, a list or a tensor with dims."""
    for item in key if isinstance(key, tuple) else (key,):
        if isinstance(item, list) or (isinstance(item, np.ndarray) and (item.ndim > 0 or item.dtype == np.bool_)):
            return True
        if hasattr(item, "_spec_now") and (item.ndim > 0 or item.dtype == np.bool_):
            return True
    return False


def mask_of(key, tensor):
    """The mask of x[mask] = v, as a tensor that broadcasts to x; None for another index."""
    if isinstance(key, tuple) and len(key) == 1:
        key = key[0]
    if isinstance(key, (bool, np.bool_)):
        key = np.asarray(key)
    is_array = isinstance(key, np.ndarray) and key.dtype == np.bool_
    if not is_array and not (hasattr(key, "_spec_now") and key.dtype == np.bool_):
        return None
    if tuple(key.shape) != tuple(tensor.shape[:len(key.shape)]):
        raise IndexOutOfRangeError(f"index: a mask of shape {tuple(key.shape)} for {tensor._spec}")
    from ._tensor import as_operand
    mask = as_operand("index", tensor, key) if is_array else key
    for _ in range(tensor.ndim - len(key.shape)):
        mask = mask[..., None]
    return mask


def normalise(key, shape) -> list[tuple[int, int, int, int]]:
    """(kind, start, size, step) per item; dims that the key doesn't name are taken whole."""
    keys = list(key) if isinstance(key, tuple) else [key]
    for item in keys:
        if isinstance(item, (list, np.ndarray)) or hasattr(item, "_spec_now") or isinstance(item, (bool, np.bool_)):
            raise UnimplementedError(f"index: {type(item).__name__} as an index is not supported yet; use slices and integers")
    named = sum(1 for item in keys if item is not None and item is not Ellipsis)
    dots = sum(1 for item in keys if item is Ellipsis)
    if dots > 1:
        raise InvalidArgumentError("index: only one Ellipsis may stand in an index")
    if named > len(shape):
        raise IndexOutOfRangeError(f"index: {named} indices for shape {tuple(shape)}")
    whole = [slice(None)] * (len(shape) - named)
    if dots:
        at = next(i for i, item in enumerate(keys) if item is Ellipsis)
        keys[at:at + 1] = whole
    else:
        keys += whole
    items, dim = [], 0
    for item in keys:
        if item is None:
            items.append((_NEW_AXIS, 0, 1, 1))
            continue
        extent = shape[dim]
        if isinstance(item, slice):
            items.append(_slice_item(item, extent))
        else:
            try:
                number = operator.index(item)
            except TypeError:
                raise InvalidArgumentError(f"index: {item!r} is no index; use slices, integers, None and ...") from None
            if not -extent <= number < extent:
                raise IndexOutOfRangeError(f"index: {number} is out of range for dim {dim} of shape {tuple(shape)}")
            items.append((_INTEGER, number % extent, 1, 1))
        dim += 1
    return items
