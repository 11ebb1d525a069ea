"""Makes libraries in the place of NVIDIA's, with which torch is imported on a machine that has none of them.

torch from PyPI is linked with NVIDIA's libraries, which are several GB and do nothing without a GPU. Each one that torch
asks for becomes a small library of the same name: its functions of the CUDA runtime say that there is no device, those
that run when a library is loaded do nothing, those that name an error or a version do so, and all others trap, so that a call of
one is a crash and no wrong result.

    python stub_libraries.py SITE_PACKAGES     writes SITE_PACKAGES/nvidia/cu13/lib, where torch looks first
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

NVIDIA = re.compile(r"lib(cu|nccl|nv)")
ON_LOAD = re.compile(r"__cuda")      # registration of kernels, by static initialisers
RUNTIME = re.compile(r"cuda[A-Z]")
NO_DEVICE = 100                      # cudaErrorNoDevice
NO_DEVICE_TEXT = "no CUDA-capable device is detected"
GIVES_TEXT = re.compile(r"GetError(String|Name)$|^ncclGetLastError$")


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed_by(library: pathlib.Path) -> list[str]:
    return [m[1] for m in (re.search(r"\(NEEDED\).*\[(.*)\]", line) for line in lines_of("readelf", "-d", str(library))) if m]


def versions_of(library: pathlib.Path) -> dict[str, str]:
    """The library that has it, by each symbol version that a library asks for."""
    out, file = {}, ""
    for line in lines_of("readelf", "-V", "--wide", str(library)):
        if (m := re.search(r"File: (\S+)", line)):
            file = m[1]
        elif file and (m := re.search(r"Name: (\S+)\s+Flags", line)):
            out[m[1]] = file
    return out


def symbols_of(library: pathlib.Path, which: str) -> list[str]:
    return [line.split()[-1] for line in lines_of("nm", "-D", which, "--with-symbol-versions", str(library)) if line.split()]


def definition_of(symbol: str) -> str:
    """The function in C. What torch asks of a library that it has not begun to use must answer; a version that is given by value is 0."""
    if ON_LOAD.match(symbol):
        return f"long {symbol}(void) {{ return 0; }}"
    if symbol == "cudnnGetLastErrorString":     # writes it
        return f"void {symbol}(char* text, unsigned long size) {{ if (size > 0) *text = 0; }}"
    if re.match(r"cuGetError(String|Name)$", symbol):
        return f'int {symbol}(int error, const char** text) {{ *text = "{NO_DEVICE_TEXT}"; return {NO_DEVICE}; }}'
    if symbol.endswith("GetProperty"):          # a part of the version
        return f"int {symbol}(int part, int* value) {{ *value = 0; return 0; }}"
    if GIVES_TEXT.search(symbol):
        return f'const char* {symbol}(void) {{ return "{NO_DEVICE_TEXT}"; }}'
    if re.match(r"(cudnn|cublasLt)\w+Version$", symbol):
        return f"unsigned long {symbol}(void) {{ return 0; }}"
    if RUNTIME.match(symbol) or re.search(r"[a-z_][vV]ersion$", symbol):
        return f"long {symbol}(void) {{ return {NO_DEVICE}; }}"
    return f"long {symbol}(void) {{ __builtin_trap(); }}"


def write(folder: pathlib.Path, soname: str, symbols: dict[str, set[str]]) -> None:
    """`symbols`: by version, "" for those without one."""
    names = sorted(set().union(*symbols.values())) if symbols else []
    source = "\n".join(definition_of(name) for name in names)
    script = "\n".join(f"{version} {{ global: {'; '.join(sorted(symbols[version]))}; }};" for version in sorted(symbols) if version)
    with tempfile.TemporaryDirectory() as work:
        (pathlib.Path(work) / "stub.c").write_text(source + "\n")
        (pathlib.Path(work) / "stub.map").write_text(script + "\n")
        options = [f"-Wl,--version-script={work}/stub.map"] if script else []
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{soname}", *options,
                        "-o", str(folder / soname), f"{work}/stub.c"], check=True)


def main(site_packages: pathlib.Path) -> None:
    torch = site_packages / "torch"
    libraries = [*sorted((torch / "lib").glob("*.so*")), *sorted(torch.glob("_C*.so"))]
    sonames, versions, undefined, defined = set(), {}, set(), set()
    for library in libraries:
        sonames.update(name for name in needed_by(library) if NVIDIA.match(name) and name != "libcuda.so.1")
        versions.update(versions_of(library))
        undefined.update(symbols_of(library, "--undefined-only"))
        defined.update(name.split("@")[0] for name in symbols_of(library, "--defined-only"))
    of_library = collections.defaultdict(lambda: collections.defaultdict(set))
    rest = min(sonames)      # a symbol without a version is found wherever it is
    for name in undefined:
        symbol, _, version = name.partition("@")
        version = version.lstrip("@")
        if version:
            if versions.get(version) in sonames:
                of_library[versions[version]][version].add(symbol)
        elif re.match(r"_*(cu|nccl|nv|NV)", symbol) and symbol not in defined:
            of_library[rest][""].add(symbol)
    folder = site_packages / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True, exist_ok=True)
    for soname in sorted(sonames):
        write(folder, soname, of_library[soname])


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
