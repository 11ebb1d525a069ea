"""tools/image: the layout that it writes, with a wheel and a root of some files. What is in it is checked by its digests, and by skopeo
where that is installed."""

import gzip
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/packages"))
import build_image  # noqa: E402


def wheel_of(path, names):
    with zipfile.ZipFile(path, "w") as packed:
        for name in names:
            packed.writestr(name, f"#!/bin/sh\necho {name}\n")
    return path


def base_of(path):
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("./etc/os-release")
        entry.size = 3
        tar.addfile(entry, io.BytesIO(b"ID\n"))
    return path


def blob(folder, descriptor):
    data = (folder / "blobs/sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    assert len(data) == descriptor["size"] and descriptor["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()
    return data


def test_the_layout_has_layers_by_their_digests_and_the_programs_in_path(tmp_path):
    names = [f"tessera/bin/{name}" for name in build_image.PROGRAMS] + ["tessera/lib/libucp.so.0", "tessera.libs/libabsl.so", "tessera/ray.py"]
    programs = build_image.program_layer(tmp_path, wheel_of(tmp_path / "a.whl", names))
    layout = tmp_path / "layout"
    build_image.make([base_of(tmp_path / "base.tar"), programs], layout, "tessera:0.1.0")
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(layout, index["manifests"][0]))
    config = json.loads(blob(layout, manifest["config"]))
    layers = [gzip.decompress(blob(layout, layer)) for layer in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
    assert config["config"]["User"] == "10001:10001"
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as tar:
        found = {member.name: member for member in tar}
    assert "opt/tessera/tessera/lib/libucp.so.0" in found and "opt/tessera/tessera.libs/libabsl.so" in found
    assert not any(name.endswith("ray.py") for name in found)
    for name in build_image.PROGRAMS:
        assert found[found[f"usr/local/bin/{name}"].linkname.lstrip("/")].mode & 0o111
    if shutil.which("skopeo"):
        seen = subprocess.run(["skopeo", "inspect", f"oci:{layout}"], capture_output=True, text=True, timeout=60)
        assert seen.returncode == 0 and len(json.loads(seen.stdout)["Layers"]) == 2, seen.stderr


def test_a_wheel_without_the_programs_is_named(tmp_path):
    with pytest.raises(SystemExit, match="it is not one of tools/wheel --full"):
        build_image.program_layer(tmp_path, wheel_of(tmp_path / "a.whl", ["tessera/bin/tessera"]))
