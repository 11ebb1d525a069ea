"""The parts of both packages: the checkout, its version, and what Bazel has built."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("client/cli/tessera", "server/coordinator/tessera-coordinator", "server/worker/tessera-worker")


def version() -> str:
    """The version in schemas/types/version.h."""
    header = (ROOT / "schemas/types/version.h").read_text(encoding="utf-8")
    return re.search(r'kVersion\[\] = "([^"]+)"', header)[1]


def target_of(output: str) -> str:
    """Its label: Bazel's package is the innermost folder that has a BUILD file."""
    package = next(folder for folder in pathlib.PurePath(output).parents if (ROOT / folder / "BUILD").exists())
    return f"//{package}:{pathlib.PurePath(output).relative_to(package)}"


def built(bin_dir: pathlib.Path | None, outputs: list[str]) -> pathlib.Path:
    """The folder that has these outputs of Bazel: what is there already where `bin_dir` is given, else they are built."""
    if bin_dir is None:
        targets = [target_of(output) for output in outputs]
        subprocess.run(["bash", ROOT / "tools/build", *targets], check=True)
        bin_dir = ROOT / "bazel-bin"
    missing = [output for output in outputs if not (bin_dir / output).exists()]
    if missing:
        sys.exit(f"{sys.argv[0]}: {bin_dir} has no {', '.join(missing)}; build them, or leave out --bin-dir")
    return bin_dir


def copy(source: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """A copy that can be written to, with the same permission to run."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o111 else 0o644)
    return target
