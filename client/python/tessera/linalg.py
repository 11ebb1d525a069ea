"""The array API's linalg, as far as it goes today."""

from _tessera_ops import cross, diagonal, matmul, trace, vector_norm
from ._contraction import outer, tensordot, vecdot
from ._errors import UnimplementedError
from ._ops import matrix_transpose

__all__ = ["cross", "diagonal", "matmul", "matrix_transpose", "outer", "tensordot", "trace", "vecdot", "vector_norm"]


class ReservedNameError(UnimplementedError, AttributeError):
    """A name of the array API that nothing is behind yet; hasattr says so, too."""


ReservedNameError.__module__ = "tessera"


def __getattr__(name: str):
    if name in ("cholesky", "det", "eigh", "inv", "qr", "solve", "svd", "norm", "matrix_norm"):
        raise ReservedNameError(f"linalg.{name} is not supported yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
