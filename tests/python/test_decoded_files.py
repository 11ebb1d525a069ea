"""HDF5, Parquet and zarr: decoded beside the workers, each what its shard takes; and what such files may be made of."""

import contextlib
import os
import signal
import sys

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE
from tessera import _encoded, _files
from tessera import decoder as beside
from waiting import wait_until

S, R, P = ts.Shard, ts.Replicate, ts.Partial
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
PACKAGES = {".h5": "h5py", ".parquet": "pyarrow", ".zarr": "zarr"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its workers serve the folders of this file's tests, and those alone."""
    with ts.local_cluster(4, memory="256MiB", files=tmp_path_factory.getbasetemp(), device=DEVICE) as cluster:
        yield cluster


def numbers(shape, dtype):
    array = np.random.default_rng(3).normal(scale=40, size=shape)
    return (array > 0) if np.dtype(dtype) == np.bool_ else np.abs(array).astype(dtype)


@pytest.fixture(params=PACKAGES)
def suffix(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def write(path, arrays):
    """By the library alone."""
    suffix = path.suffix
    if suffix == ".h5":
        import h5py
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                chunks = tuple(max(1, n // 3) for n in array.shape) if array.size and array.ndim else None
                file.create_dataset(name, data=array, chunks=chunks, compression="gzip" if chunks else None)
    elif suffix == ".zarr":
        import zarr
        group = zarr.create_group(path)
        for name, array in arrays.items():
            group.create_array(name, data=array, chunks=tuple(max(1, n // 3) for n in array.shape))
    else:
        import pyarrow
        import pyarrow.parquet
        columns = {name: array if array.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
                   for name, array in arrays.items()}
        rows = max(1, max(len(array) for array in arrays.values()) // 3)
        pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)


def read(path, name):
    """By the library alone."""
    if path.suffix == ".h5":
        import h5py
        with h5py.File(path, "r") as file:
            return file[name][()]
    if path.suffix == ".zarr":
        import zarr
        return zarr.open(path, mode="r")[name][()]
    import pyarrow.parquet
    column = pyarrow.parquet.read_table(path, columns=[name]).column(0).combine_chunks()
    extents = []
    while hasattr(column.type, "list_size"):
        extents.append(column.type.list_size)
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False).reshape(-1, *extents)


def of_rank(suffix, shape):
    return shape[:2] if suffix == ".parquet" else shape


@pytest.mark.parametrize("placements", [[S(0), R()], [R(), S(1)], [S(1), S(0)], [S(0, sizes=[1, 8]), S(1)], [R(), R()]], ids=str)
def test_every_dtype_and_placement(mesh22, tmp_path, suffix, placements, monkeypatch):
    path = tmp_path / f"x{suffix}"
    dtypes = ["bool", *INTEGERS, *FLOATS, *(() if suffix == ".parquet" else COMPLEX)]
    arrays = {dtype: numbers(of_rank(suffix, (9, 6, 7)), dtype) for dtype in dtypes}
    monkeypatch.setattr(_encoded, "_AT_ONCE", 64)
    write(path, arrays)
    loaded = ts.load(path, mesh22, placements)
    ts.save(path, {f"again {name}": x for name, x in loaded.items()})
    again = ts.load(path, mesh22, placements)
    for name, array in arrays.items():
        assert list(loaded[name].placements) == placements and loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name].full_tensor(), array)
        assert read(path, f"again {name}").dtype == array.dtype
        np.testing.assert_array_equal(read(path, f"again {name}"), array)
        np.testing.assert_array_equal(again[f"again {name}"].full_tensor(), array)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_parquet_has_no_complex_numbers(mesh22, tmp_path, dtype):
    pytest.importorskip("pyarrow")
    x = ts.distribute_tensor(numbers((9, 6), dtype), mesh22, [R(), R()])
    with pytest.raises(ts.InvalidArgumentError, match="has no complex"):
        ts.save(tmp_path / "x.parquet", {"x": x})


@pytest.mark.parametrize("placements", [[S(0)], [S(1)], [S(1, sizes=[1, 3, 0, 2])], [R()]], ids=str)
def test_what_is_larger_than_a_slab_comes_by_slabs(session, mesh4, tmp_path, suffix, placements):
    path = tmp_path / f"x{suffix}"
    array = numbers((333_334, 6), np.float64)      # 16 MB
    write(path, {"x": array})
    x = ts.open(path)["x"].load(mesh4, placements)
    np.testing.assert_array_equal(x.full_tensor(), array)
    part = ts.open(path)["x"][1000:300_001]
    np.testing.assert_array_equal(part.full_tensor(), array[1000:300_001])
    ts.save(path, {"x": x})
    np.testing.assert_array_equal(read(path, "x"), array)


@pytest.mark.parametrize("index", [np.s_[2:5], np.s_[::-2, 3], np.s_[..., None, 1:4:2], np.s_[5], np.s_[3:3], np.s_[-1, -1], np.s_[:, ::-1], np.s_[None, 1:]],
                         ids=str)
def test_a_part_of_a_file(session, mesh22, tmp_path, suffix, index):
    path = tmp_path / f"x{suffix}"
    array = numbers((27, 6), np.float32)
    write(path, {"x": array})
    file = ts.open(path)["x"]
    assert isinstance(file, ts.FileTensor)
    assert (file.shape, file.dtype, file.ndim, file.size, len(file), file.name) == ((27, 6), np.float32, 2, 162, 27, "x")
    assert "'x' of" in repr(file) and "float32[27, 6]" in repr(file)
    np.testing.assert_array_equal(file[index].full_tensor(), array[index])
    np.testing.assert_array_equal(file.load(mesh22, [R()] * 2, index=index).full_tensor(), array[index])


def test_only_what_is_wanted_is_decoded(tmp_path, suffix):
    """And each chunk once, though parts end within chunks."""
    path = tmp_path / f"x{suffix}"
    array = numbers((3000, 6), np.float64)
    write(path, {"x": array})
    file = os.open(path, os.O_RDONLY)
    stored, seen = beside.FORMATS[suffix](file)["x"], []
    whole = stored.read
    stored.read = lambda slices: seen.append((slices[0].start, slices[0].stop)) or whole(slices)
    reader = beside.Reader(stored)
    part = lambda start, stop: reader.part([(start, stop - start, 1), (0, 6, 1)])      # noqa: E731
    np.testing.assert_array_equal(part(1200, 1210), array[1200:1210])
    assert [rows for rows in seen if rows[0] < rows[1]] == [(1200, 2000)]
    reader, seen[:] = beside.Reader(stored), []
    for start in range(0, 3000, 300):
        np.testing.assert_array_equal(part(start, start + 300), array[start:start + 300])
    assert [rows for rows in seen if rows[0] < rows[1]] == [(0, 1000), (1000, 2000), (2000, 3000)]
    os.close(file)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (3, 0, 2)])
def test_shapes_at_the_edge(session, tmp_path, suffix, shape):
    if suffix == ".parquet" and (shape == () or 0 in shape[1:]):
        pytest.skip("a column has entries")
    path = tmp_path / f"x{suffix}"
    ts.save(path, {"x": ts.ones(shape, placements=[R()])})
    x = ts.load(path, placements=[R()])["x"]
    assert x.shape == shape and x.dtype == np.float64 and (x.full_tensor() == 1).all()


def test_several_tensors_of_one_file(session, mesh4, tmp_path, suffix):
    arrays = {"weight": numbers((6, 5), np.float32), "steps": numbers((6,), np.int64), "mask": numbers((6, 2), np.bool_)}
    path = tmp_path / f"model{suffix}"
    ts.save(path, {name: ts.distribute_tensor(a, mesh4, [S(0)]) for name, a in arrays.items()}, metadata={"epoch": "3"})
    assert sorted(ts.open(path)) == sorted(arrays)
    found = ts.load(path, mesh4, [R()])
    assert sorted(found) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name].full_tensor(), array)
    assert list(ts.load(path, names=["steps"])) == ["steps"]
    with pytest.raises(ts.InvalidArgumentError, match="has no 'bias'; it has mask, steps, weight"):
        ts.load(path, names=["bias"])
    terms = ts.from_local(lambda position: arrays["weight"], mesh4, [P("sum")])
    ts.save(path, {"sum": terms})
    np.testing.assert_allclose(read(path, "sum"), 4 * arrays["weight"], rtol=1e-6)


