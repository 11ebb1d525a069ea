"""Other versions of Python: the wheel by the stable ABI, and an extension that was built for another one."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import _tessera
import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
import pythons  # noqa: E402

PACKAGE = ROOT / "client" / "python"
BIN = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin"))
EXTENSION = pathlib.Path(_tessera.__file__).parent
STABLE_ABI = (3, 12)        # and later


def name_of(version):
    return "python{}.{}".format(*version)


def imported(python, *folders):
    """The output of `import tessera` in a Python, with these folders before the extension's own."""
    path = os.pathsep.join(map(str, (*folders, PACKAGE, EXTENSION)))
    return subprocess.run([python, "-c", "import tessera"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})


# ---- an extension of another version -----------------------------------------------------------


def test_an_extension_of_another_python_is_refused_by_both_names(tmp_path):
    (tmp_path / "_tessera_python.py").write_text("VERSION, LATER_TOO = (3, 9), False\n")
    done = imported(sys.executable, tmp_path)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 1
    assert re.search(rf"ImportError: tessera: the extension /\S+/_tessera\S*\.so was built for Python 3\.9, and this is Python {re.escape(here)} "
                     rf"\(\S+\); run python3\.9, or install a wheel of tessera for Python {re.escape(here)}", done.stderr)


def test_an_extension_of_later_pythons_is_refused_by_an_older_one():
    """The one by the stable ABI, in the Python of the checkout: it would load, and then die."""
    done = imported(sys.executable, BIN / "client/python/stable_abi")
    assert done.returncode == 1
    assert re.search(r"stable_abi/_tessera\.abi3\.so was built for Python 3\.12 and later, and this is Python 3\.11", done.stderr)


def test_the_build_says_for_which_python_the_extension_is():
    import _tessera_python
    assert _tessera_python.VERSION == tuple(sys.version_info[:2]) and not _tessera_python.LATER_TOO
    assert imported(sys.executable).returncode == 0


@pytest.mark.skipif(not pythons.others(), reason="no other Python is here (python3.N of PATH, ~/.pyenv/versions)")
@pytest.mark.parametrize("version", pythons.others(), ids=name_of)
def test_the_pythons_that_are_here_say_so(version):
    done = imported(pythons.others()[version])
    assert done.returncode == 1 and f"was built for Python {sys.version_info[0]}.{sys.version_info[1]}, and this is Python 3." in done.stderr


# ---- the wheel by the stable ABI ---------------------------------------------------------------

TRY_IT = """
import sys
import numpy as np, tessera as ts

def products(session):
    mesh = session.init_device_mesh((2,))
    x = session.distribute_tensor(np.arange(12.0).reshape(4, 3), mesh, [ts.Shard(0)])
    assert np.array_equal((x @ x.T).full_tensor(), np.arange(12.0).reshape(4, 3) @ np.arange(12.0).reshape(4, 3).T)
    assert ts.sum(x).full_tensor() == 66 and (x * (1 + 2j)).full_tensor()[0, 1] == 1 + 2j and (x == np.float32(3)).full_tensor().sum() == 1
    row = x[1]
    row += 1                                                        # a view, and a temporary of one
    x[0][1] = 5
    assert x.full_tensor()[1, 0] == 4 and x.full_tensor()[0, 1] == 5
    step = ts.linalg.inv(session.distribute_tensor(np.zeros((3, 3)), mesh, [ts.Replicate()]))       # THE LINE
    try:
        step.full_tensor()
    except ts.LinAlgError as error:
        print(error)

with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
    products(session)
with ts.connect(sys.argv[1]) as session:
    products(session)
print(ts.__version__, sys.modules["_tessera"].__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, ROOT / "tools/packages/build_wheel.py", "--stable-abi", "--full", "--bin-dir", BIN, "--out", out], check=True,
                   capture_output=True)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def address():
    with ts.local_cluster(workers=2, memory="64MiB") as cluster:
        yield cluster.address


def test_a_wheel_by_the_stable_abi_names_the_first_version_that_takes_it(wheel):
    assert re.fullmatch(rf"tessera-{re.escape(ts.__version__)}\+servers-cp312-abi3-manylinux_\d+_\d+_x86_64\.whl", wheel.name)


def test_the_extension_by_the_stable_abi_asks_for_no_private_function_of_python():
    """By its undefined symbols: those with a leading underscore are private, but for these, which the limited API's macros use."""
    in_macros = {"_Py_Dealloc", "_Py_NoneStruct", "_Py_NotImplementedStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_EllipsisObject",
                 "_PyObject_GC_New", "_PyObject_New", "_PyWeakref_RefType"}
    symbols = subprocess.run(["nm", "-D", "--undefined-only", BIN / "client/python/stable_abi/_tessera.abi3.so"], capture_output=True, text=True, check=True)
    private = {line.split()[-1] for line in symbols.stdout.splitlines() if line.split()[-1].startswith("_Py")}
    assert not private - in_macros


@pytest.mark.parametrize("version", [version for version in pythons.VERSIONS if version >= STABLE_ABI], ids=name_of)
def test_the_wheel_by_the_stable_abi_works_in_a_clean_python(version, wheel, address, tmp_path):
    """An import, a cluster of its own, a sum, and a client of a cluster that is there."""
    if version not in pythons.others():
        pytest.skip(f"no {name_of(version)} is here (PATH, ~/.pyenv/versions)")
    subprocess.run([pythons.others()[version], "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    needed = subprocess.run([*pip, "--retries=1", "--timeout=15", "numpy>=2", "ml_dtypes>=0.5"], capture_output=True, text=True)
    if needed.returncode:
        pytest.skip(f"no package index has NumPy and ml_dtypes for {name_of(version)}: {needed.stderr[-300:]}")
    subprocess.run([*pip, "--no-index", wheel], check=True)
    (tmp_path / "try_it.py").write_text(TRY_IT)
    done = subprocess.run([python, "try_it.py", address], cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    line = 1 + TRY_IT.splitlines().index(next(line for line in TRY_IT.splitlines() if "# THE LINE" in line))
    *errors, (said, origin) = done.stdout.splitlines()[0], done.stdout.splitlines()[1], done.stdout.splitlines()[2].split()
    assert errors == [f"inv: singular matrix, at try_it.py:{line}"] * 2
    assert said.startswith(ts.__version__) and origin == str(tmp_path / f"lib/{name_of(version)}/site-packages/_tessera.abi3.so")
