"""An extension that was built for another Python is named before it is loaded."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import _tessera

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client" / "python"
OTHERS = sorted(path for path in pathlib.Path.home().glob(".pyenv/versions/3.*/bin/python3")
                if re.search(r"versions/3\.1[02345]\.", str(path)))


def imported(python, *folders):
    """What `import tessera` says in a Python, with these folders before the extension's own."""
    path = os.pathsep.join(map(str, (*folders, PACKAGE, pathlib.Path(_tessera.__file__).parent)))
    return subprocess.run([python, "-c", "import tessera"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


def test_an_extension_of_another_python_is_refused_by_both_names(tmp_path):
    (tmp_path / "_tessera_python.py").write_text("VERSION = (3, 9)\n")
    done = imported(sys.executable, tmp_path)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 1
    assert re.search(rf"ImportError: tessera: the extension /\S+/_tessera\S*\.so was built for Python 3\.9, and this is Python {re.escape(here)} "
                     rf"\(\S+\); run python3\.9, or install a wheel of tessera for Python {re.escape(here)}", done.stderr)


def test_the_build_says_for_which_python_the_extension_is():
    import _tessera_python
    assert _tessera_python.VERSION == tuple(sys.version_info[:2])
    assert imported(sys.executable).returncode == 0


@pytest.mark.skipif(not OTHERS, reason="no other Python is here (~/.pyenv/versions)")
@pytest.mark.parametrize("python", OTHERS, ids=lambda path: path.parts[-3])
def test_the_pythons_that_are_here_say_so(python):
    done = imported(python)
    assert done.returncode == 1 and f"was built for Python {sys.version_info[0]}.{sys.version_info[1]}, and this is Python 3." in done.stderr