def test_names_in_groups(session, mesh4, tmp_path, suffix):
    if suffix == ".parquet":
        pytest.skip("columns have no groups")
    path = tmp_path / f"x{suffix}"
    ts.save(path, {"a/b/c": ts.arange(5, device_mesh=mesh4), "a/d": ts.arange(3, device_mesh=mesh4)})
    assert sorted(ts.open(path)) == ["a/b/c", "a/d"]
    np.testing.assert_array_equal(ts.load(path)["a/b/c"].full_tensor(), np.arange(5))


def test_a_zarr_array_is_one_tensor(session, mesh4, tmp_path):
    zarr = pytest.importorskip("zarr")
    array = numbers((9, 4), np.float32)
    ts.save(tmp_path / "x.zarr", ts.distribute_tensor(array, mesh4, [S(0)]), metadata={"epoch": "3"})
    opened = zarr.open(tmp_path / "x.zarr", mode="r")
    np.testing.assert_array_equal(opened[:], array)
    assert dict(opened.attrs) == {"epoch": "3"}
    assert isinstance(ts.open(tmp_path / "x.zarr"), ts.FileTensor)
    np.testing.assert_array_equal(ts.load(tmp_path / "x.zarr", mesh4, [R()]).full_tensor(), array)
    with pytest.raises(TypeError, match="one tensor"):
        ts.load(tmp_path / "x.zarr", names=["x"])


