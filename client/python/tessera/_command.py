"""The command `tessera` of a package that has the servers."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program, which starts this Python for the demo."""
    program = pathlib.Path(__file__).parent / "bin" / "tessera"
    os.environ.setdefault("TESSERA_PYTHON", sys.executable)
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"tessera: {program} does not start: {error.strerror}; install the package with servers (tools/wheel --full)")
