"""The ops of the built catalog, by name."""

from __future__ import annotations

import _tessera

OPS = {row[1]: row[0] for row in _tessera.catalog()}    # name -> number
