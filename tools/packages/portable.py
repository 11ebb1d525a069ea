"""tools/wheel --check-portable: which sources of the client compile for macOS and Windows.

A source that includes a header of Unix or Linux, or a header of ours that does, is named with it and not tried. All others
must compile, by zig's clang and the systems' headers that come with it. Nothing is linked or run.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from checkout import ROOT, built

ZIG = "ziglang==0.17.1"    # from PyPI, 400 MB, outside the checkout
TARGETS = ("aarch64-macos", "x86_64-windows-gnu")
OF_ONE_SYSTEM = re.compile(r'^#include [<"]((?:sys|linux|arpa|netinet)/[^>"]+|kj/async-unix\.h|'
                           r'(?:unistd|fcntl|poll|dlfcn|signal|spawn|pthread|sched|dirent|netdb|ifaddrs)\.h)[>"]', re.MULTILINE)
# Debian's headers that are none of its C library.
PORTABLE_HEADERS = ("absl", "capnp", "kj", "openssl", "spdlog", "fmt", "nlohmann", "xxhash.h")


def sources() -> list[str]:
    """The sources of the Python extension, but for the part that needs the headers of a Python."""
    query = 'kind("source file", deps(//client/python:bindings))'
    listed = subprocess.run(["bazel", "--nohome_rc", "query", query], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = [label[2:].replace(":", "/") for label in listed.split() if label.startswith("//") and "//client/python" not in label]
    return sorted([name for name in named if name.endswith(".cc")] + [f"{name}.c++" for name in named if name.endswith(".capnp")])


def header_of_one_system(source: str, seen: set[str] | None = None) -> str | None:
    """The first header of Unix or Linux that it includes, itself or through headers of ours."""
    seen = {source} if seen is None else seen
    path = ROOT / source
    if not path.exists():       # what Bazel generates
        return None
    text = path.read_text(encoding="utf-8")
    if direct := OF_ONE_SYSTEM.search(text):
        return direct[1]
    for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE):
        if name not in seen and (ROOT / name).exists():
            seen.add(name)
            if found := header_of_one_system(name, seen):
                return f"{found} through {name}" if " through " not in found else found
    return None


def zig() -> pathlib.Path:
    """Installs it once."""
    home = pathlib.Path(os.environ.get("TESSERA_ZIG_HOME", pathlib.Path.home() / ".cache/tessera/zig"))
    if not (home / "ziglang/zig").exists():
        print(f"tools/wheel: {ZIG} into {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", home, ZIG], check=True)
    return home / "ziglang/zig"


def first_error(compiler: pathlib.Path, target: str, source: str, headers: pathlib.Path) -> str | None:
    """None when it compiles. Cap'n Proto 0.9 has comparisons that clang takes from C++17's rules alone."""
    path = source if (ROOT / source).exists() else f"bazel-bin/{source}"
    with tempfile.NamedTemporaryFile(suffix=".o") as output:
        done = subprocess.run([compiler, "c++", "-target", target, "-std=c++20", "-U__cpp_impl_three_way_comparison", "-O1", "-w", "-I.",
                               "-Ibazel-bin", "-isystem", headers, "-c", path, "-o", output.name], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr[-300:])


def check() -> int:
    """Prints what compiles and what doesn't; 1 when one that includes no such header doesn't."""
    built(None, ["client/python/_tessera.so"])
    all_sources = sources()
    bound = {source: header for source in all_sources if (header := header_of_one_system(source))}
    free = [source for source in all_sources if source not in bound]
    compiler = zig()
    failed = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name in PORTABLE_HEADERS:
            (pathlib.Path(folder) / name).symlink_to(pathlib.Path("/usr/include") / name)
        for target in TARGETS:
            tried = pool.map(lambda source: first_error(compiler, target, source, pathlib.Path(folder)), free)
            failed[target] = {source: error for source, error in zip(free, tried) if error}
            print(f"{target}: {len(free) - len(failed[target])} of {len(all_sources)} sources of the client compile", flush=True)
            for source, error in failed[target].items():
                print(f"  {source}: {error}")
    print(f"{len(bound)} are of one system:")
    for source, header in bound.items():
        print(f"  {source}: {header}")
    return 1 if any(failed.values()) else 0