# ---- what is wrong --------------------------------------------------------------------------------

def test_a_file_that_is_cut(session, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"x": numbers((3000, 40), np.float64)})
    if suffix == ".zarr":
        path = path / "x"
        victim = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
        path = path.parent
    else:
        victim = path
    for size in (victim.stat().st_size // 2, 7, 0):
        os.truncate(victim, size)
        with pytest.raises(ts.InvalidArgumentError, match=f"x{suffix}"):
            ts.load(path)["x"].wait()
    assert float(ts.ones((4,)).sum()) == 4


def test_a_file_that_is_something_else(session, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(ts.InvalidArgumentError, match=f"x{suffix}"):
        ts.open(path)
    with pytest.raises(ts.NotFoundError):
        ts.open(tmp_path / f"none{suffix}")


def test_what_is_no_tensor_is_left_out(session, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    if suffix == ".h5":
        import h5py
        with h5py.File(path, "w") as file:
            file["x"], file["words"], file["group/none"] = np.arange(3), ["a", "b"], h5py.Empty("f4")
    elif suffix == ".zarr":
        import zarr
        group = zarr.create_group(path)
        group.create_array("x", data=np.arange(3))
        group.create_array("words", data=np.array([1, 2], "datetime64[s]"))
    else:
        import pyarrow
        import pyarrow.parquet
        pyarrow.parquet.write_table(pyarrow.table({"x": np.arange(3), "words": ["a", "b", "c"], "gaps": pyarrow.array([1.0, None, 2.0])}), path)
        with pytest.raises(ts.InvalidArgumentError, match="'gaps' has values that are missing"):
            ts.open(path)["gaps"][:].wait()
    assert np.array_equal(ts.open(path)["x"][:].full_tensor(), np.arange(3)) and "words" not in ts.open(path)
    with pytest.raises(ts.InvalidArgumentError, match="has no 'words'"):
        ts.load(path, names=["words"])


def test_what_a_format_does_not_have_is_refused_and_the_old_file_stays(session, mesh4, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    x = ts.arange(8, device_mesh=mesh4)
    ts.save(path, {"x": x})
    with pytest.raises(ts.InvalidArgumentError, match="bfloat16"):
        ts.save(path, {"x": x.astype(ts.bfloat16)})
    with pytest.raises(TypeError, match="dict of tensors"):
        ts.save(path, [x])
    with pytest.raises(TypeError, match="metadata"):
        ts.save(path, {"x": x}, metadata={"a": 1})
    np.testing.assert_array_equal(read(path, "x"), np.arange(8))
    assert os.listdir(tmp_path) == [path.name]


def test_columns_have_one_number_of_rows(session, mesh4, tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(ts.InvalidArgumentError, match=r"'a' has \[3\], 'b' has \[4, 2\]"):
        ts.save(tmp_path / "x.parquet", {"a": ts.ones((3,)), "b": ts.ones((4, 2))})


def test_a_session_that_ends_in_the_middle_leaves_the_old_file(cluster, tmp_path, suffix, monkeypatch):
    """All that is written is written before the file has its name."""
    path = tmp_path / f"x{suffix}"
    session = cluster.connect()
    x = ts.ones((300_000, 6), device_mesh=session.default_mesh)
    ts.save(path, {"x": x[:5]})
    monkeypatch.setattr(_files, "bar_of", lambda *_: session.close() or contextlib.nullcontext())
    with pytest.raises(ts.TesseraError):
        ts.save(path, {"x": x})
    wait_until(lambda: os.listdir(tmp_path) == [path.name])
    assert read(path, "x").shape == (5, 6)


def test_no_tensor_passes_through_the_client(session, mesh4, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"x": numbers((3000, 40), np.float64)})
    with session.comm_debug() as moved:
        ts.load(path, mesh4, [S(1)])["x"].wait()
    assert sum(moved.bytes_received) == sum(moved.bytes_sent) == 0


def test_what_lies_plainly_is_read_by_the_workers_themselves(session, mesh4, tmp_path):
    h5py = pytest.importorskip("h5py")
    array = numbers((300, 8), ">f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["plain"] = array
        file.create_dataset("packed", data=array, chunks=(7, 3), compression="gzip", shuffle=True)
    opened = ts.open(tmp_path / "x.h5")
    assert not opened["plain"]._is_decoded and opened["packed"]._is_decoded
    for name in opened:
        for placements in ([S(0)], [S(1)], [R()]):
            np.testing.assert_array_equal(opened[name].load(mesh4, placements).full_tensor(), array)
        np.testing.assert_array_equal(opened[name][::-7, 2:].full_tensor(), array[::-7, 2:])


def test_a_saved_hdf5_file_is_written_plainly_by_the_workers(session, mesh4, tmp_path):
    h5py = pytest.importorskip("h5py")
    x = ts.distribute_tensor(numbers((300, 8), np.float64), mesh4, [S(1)])
    many = {f"layer/{i}/weight": x[i:] for i in range(200)}
    ts.save(tmp_path / "x.h5", many)
    assert not any(one._is_decoded for one in ts.open(tmp_path / "x.h5").values())
    with h5py.File(tmp_path / "x.h5") as file:
        for i in (0, 57, 199):
            np.testing.assert_array_equal(file[f"layer/{i}/weight"][:], x[i:].full_tensor())


@pytest.mark.parametrize("path", ["../secret{suffix}", "/etc/secret{suffix}"])
def test_no_path_leads_out(session, tmp_path, suffix, path):
    with pytest.raises((ts.PermissionDeniedError, ts.NotFoundError)):
        ts.load(path.format(suffix=suffix))
    with pytest.raises((ts.PermissionDeniedError, ts.NotFoundError)):
        ts.save(path.format(suffix=suffix), {"x": ts.ones((3,))})


def test_links_of_a_zarr_folder_lead_nowhere(session, tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.create_array(tmp_path / "secret", data=np.ones(3))
    zarr.create_group(tmp_path / "x.zarr").create_array("x", data=np.arange(6.0), chunks=(6,))
    os.symlink(tmp_path / "secret", tmp_path / "x.zarr" / "linked")
    assert sorted(ts.open(tmp_path / "x.zarr")) == ["x"]
    chunk = tmp_path / "x.zarr" / "x" / "c" / "0"
    chunk.unlink()
    os.symlink(tmp_path / "secret" / "c" / "0", chunk)
    with pytest.raises(ts.PermissionDeniedError, match="is a link"):
        ts.load(tmp_path / "x.zarr")["x"].wait()


def test_hdf5_values_in_another_file_are_refused(session, tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(80))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.ones(3)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("outside", (10,), "f8", external=[(str(tmp_path / "secret"), 0, 80)])
        layout = h5py.VirtualLayout((3,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (3,))
        file.create_virtual_dataset("virtual", layout)
        file["linked"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
    opened = ts.open(tmp_path / "x.h5")
    assert sorted(opened) == ["outside", "virtual"]
    for one in opened.values():
        with pytest.raises(ts.InvalidArgumentError, match="its values lie in another file"):
            one.load()


def zeros_of_zstd(nbytes):
    """A frame of blocks that each say "128 KiB of zeros" in four bytes."""
    block, size = 128 << 10, nbytes.to_bytes(8, "little")
    count = nbytes // block
    blocks = b"".join((block << 3 | 1 << 1 | (i == count - 1)).to_bytes(3, "little") + b"\0" for i in range(count))
    return b"\x28\xb5\x2f\xfd\xe0" + size + blocks


def test_what_takes_too_much_memory_fails_that_load_alone(session, mesh4, tmp_path):
    """8 GiB of zeros in a chunk of 256 KiB."""
    zarr = pytest.importorskip("zarr")
    rows = 1 << 30
    zarr.create_array(tmp_path / "bomb.zarr", shape=(rows,), chunks=(rows,), dtype="f8", compressors=zarr.codecs.ZstdCodec())
    chunk = tmp_path / "bomb.zarr" / "c" / "0"
    chunk.parent.mkdir(exist_ok=True)
    chunk.write_bytes(zeros_of_zstd(8 * rows))
    file = ts.open(tmp_path / "bomb.zarr")
    with pytest.raises(ts.TesseraError, match="bomb.zarr"):
        file[:10].wait()
    np.save(tmp_path / "x.npy", np.arange(3))
    assert ts.load(tmp_path / "x.npy").full_tensor().tolist() == [0, 1, 2]
    ts.save(tmp_path / "x.zarr", ts.arange(8, device_mesh=mesh4))
    assert ts.load(tmp_path / "x.zarr").full_tensor().tolist() == list(range(8))


def decoders_of(pids):
    """The decoders of these workers."""
    out = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and b"tessera.decoder" in open(f"/proc/{entry}/cmdline", "rb").read() and \
                    int(open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[1]) in pids:
                out.append(int(entry))
        except OSError:
            pass
    return out


def test_a_decoder_that_dies_is_started_anew(new_cluster, tmp_path, suffix):
    cluster = new_cluster(2, memory="64MiB", files=tmp_path)
    with cluster.connect() as session:
        array = numbers((3000, 6), np.float64)
        write(tmp_path / f"x{suffix}", {"x": array})
        file = ts.open(f"x{suffix}", session=session)["x"]
        np.testing.assert_array_equal(file[:].full_tensor(), array)
        found = decoders_of(cluster.worker_pids)
        assert len(found) == 2
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        # Its threads, too: each holds its line to the worker.
        wait_until(lambda: all(len(os.listdir(f"/proc/{pid}/task")) == 1 and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
                               for pid in found))
        np.testing.assert_array_equal(file[:].full_tensor(), array)
    cluster.stop()
    wait_until(lambda: not [pid for pid in decoders_of(range(1 << 22)) if pid in found])


@pytest.mark.parametrize("python, text", [("/no/such/python", "does not start"), ("/bin/false", "it ended before it answered: exit status 1"), ("", "started without --decoder")])
def test_a_worker_without_a_decoder_says_so(new_cluster, tmp_path, python, text):
    cluster = new_cluster(1, files=tmp_path, worker_flags=["--decoder", python])
    write(tmp_path / "x.zarr", {"x": np.ones(3)})
    with cluster.connect() as session:
        with pytest.raises(ts.TesseraError, match=f"worker 0: .*x.zarr: decoder: .*{text}"):
            ts.open("x.zarr", session=session)


@pytest.mark.parametrize("module", ["h5py", "pyarrow", "zarr"])
def test_a_package_that_is_missing_is_named(new_cluster, tmp_path, monkeypatch, module):
    suffix = {"h5py": ".h5", "pyarrow": ".parquet", "zarr": ".zarr"}[module]
    write(tmp_path / f"x{suffix}", {"x": np.ones(3)})
    (tmp_path / "hides" / module).mkdir(parents=True)
    (tmp_path / "hides" / module / "__init__.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/hides:{os.environ.get('PYTHONPATH', '')}")
    with new_cluster(1, files=tmp_path).connect() as session:
        with pytest.raises(ts.FailedPreconditionError, match=f"{module} is not installed where the worker runs.*pip install {module}"):
            ts.open(f"x{suffix}", session=session)


def test_a_file_that_changes_is_refused(session, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"x": numbers((30, 6), np.float64)})
    file = ts.open(path)["x"]
    os.utime(path, (1, 1))
    with pytest.raises(ts.FailedPreconditionError, match="has changed since it was looked at"):
        file[:3].wait()


@pytest.mark.parametrize("module", ["h5py", "pyarrow.parquet"])
def test_what_a_save_needs_here_is_named(session, tmp_path, monkeypatch, module):
    suffix = {"h5py": ".h5", "pyarrow.parquet": ".parquet"}[module]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ts.FailedPreconditionError, match=f"pip install {module.partition('.')[0]}"):
        ts.save(tmp_path / f"x{suffix}", {"x": ts.ones((3,))})
