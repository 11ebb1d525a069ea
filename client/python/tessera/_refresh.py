"""Cells of a notebook that show a tensor whose values are not there yet: they are drawn again when the values are.

One thread looks after all such cells, while there are some.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref

from ._errors import TesseraError
from ._progress import LOOK

_MAX_CELLS = 64         # docs/limits.md: max_refreshed_cells

_lock = threading.Lock()
_cells: list = []       # (weak reference to the tensor, what draws it, the display)
_watcher = None


def kernel_display():
    """IPython's display in the kernel of a notebook, else None."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display
    return display


def show(tensor, draw) -> None:
    """Displays what `draw` makes of a tensor, {mime type: text}, and again when the tensor's values are there. NotImplementedError
    outside of a notebook, where IPython then prints the tensor."""
    global _watcher
    display = kernel_display()
    if display is None:
        raise NotImplementedError
    handle = display(draw(tensor), raw=True, display_id=True)
    if tensor.is_ready():
        return
    with _lock:
        _cells.append((weakref.ref(tensor), draw, handle))
        del _cells[:-_MAX_CELLS]
        if _watcher is None:
            _watcher = threading.Thread(target=_watch, name="tessera-cells", daemon=True)
            _watcher.start()


def _watch() -> None:
    global _watcher
    while True:
        time.sleep(LOOK)
        with _lock:
            waiting = [cell for cell in _cells if (tensor := cell[0]()) is not None and not _is_over(tensor)]
            over = [cell for cell in _cells if cell not in waiting]
            _cells[:] = waiting
        for reference, draw, handle in over:
            if (tensor := reference()) is not None:
                handle.update(draw(tensor), raw=True)
        with _lock:
            if not _cells:
                _watcher = None
                return


def _is_over(tensor) -> bool:
    try:
        return tensor.is_ready()
    except TesseraError:        # its session has ended: the picture says so
        return True
