"""loss_parallel: cross-entropy of scores whose classes are sharded."""

from __future__ import annotations

import contextlib

from .. import _norms


@contextlib.contextmanager
def loss_parallel():
    """Within the block torch.nn.functional.cross_entropy takes scores that are sharded on the class dim: three all-reduces of
    one number per row (the maximum, the sum of exponentials) and of two numbers (the loss and the count), none in backward.

    Outside of the block such scores give the same loss in the same way. Within it, scores whose classes are whole are an
    error, as in torch: the block says that nothing gathers them.

    >>> with loss_parallel():
    ...     loss = torch.nn.functional.cross_entropy(scores, labels)
    ...     loss.backward()
    """
    _norms.sharded_classes.append(True)
    try:
        yield
    finally:
        _norms.sharded_classes.pop()
