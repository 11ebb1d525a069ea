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

from _tessera import Mesh as _Mesh, Session, Tensor, version as _version

from . import linalg
from ._context import implicit_redistribution
from ._creation import (arange, asarray, distribute_tensor, empty, empty_like, eye, from_local, full, full_like,
                        init_device_mesh, linspace, manual_seed, ones, ones_like, rand, randint, randn, zeros, zeros_like)
from ._dtypes import (bfloat16, bool, float16, float32, float64, int8, int16, int32, int64,  # noqa: A004
                      uint8, uint16, uint32, uint64)
from ._errors import (CancelledError, DeadlineExceededError, DTypeError, FailedPreconditionError, IndexOutOfRangeError,
                      InternalError, InvalidArgumentError, NotFoundError, PermissionDeniedError, ResourceExhaustedError,
                      TesseraError, UnauthenticatedError, UnavailableError, UnimplementedError)
from ._mesh import DeviceMesh
from ._contraction import addmm, bmm, einsum, mm, outer, tensordot, vecdot
from ._ops import (add, all, any, argmax, argmin, astype, div, divide, equal, exp, expand_dims,  # noqa: A004
                   greater, greater_equal, less, less_equal, matmul, matrix_transpose, max, maximum, mean, min, minimum,
                   mul, multiply, neg, negative, not_equal, permute_dims, redistribute, relu, reshape, sqrt, squeeze, sub,
                   subtract, sum, transpose, where)
from ._placements import Partial, Placement, Replicate, Shard
from ._plan import Plan, explain
from ._session import Cluster, CommDebug, connect, local_cluster
from ._tensor import ImplicitRedistributionWarning, wait

newaxis = None

__version__ = _version
