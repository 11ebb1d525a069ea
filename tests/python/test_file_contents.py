"""A file is what it says, or an error: files that change, types that are not ours, folders that are not a save's."""

import contextlib
import json
import os
import shutil
import stat

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE
from tessera import decoder as beside
from tessera._stored import Refusal, Stored

S, R = ts.Shard, ts.Replicate


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its workers serve the folders of this file's tests."""
    with ts.local_cluster(4, memory="128MiB", files=tmp_path_factory.getbasetemp(), device=DEVICE) as cluster:
        yield cluster


def test_a_zarr_array_that_is_written_over_in_place_is_read_anew_by_all_workers(session, mesh4, tmp_path):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", shape=(64,), chunks=(8,), dtype="f8")
    for value in range(4):
        array[:] = value
        loaded = ts.load(tmp_path / "x.zarr", mesh4, [S(0)])
        assert [float(loaded.to_local([worker]).max()) for worker in range(4)] == [value] * 4


# ---- types of HDF5: h5py converts the values; the workers read only what is NumPy's type to the bit ----


def written(path, kind, values):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        space = h5py.h5s.create_simple(np.shape(values))
        one = h5py.h5d.create(file.id, b"x", kind(h5py), space)
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
        file["plain"] = np.arange(5.0)
    with h5py.File(path) as file:
        return file["x"][()]


@pytest.mark.parametrize("precision, offset", [(12, 0), (12, 4), (16, 0)])
def test_integers_of_few_bits(session, mesh4, tmp_path, precision, offset):
    def kind(h5py):
        made = h5py.h5t.STD_U16LE.copy()
        made.set_precision(precision)
        made.set_offset(offset)
        return made
    values = np.arange(40, dtype=np.uint16) * 37
    want = written(tmp_path / "x.h5", kind, values)
    np.testing.assert_array_equal(ts.load(tmp_path / "x.h5", mesh4, [S(0)])["x"].full_tensor(), want)


def test_floats_of_another_layout(session, mesh4, tmp_path):
    def kind(h5py):     # bfloat16: a float32 without its last 16 bits
        made = h5py.h5t.IEEE_F32LE.copy()
        made.set_fields(15, 7, 8, 0, 7)
        made.set_size(2)
        made.set_ebias(127)
        return made
    values = np.linspace(-4, 4, 40, dtype=np.float32)
    want = written(tmp_path / "x.h5", kind, values)
    np.testing.assert_array_equal(ts.load(tmp_path / "x.h5", mesh4, [S(0)])["x"].full_tensor(), want)


def test_bools_of_four_bytes(session, mesh4, tmp_path):
    def kind(h5py):
        made = h5py.h5t.enum_create(h5py.h5t.STD_I32LE)
        made.enum_insert(b"FALSE", 0)
        made.enum_insert(b"TRUE", 1)
        return made
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        one = h5py.h5d.create(file.id, b"x", kind(h5py), h5py.h5s.create_simple((6,)))
        one.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 0, 1, 1, 0, 0], np.int32), mtype=kind(h5py))
    with h5py.File(tmp_path / "x.h5") as file:
        want = file["x"][()]
    loaded = ts.load(tmp_path / "x.h5", mesh4, [R()])
    np.testing.assert_array_equal(loaded["x"].full_tensor(), want)


