"""The array API's linalg, as far as it goes today."""

from ._contraction import outer, tensordot, vecdot
from ._errors import UnimplementedError
from ._ops import matmul, matrix_transpose

__all__ = ["matmul", "matrix_transpose", "outer", "tensordot", "vecdot"]


def __getattr__(name: str):
    if name in ("cholesky", "det", "eigh", "inv", "qr", "solve", "svd", "norm", "matrix_norm", "vector_norm"):
        def reserved(*args, **kwargs):
            raise UnimplementedError(f"linalg.{name} is not supported yet")
        return reserved
    raise AttributeError(name)
