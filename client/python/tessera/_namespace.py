"""The package itself, for modules below it that look a public function up by its name."""

from __future__ import annotations

import sys
import types


def public() -> types.ModuleType:
    return sys.modules[__package__]