def test_a_type_that_numpy_has_no_name_for_is_left_out(session, mesh4, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        made = h5py.h5t.STD_I32LE.copy()
        made.set_precision(24)
        made.set_size(3)
        h5py.h5d.create(file.id, b"three", made, h5py.h5s.create_simple((6,)))
        file["plain"] = np.arange(5.0)
    loaded = ts.load(tmp_path / "x.h5", mesh4, [R()])
    assert "plain" in loaded
    np.testing.assert_array_equal(loaded["plain"].full_tensor(), np.arange(5.0))


@pytest.mark.parametrize("change", [
    lambda folder: os.mkdir(folder / "more"),
    lambda folder: shutil.rmtree(folder) if folder.exists() else None,
])
def test_a_folder_that_changes_while_it_is_looked_at_is_an_error(tmp_path, monkeypatch, change):
    folder = tmp_path / "x.zarr"
    folder.mkdir()
    (folder / "zarr.json").write_text("{}")

    def read(file):
        with contextlib.suppress(FileExistsError):
            change(folder)
        return {"x": Stored(np.float64, (1,), lambda key: np.zeros(1), member="x\nstamp")}
    monkeypatch.setitem(beside.FORMATS, ".zarr", read)
    fd = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(Refusal, match="was changed or replaced while it was looked at"):
            beside.Decoder(bytearray(4096)).answer({"do": "describe", "format": ".zarr"}, "", fd)
    finally:
        os.close(fd)


def test_a_group_within_a_store_that_changes_while_it_is_looked_at_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "x.zarr").mkdir()
    names = iter(["a", "b"])
    monkeypatch.setitem(beside.FORMATS, ".zarr", lambda file: {next(names): Stored(np.float64, (1,), lambda key: np.zeros(1), member="x\nstamp")})
    fd = os.open(tmp_path / "x.zarr", os.O_RDONLY)
    try:
        with pytest.raises(Refusal, match="was changed or replaced"):
            beside.Decoder(bytearray(4096)).answer({"do": "describe", "format": ".zarr"}, "", fd)
    finally:
        os.close(fd)


def test_what_is_decoded_and_larger_than_what_is_kept_is_not_kept(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(500,))
        file.create_dataset("y", data=np.arange(1000.0), chunks=(50,))
    buffer = bytearray(1 << 16)
    decoder = beside.Decoder(buffer)
    fd = os.open(tmp_path / "x.h5", os.O_RDONLY)
    try:
        count = decoder.answer({"do": "describe", "format": ".h5"}, "", fd)
        assert set(json.loads(bytes(buffer[:count]))) == {"x", "y"}
        for kept, names in ((1 << 20, {"x", "y"}), (1000, {"y"})):
            monkeypatch.setattr(beside, "_KEPT", kept)
            for name in ("y", "x"):
                decoder.answer({"do": "read", "format": ".h5", "item": 8, "offset": 0, "extents": [3], "strides": [8]}, name, fd)
                np.testing.assert_array_equal(np.frombuffer(bytes(buffer[:24])), [0.0, 1.0, 2.0])
            assert set(decoder._readers) == names
    finally:
        os.close(fd)


# ---- small ones ----------------------------------------------------------------------------------

