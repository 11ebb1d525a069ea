"""Other versions of Python on this machine, one path for each: python3.N of PATH, and pyenv's."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

VERSIONS = tuple((3, minor) for minor in range(10, 16))


def is_version(python: pathlib.Path, version: tuple[int, int]) -> bool:
    """pyenv's python3.N of PATH may be a script that says that there is none."""
    said = subprocess.run([python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    return said.returncode == 0 and said.stdout.split() == [str(part) for part in version]


@functools.cache
def others() -> dict[tuple[int, int], pathlib.Path]:
    """By version, without this one."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    found = {}
    for version in VERSIONS:
        name = "python{}.{}".format(*version)
        # 3.13.0 and no 3.13.0t: free-threaded builds have an ABI of their own.
        own = [folder / "bin" / name for folder in sorted(pyenv.glob(f"versions/{version[0]}.{version[1]}.*"))
               if re.fullmatch(r"\d+\.\d+\.\d+", folder.name)]
        paths = [path for path in (shutil.which(name), *own) if path]
        python = next((pathlib.Path(path) for path in paths if is_version(path, version)), None)
        if python is not None and version != sys.version_info[:2]:
            found[version] = python
    return found
