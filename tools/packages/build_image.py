"""tools/image: an OCI archive with the programs. See tools/image."""

import argparse
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUITE = "bookworm"
PACKAGES = ("ca-certificates", "libstdc++6")
USER = 10001      # deploy/kubernetes has the same
PROGRAMS = ("tessera", "tessera-coordinator", "tessera-worker")


def fail(message):
    sys.exit(f"tools/image: {message}")


def base_layer(folder):
    """Debian's smallest root, as a tar file."""
    if shutil.which("mmdebstrap") is None:
        if os.geteuid() != 0:
            fail("mmdebstrap is missing; install it as root")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"], env=environment, stdout=sys.stderr, check=True)
    file = folder / "base.tar"
    done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, file], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        fail(f"mmdebstrap: {done.stderr[-2000:]}")
    return file


def program_layer(folder, wheel):
    """The wheel's programs with the libraries that it has for them, in /opt/tessera, as a tar file that is the same for the same wheel."""
    file = folder / "programs.tar"
    with zipfile.ZipFile(wheel) as packed, tarfile.open(file, "w") as tar:
        names = {name for name in packed.namelist() if name.startswith(("tessera/bin/", "tessera/lib/")) or ".libs/" in name}
        missing = [name for name in PROGRAMS if f"tessera/bin/{name}" not in names]
        if missing:
            fail(f"{wheel} has no {missing[0]}: it is not one of tools/wheel --full")
        for name in sorted(names):
            if name.endswith("/"):
                continue
            entry = tarfile.TarInfo(f"opt/tessera/{name}")
            entry.size, entry.mode = packed.getinfo(name).file_size, 0o755
            tar.addfile(entry, io.BytesIO(packed.read(name)))
        for name in PROGRAMS:
            entry = tarfile.TarInfo(f"usr/local/bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, f"/opt/tessera/tessera/bin/{name}"
            tar.addfile(entry)
    return file


class Layout:
    """An OCI image layout: blobs by their digests."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))

    def add(self, data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def add_json(self, value, media_type):
        return self.add(json.dumps(value, indent=1).encode(), media_type)


def make(layers, folder, name):
    """The layout of an image of these layers."""
    layout = Layout(folder)
    descriptors, diff_ids = [], []
    for layer in layers:
        data = layer.read_bytes()
        diff_ids.append("sha256:" + hashlib.sha256(data).hexdigest())
        descriptors.append(layout.add(gzip.compress(data, 6, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip"))
    config = layout.add_json({"architecture": "amd64", "os": "linux", "config": {"User": f"{USER}:{USER}", "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["tessera", "--help"]},
                              "rootfs": {"type": "layers", "diff_ids": diff_ids}}, "application/vnd.oci.image.config.v1+json")
    manifest = layout.add_json({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": descriptors},
                               "application/vnd.oci.image.manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}, indent=1))


def main():
    parser = argparse.ArgumentParser(prog="tools/image", description="Makes an OCI archive with the programs, of Debian's packages and the wheel.")
    parser.add_argument("--wheel", type=pathlib.Path, help="one of tools/wheel --full (default: it is made)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist/tessera-image.tar")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-image-") as folder:
        work = pathlib.Path(folder)
        if options.wheel is None:
            subprocess.run([ROOT / "tools/wheel", "--full", "--out", work], stdout=sys.stderr, check=True)
            options.wheel = next(work.glob("*.whl"))
        if not options.wheel.is_file():
            fail(f"there is no {options.wheel}")
        programs = program_layer(work, options.wheel)
        make([base_layer(work), programs], work / "layout", "tessera:0.1.0")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        half = options.out.with_name(options.out.name + ".new")
        with tarfile.open(half, "w") as tar:
            for entry in sorted((work / "layout").rglob("*")):
                tar.add(entry, entry.relative_to(work / "layout"), recursive=False)
        half.rename(options.out)
    print(f"{options.out} ({options.out.stat().st_size >> 20} MiB)")


if __name__ == "__main__":
    main()