def entry(kind="F32", shape=(2,), offsets=(0, 8)):
    return json.dumps({"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)})


@pytest.mark.parametrize("header, words", [
    (f'{{"x": {entry(shape=(2.7,))}}}', "2.7 is no whole number"),
    (f'{{"x": {entry(shape=(True, 2))}}}', "True is no whole number"),
    (f'{{"x": {entry(offsets=(0, 8.0))}}}', "8.0 is no whole number"),
    (f'{{"x": {entry()}, "x": {entry()}}}', "'x' is there twice"),
    (f'{{"x": {entry()}, "y": {entry(offsets=(4, 12))}}}', "'x' and 'y' have the same bytes, 4 to 8"),
])
def test_a_safetensors_header_that_makes_no_sense(session, tmp_path, header, words):
    head = header.encode()
    (tmp_path / "x.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(16))
    with pytest.raises(ts.InvalidArgumentError, match=words):
        ts.load(tmp_path / "x.safetensors")


def test_names_that_a_file_cant_have(session, mesh4, tmp_path):
    x = ts.arange(4, device_mesh=mesh4)
    with pytest.raises(ts.InvalidArgumentError, match="take another name"):
        ts.save(tmp_path / "x.safetensors", {"__metadata__": x})
    with pytest.raises(ts.InvalidArgumentError, match="can't be written as UTF-8"):
        ts.save(tmp_path / "x.safetensors", {"a\udcff": x})
    ts.save(tmp_path / "x.npy", x)
    for call in (ts.load, ts.open, lambda path: ts.save(path, x)):
        for path in (f"{tmp_path}/x.npy\0.npy", f"{tmp_path}/\udcff.npy"):
            with pytest.raises(ts.InvalidArgumentError, match="is no path"):
                call(path)


def test_a_chunk_of_zarr_that_is_no_file_is_an_error(session, mesh4, tmp_path):
    zarr = pytest.importorskip("zarr")
    for make in (os.mkfifo, os.mkdir):
        folder = tmp_path / make.__name__ / "x.zarr"
        zarr.create_array(folder, shape=(16,), chunks=(8,), dtype="f8")[:] = 7.0
        chunk = next(path for path in folder.rglob("*") if path.is_file() and path.name == "1")
        chunk.unlink()
        make(chunk)
        with pytest.raises(ts.TesseraError, match="no regular file|can't be opened|directory"):
            ts.load(folder, mesh4, [R()]).wait()


# ---- what a save replaces, and how -------------------------------------------------------------

@pytest.mark.parametrize("name, inside, words", [
    ("package", ["__init__.py", "_core.py"], "none of them is a .parquet file"),
    ("hidden", [".git", ".bashrc"], "none of them is a .parquet file"),
    ("data.zarr", ["notes.txt"], "no zarr store"),
    ("data.zarr", ["c/0"], "no zarr store"),
])
def test_a_folder_that_is_no_save_is_not_replaced(session, mesh4, tmp_path, name, inside, words):
    pytest.importorskip("zarr" if name.endswith("zarr") else "pyarrow")
    for one in inside:
        (tmp_path / name / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / one).write_text("work")
    with pytest.raises(ts.InvalidArgumentError, match=words):
        ts.save(tmp_path / name, {"x": ts.arange(8, device_mesh=mesh4)})
    assert all((tmp_path / name / one).read_text() == "work" for one in inside)


@pytest.mark.parametrize("name", ["table", "data.zarr"])
def test_an_empty_folder_and_a_save_are_replaced(session, mesh4, tmp_path, name):
    pytest.importorskip("zarr" if name.endswith("zarr") else "pyarrow")
    (tmp_path / name).mkdir()
    for value in (1, 2):
        ts.save(tmp_path / name, {"x": ts.full((8,), value, device_mesh=mesh4)})
        assert ts.load(tmp_path / name, mesh4, [R()])["x"].full_tensor().tolist() == [value] * 8


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "table", "x.zarr"])
def test_saves_have_the_modes_of_the_umask_or_of_what_they_replace(tmp_path, name):
    pytest.importorskip("zarr" if name.endswith("zarr") else "pyarrow")
    before = os.umask(0o027)
    try:
        with ts.local_cluster(1, memory="64MiB", files=tmp_path, device=DEVICE) as cluster, cluster.connect() as session:
            x = ts.arange(8, device_mesh=session.default_mesh)
            path = tmp_path / name
            saved = x if name == "x.npy" else {"x": x}
            ts.save(path, saved)
            is_folder = path.is_dir()
            assert mode(path) == (0o750 if is_folder else 0o640)
            for below in path.rglob("*") if is_folder else ():
                assert mode(below) == (0o750 if below.is_dir() else 0o640), below
            os.chmod(path, 0o700 if is_folder else 0o600)
            ts.save(path, saved)
            assert mode(path) == (0o700 if is_folder else 0o600)
    finally:
        os.umask(before)


def test_folders_of_other_access_in_each_other_are_refused(tmp_path):
    (tmp_path / "data" / "raw").mkdir(parents=True)
    with pytest.raises(ts.TesseraError, match="lie one in the other, and one is served for reading alone"):
        ts.local_cluster(1, memory="64MiB", files=[tmp_path, f"{tmp_path / 'data' / 'raw'}:ro"], device=DEVICE).stop()
    ts.local_cluster(1, memory="64MiB", files=[tmp_path, tmp_path / "data" / "raw"], device=DEVICE).stop()
