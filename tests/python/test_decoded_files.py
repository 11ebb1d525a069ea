"""HDF5, Parquet and zarr: files of the client's, decoded in its process and brought to the workers by slabs."""

import importlib
import os
import sys

import numpy as np
import pytest

import tessera as ts
from tessera import _decoded

S, R, P = ts.Shard, ts.Replicate, ts.Partial
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
PACKAGES = {".h5": "h5py", ".parquet": "pyarrow", ".zarr": "zarr"}


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


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS, *COMPLEX])
@pytest.mark.parametrize("placements", [[S(0), R()], [R(), S(1)], [S(1), S(0)], [S(0, sizes=[1, 8]), S(1)], [R(), R()]], ids=str)
def test_every_dtype_and_placement(mesh22, tmp_path, suffix, dtype, placements, monkeypatch):
    path = tmp_path / f"x{suffix}"
    array = numbers(of_rank(suffix, (9, 6, 7)), dtype)
    x = ts.distribute_tensor(array, mesh22, [R(), R()])
    monkeypatch.setattr(_decoded, "_AT_ONCE", 64)
    if suffix == ".parquet" and dtype in COMPLEX:
        with pytest.raises(ts.InvalidArgumentError, match="has no complex"):
            ts.save(path, {"x": x})
        return
    write(path, {"x": array})
    x = ts.load(path, mesh22, placements)["x"]
    assert list(x.placements) == placements and x.dtype == array.dtype
    np.testing.assert_array_equal(x.full_tensor(), array)
    ts.save(path, {"y": x})
    assert read(path, "y").dtype == array.dtype
    np.testing.assert_array_equal(read(path, "y"), array)
    np.testing.assert_array_equal(ts.load(path, mesh22, placements)["y"].full_tensor(), array)


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
@pytest.mark.parametrize("at_once", [4 << 20, 64])
def test_a_part_of_a_file(session, mesh22, tmp_path, suffix, index, at_once, monkeypatch):
    monkeypatch.setattr(_decoded, "_AT_ONCE", at_once)
    path = tmp_path / f"x{suffix}"
    array = numbers((27, 6), np.float32)
    write(path, {"x": array})
    file = ts.open(path)["x"]
    assert isinstance(file, ts.FileTensor)
    assert (file.shape, file.dtype, file.ndim, file.size, len(file), file.name) == ((27, 6), np.float32, 2, 162, 27, "x")
    assert "'x' of" in repr(file) and "float32[27, 6]" in repr(file)
    np.testing.assert_array_equal(file[index].full_tensor(), array[index])
    np.testing.assert_array_equal(file.load(mesh22, [R()] * 2, index=index).full_tensor(), array[index])


def test_only_what_is_wanted_is_read(session, tmp_path, suffix, monkeypatch):
    """And each chunk once, though slabs end within chunks."""
    path = tmp_path / f"x{suffix}"
    array = numbers((300_000, 6), np.float64)
    write(path, {"x": array})
    file, seen = ts.open(path)["x"], []
    whole = file._read
    file._read = lambda slices: seen.append((slices[0].start, slices[0].stop)) or whole(slices)
    np.testing.assert_array_equal(file[120_000:120_010].full_tensor(), array[120_000:120_010])
    assert len(seen) == 1 and seen[0][0] == 120_000
    del seen[:]
    np.testing.assert_array_equal(file.load().full_tensor(), array)
    assert [start for start, _ in seen] == [0, 100_000, 200_000] and seen[-1][1] == 300_000


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
            ts.open(path)["gaps"][:]
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


def test_a_session_that_ends_in_the_middle_leaves_the_old_file(new_cluster, tmp_path, suffix, monkeypatch):
    path = tmp_path / f"x{suffix}"
    session = new_cluster(memory="64MiB").connect()
    x = ts.ones((300_000, 6), device_mesh=session.default_mesh)
    ts.save(path, {"x": x[:5]})
    rows_of, calls = _decoded.rows_of, []

    def ends(x, start, stop):
        if len(calls) == 2:
            session.close()
        calls.append(start)
        return rows_of(x, start, stop)

    monkeypatch.setattr(_decoded, "rows_of", ends)
    with pytest.raises(ts.FailedPreconditionError):
        ts.save(path, {"x": x})
    assert read(path, "x").shape == (5, 6) and os.listdir(tmp_path) == [path.name]


def test_reading_that_fails_in_the_middle_fails_the_load_alone(session, mesh4, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, {"x": numbers((300_000, 6), np.float64)})
    file = ts.open(path)["x"]
    whole, calls = file._read, []

    def fails(slices):
        calls.append(slices)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        return whole(slices)

    file._read = fails
    with pytest.raises(ts.InvalidArgumentError, match="the disk is gone"):
        file.load(mesh4, [S(0)])
    file._read = whole
    assert float(file.load(mesh4, [S(0)]).max()) > 0


@pytest.mark.parametrize("module", ["h5py", "pyarrow.parquet", "zarr"])
def test_a_package_that_is_missing_is_named(session, tmp_path, monkeypatch, module):
    suffix = {"h5py": ".h5", "pyarrow.parquet": ".parquet", "zarr": ".zarr"}[module]
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib, "import_module", lambda name: exec(f"import {name}"))
    package = module.partition(".")[0]
    for call in (lambda: ts.open(tmp_path / f"x{suffix}"), lambda: ts.save(tmp_path / f"x{suffix}", {"x": ts.ones((2,))})):
        with pytest.raises(ts.FailedPreconditionError, match=f"pip install {package}"):
            call()
