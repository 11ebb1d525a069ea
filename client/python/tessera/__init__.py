"""Tessera: large tensors in shards on worker servers, used as one tensor.

>>> import numpy as np, tessera as ts
>>> with ts.local_cluster(workers=4, memory="256MiB") as cluster:
...     session = cluster.connect()
...     mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
...     a = session.distribute_tensor(np.ones((6, 4)), mesh, [ts.Shard(0), ts.Replicate()])
...     b = session.distribute_tensor(np.ones((4, 8)), mesh, [ts.Replicate(), ts.Shard(1)])
...     (a @ b).full_tensor().sum()
192.0
"""

from math import e, inf, nan, pi

from ._extension import check_python as _check_python

_check_python()

import numpy as _np

from _tessera import Mesh as _Mesh, Session, Tensor, version as _version

from . import fft, linalg, random
from _tessera_ops import *  # noqa: F403 - what is made from the catalog
from _tessera_ops import (abs as absolute, divide as div, multiply as mul, negative as neg, pow as power,  # noqa: A004
                          remainder as mod, subtract as sub)
from . import _help, _install, _names
from ._advise import advise
from ._arrangement import (append, argwhere, array_equal, array_split, atleast_1d, atleast_2d, atleast_3d, block, column_stack, delete,
                           diag, diagflat, dsplit, dstack, flatnonzero, fliplr, flipud, hsplit, hstack, identity, insert,
                           put_along_axis, ravel, ravel_multi_index, resize, rot90, tri, unravel_index, vander, vsplit, vstack)
from ._calculus import (convolve, correlate, cummax, cummin, diagonal, divmod, dot, geomspace, gradient, inner, interp,  # noqa: A004
                        logspace, trace, trapezoid)
from ._context import blocking, implicit_redistribution
from ._creation import (arange, asarray, distribute_tensor, empty, empty_like, eye, from_dlpack, from_local, full, full_like,
                        host_empty, init_device_mesh, linspace, ones, ones_like, zeros, zeros_like)
from ._display import visualize_sharding
from ._dtypes import (bfloat16, bool, complex64, complex128, float8_e4m3fn, float8_e5m2, float16, float32, float64,  # noqa: A004
                      int8, int16, int32, int64, uint8, uint16, uint32, uint64)
from ._errors import (CancelledError, DeadlineExceededError, DTypeError, FailedPreconditionError, IndexOutOfRangeError,
                      InternalError, InvalidArgumentError, LinAlgError, NotFoundError, NumberOutOfRangeError, PermissionDeniedError,
                      ResourceExhaustedError,
                      TesseraError, UnauthenticatedError, UnavailableError, UnimplementedError)
from ._functional import adaptive_avg_pool2d, apply_along_axis, choose, compress, fromfunction, piecewise, select
from ._local_map import local_map
from ._files import FileTensor, load, open, save  # noqa: A004
from ._mesh import DeviceMesh
from ._contraction import addmm, bmm, einsum, mm, outer, tensordot, vecdot
from ._indexing import (cumprod, cumsum, cumulative_prod, cumulative_sum, embedding, gather, index_add, isin,
                        masked_select, nonzero, scatter_add, topk, unique_all, unique_counts,
                        unique_inverse, unique_values)
from ._namespace_info import __array_namespace_info__, can_cast, finfo, iinfo, isdtype, result_type
from ._ops import (argmax, argmin, astype, broadcast_arrays, broadcast_shapes, broadcast_to, clip, concat, concatenate,
                   copy, diff, expand_dims,
                   matrix_transpose, meshgrid, moveaxis, nanstd, nanvar, pad, permute_dims, redistribute, relabel, repeat, reshape, roll, round,  # noqa: A004
                   split, squeeze, stack, std, swapaxes, transpose, unstack, var)
from ._numpy_names import (allclose, angle, argpartition, argsort, array, array_equiv, average, bitwise_count, copyto, diag_indices, diag_indices_from,
                           ediff1d, extract, fill_diagonal, indices, iscomplex, iscomplexobj, isclose, isneginf, isposinf, isreal,
                           isrealobj, ix_, ldexp, lexsort, logaddexp2, modf, nancumprod, nancumsum, ndim, packbits, partition, place,
                           polyval, put, putmask, searchsorted, shape, size, sort, sort_complex, take, tril_indices,
                           tril_indices_from, triu_indices, triu_indices_from, unique, unpackbits, vdot, where)
from ._numpy_names import ALIASES as _ALIASES
from ._numpy_more import (apply_over_axes, asarray_chkfinite, einsum_path, frexp, frombuffer, fromfile, fromiter, fromstring, genfromtxt, histogram2d,
                          histogram_bin_edges, histogramdd, loadtxt, mask_indices, matvec, real_if_close, require, rollaxis, spacing,
                          trim_zeros, unwrap, vecmat)
from ._polynomials import poly, polyadd, polyder, polydiv, polyfit, polyint, polymul, polysub, roots
from ._tapers import bartlett, blackman, hamming, hanning, i0, kaiser
from ._notebook import load_ipython_extension, unload_ipython_extension
from ._placements import Partial, Placement, Replicate, Shard
from ._random import (bernoulli, choice, dropout, exponential, manual_seed, normal, permutation, rand, randint, randn,
                      shuffle, uniform)
from ._plan import Plan, explain
from ._publications import Publication, attach, publish
from ._sets import in1d, intersect1d, setdiff1d, setxor1d, union1d
from ._session import Cluster, CommDebug, connect, local_cluster
from ._slurm import SlurmCluster
from ._statistics import (bincount, corrcoef, cov, digitize, histogram, median, nan_to_num, nanargmax, nanargmin, nanmedian, nanpercentile, nanquantile,
                          percentile, quantile)
from ._array_function import ImplicitDownloadWarning
from ._tensor import ImplicitRedistributionWarning, wait
from . import _methods, _pads, _session_methods  # noqa: F401 - attach methods, and modes of pad
from ._windows import avg_pool1d, avg_pool2d, conv1d, conv2d, conv3d, max_pool1d, max_pool2d

newaxis = None
bool_, int_, intp, uint, float_, double, single, half = bool, int64, int64, uint64, float64, float64, float32, float16
dtype, ndarray, issubdtype, isscalar = _np.dtype, Tensor, _np.issubdtype, _np.isscalar
# How numbers are written, and what NumPy does about bad ones in this process.
base_repr, binary_repr, format_float_positional, format_float_scientific = (
    _np.base_repr, _np.binary_repr, _np.format_float_positional, _np.format_float_scientific)
printoptions, get_printoptions, set_printoptions, errstate, geterr, seterr = (
    _np.printoptions, _np.get_printoptions, _np.set_printoptions, _np.errstate, _np.geterr, _np.seterr)
iterable, min_scalar_type, typename, mintypecode = _np.iterable, _np.min_scalar_type, _np.typename, _np.mintypecode
generic, number, integer, signedinteger, unsignedinteger, inexact, floating, complexfloating = (
    _np.generic, _np.number, _np.integer, _np.signedinteger, _np.unsignedinteger, _np.inexact, _np.floating, _np.complexfloating)
__array_api_version__ = "2024.12"

__version__ = _version


def _finish(names: dict) -> None:
    """Documentation for help(), answers to names that others have, and completion of public names."""
    from types import FunctionType
    for prefix, space in (("", names), ("linalg.", vars(linalg)), ("fft.", vars(fft))):
        _help.complete({name: value for name, value in space.items() if isinstance(value, FunctionType) and
                        (name in space.get("__all__", ()) or not prefix and not name.startswith("_"))}, prefix)
    names.update((alias, names[name]) for alias, name in _ALIASES.items())
    _install.install((names, vars(linalg), vars(fft)), (Cluster, SlurmCluster, CommDebug, DeviceMesh, Plan, Placement, Shard, Replicate, Partial))
    names["__getattr__"] = _names.module_getattr(names)
    names["__dir__"] = lambda: _names.public_names(names)


_finish(globals())
