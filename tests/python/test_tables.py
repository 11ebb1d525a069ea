"""Folders of Parquet: each worker writes and reads its own rows; and what such folders may be made of."""

import contextlib
import os
import shutil
import signal

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE
from tessera import _files
from waiting import wait_until

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

S, R, P = ts.Shard, ts.Replicate, ts.Partial
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Its workers serve the folders of this file's tests, and those alone."""
    with ts.local_cluster(4, memory="256MiB", files=tmp_path_factory.getbasetemp(), device=DEVICE) as cluster:
        yield cluster


@pytest.fixture
def at(session, tmp_path):
    """A path in a folder of its own."""
    return tmp_path / "table"


def numbers(shape, dtype=np.float64):
    array = np.random.default_rng(5).normal(scale=40, size=shape)
    return array > 0 if np.dtype(dtype) == np.bool_ else np.abs(array).astype(dtype)


def column(path, name):
    """By pyarrow alone, which takes the folder as one table."""
    values = parquet.read_table(path, columns=[name]).column(0).combine_chunks()
    extents = []
    while hasattr(values.type, "list_size"):
        extents.append(values.type.list_size)
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(-1, *extents)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("placements", [[S(0), R()], [R(), S(1)], [S(1), S(0)], [S(0, sizes=[1, 30]), S(1)], [R(), R()]], ids=str)
def test_every_dtype_and_placement(mesh22, at, dtype, placements):
    array = numbers((31, 6), dtype)
    ts.save(at, {"x": ts.distribute_tensor(array, mesh22, placements)})
    assert sorted(os.listdir(at)) == [f"part-0000{i}.parquet" for i in range(4)]
    assert column(at, "x").dtype == array.dtype
    np.testing.assert_array_equal(column(at, "x"), array)
    back = ts.load(at, mesh22, placements)["x"]
    assert list(back.placements) == placements and back.dtype == array.dtype
    np.testing.assert_array_equal(back.full_tensor(), array)


def test_columns_of_all_widths_lie_beside_each_other(mesh4, at):
    """Groups of rows of 32 MiB, of columns that come at different paces."""
    rows = 100_003
    arrays = {"flag": numbers(rows, np.bool_), "wide": numbers((rows, 60)), "small": numbers((rows, 3), np.int8), "cube": numbers((rows, 2, 2), np.float32)}
    ts.save(at, {name: ts.distribute_tensor(a, mesh4, [S(0)]) for name, a in arrays.items()}, metadata={"epoch": "3"})
    schema = parquet.read_schema(at / "part-00002.parquet")
    assert schema.names == list(arrays) and schema.metadata[b"epoch"] == b"3"
    assert [parquet.read_metadata(at / f"part-0000{i}.parquet").num_rows for i in range(4)] == [25_000, 25_001, 25_001, 25_001]
    opened = ts.open(at)
    for name, array in arrays.items():
        np.testing.assert_array_equal(column(at, name), array)
        np.testing.assert_array_equal(opened[name].load(mesh4, [R()]).full_tensor(), array)
        np.testing.assert_array_equal(opened[name][24_990:80_000:7].full_tensor(), array[24_990:80_000:7])
        np.testing.assert_array_equal(opened[name][::-1].full_tensor(), array[::-1])
    assert not [name for name in os.listdir(at) if name[0] == "."]


@pytest.mark.parametrize("parts, rows", [(1, 10), (2, 10), (3, 10), (7, 10), (50, 10), (9, 1), (None, 2), (None, 0), (5, 0)])
def test_any_number_of_parts(mesh4, at, parts, rows):
    arrays = {"a": numbers(rows), "b": numbers((rows, 2), np.int16)}
    ts.save(at, {name: ts.distribute_tensor(a, mesh4, [S(0)]) for name, a in arrays.items()}, parts=parts)
    assert len(os.listdir(at)) == max(1, min(parts or 4, rows))
    for name, array in arrays.items():
        np.testing.assert_array_equal(column(at, name), array)
        np.testing.assert_array_equal(ts.load(at, mesh4, [S(0)])[name].full_tensor(), array)


def test_a_folder_on_the_way_may_have_a_dot(session, mesh4, tmp_path):
    (tmp_path / "run.zarr").mkdir()
    ts.save(tmp_path / "run.zarr" / "table", {"a": ts.arange(10, device_mesh=mesh4)})
    assert ts.load(tmp_path / "run.zarr" / "table")["a"].full_tensor().tolist() == list(range(10))


def test_pandas_reads_it(mesh4, at):
    pandas = pytest.importorskip("pandas")
    ts.save(at, {"a": ts.arange(10, device_mesh=mesh4), "b": ts.ones(10, device_mesh=mesh4)})
    frame = pandas.read_parquet(at)
    assert frame["a"].tolist() == list(range(10)) and frame["b"].sum() == 10


def test_no_tensor_passes_through_the_client(session, mesh4, at):
    x = ts.distribute_tensor(numbers((3000, 40)), mesh4, [S(0)])
    x.wait()
    with session.comm_debug() as moved, session.profile() as profile:
        ts.save(at, {"x": x})
        ts.load(at, mesh4, [S(0)])["x"].wait()
    assert sum(moved.bytes_received) == sum(moved.bytes_sent) == 0
    # Workers and files alone: the values once each way, on all of the workers.
    for name in ("upload", "download"):
        runs = [run for op in profile.ops if op.name == name for run in op.runs]
        assert sum(run.bytes_transferred for run in runs) == x.nbytes and {run.worker for run in runs if run.bytes_transferred} == set(range(4))


def test_columns_of_other_meshes_and_pending_terms(session, mesh4, mesh22, at):
    array = numbers((12, 3))
    tensors = {"a": ts.distribute_tensor(array, mesh22, [S(1), S(0)]), "b": ts.from_local(lambda position: array, mesh4, [P("sum")]),
               "c": ts.distribute_tensor(array, session.init_device_mesh((2,), workers=[3, 1]), [S(0)])}
    ts.save(at, tensors)
    np.testing.assert_array_equal(column(at, "a"), array)
    np.testing.assert_allclose(column(at, "b"), 4 * array)
    np.testing.assert_array_equal(column(at, "c"), array)


def test_a_path_that_ends_in_parquet_is_a_file_unless_parts_says_more(mesh4, tmp_path):
    x = ts.arange(9, device_mesh=mesh4)
    for parts in (None, 1):
        ts.save(tmp_path / "x.parquet", {"x": x}, parts=parts)
        assert (tmp_path / "x.parquet").is_file()
    with pytest.raises(ts.InvalidArgumentError, match="is there, and is no folder"):
        ts.save(tmp_path / "x.parquet", {"x": x}, parts=3)
    ts.save(tmp_path / "y.parquet", {"x": x}, parts=3)
    assert len(os.listdir(tmp_path / "y.parquet")) == 3
    for name in ("x.parquet", "y.parquet", "y.parquet/"):
        np.testing.assert_array_equal(ts.load(f"{tmp_path}/{name}")["x"].full_tensor(), np.arange(9))


def test_a_folder_of_others_is_read(session, mesh4, at):
    """Parts of any size, with groups of any size, and what else writers leave there."""
    at.mkdir()
    a, b = numbers(1000), numbers((1000, 2), np.int32)
    ends = [0, 1, 1, 400, 999, 1000]
    for i, (start, stop) in enumerate(zip(ends, ends[1:])):
        table = pyarrow.table({"a": a[start:stop], "b": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(b[start:stop].reshape(-1)), 2),
                               "text": ["x"] * (stop - start)})
        parquet.write_table(table, at / f"{i}.snappy.parquet", row_group_size=37)
    for name in ("_SUCCESS", ".0.snappy.parquet.crc", "notes.txt"):
        (at / name).write_text("x")
    opened = ts.open(at)
    assert sorted(opened) == ["a", "b"] and opened["b"].shape == (1000, 2)
    for placements in ([S(0)], [S(0, sizes=[0, 999, 0, 1])], [R()]):
        np.testing.assert_array_equal(opened["a"].load(mesh4, placements).full_tensor(), a)
        np.testing.assert_array_equal(opened["b"].load(mesh4, placements).full_tensor(), b)
    np.testing.assert_array_equal(opened["b"][390:410:3, ::-1].full_tensor(), b[390:410:3, ::-1])


# ---- what is wrong -----------------------------------------------------------------------------------

def test_parts_that_differ_refuse_the_column_alone(session, at):
    at.mkdir()
    parquet.write_table(pyarrow.table({"a": np.arange(3), "b": np.ones(3), "c": np.ones(3)}), at / "0.parquet")
    parquet.write_table(pyarrow.table({"a": np.arange(3), "b": np.ones(3, np.float32)}), at / "1.parquet")
    opened = ts.open(at)
    assert opened["a"][:].full_tensor().tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ts.InvalidArgumentError, match="'b': 1.parquet has it as float, 0.parquet as double"):
        opened["b"].load()
    with pytest.raises(ts.InvalidArgumentError, match="'c': 1.parquet has it as nothing, 0.parquet as double"):
        opened["c"].load()


def test_what_is_no_table(session, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "years" / "year=2020").mkdir(parents=True)
    with pytest.raises(ts.InvalidArgumentError, match="without a .parquet file in it is no table"):
        ts.open(tmp_path / "empty")
    with pytest.raises(ts.InvalidArgumentError, match="file"):
        ts.open(tmp_path / "file")
    with pytest.raises(ts.InvalidArgumentError, match="has a folder in it, 'year=2020'"):
        ts.open(tmp_path / "years")
    with pytest.raises(ts.NotFoundError):
        ts.open(tmp_path / "none")
    for name in ("../table", "/etc/table"):
        with pytest.raises((ts.PermissionDeniedError, ts.NotFoundError)):
            ts.save(name, {"x": ts.ones(3)})


def test_a_part_that_is_cut_or_a_link(session, mesh4, at):
    ts.save(at, {"x": ts.distribute_tensor(numbers((3000, 40)), mesh4, [S(0)])})
    opened = ts.open(at)
    victim = at / "part-00002.parquet"
    whole = victim.read_bytes()
    for size in (len(whole) // 2, 7, 0):
        os.truncate(victim, size)
        with pytest.raises(ts.InvalidArgumentError, match="table: .*'part-00002.parquet'"):
            ts.open(at)
    victim.unlink()
    with pytest.raises(ts.FailedPreconditionError, match="has changed since it was looked at"):
        opened["x"][:].wait()
    shutil.copy(at / "part-00001.parquet", at.parent / "secret.parquet")
    victim.symlink_to(at.parent / "secret.parquet")
    with pytest.raises(ts.PermissionDeniedError, match="is a link"):
        ts.open(at)


def test_a_part_that_changes_while_it_is_read_is_refused(session, mesh4, at):
    ts.save(at, {"x": ts.distribute_tensor(numbers((3000, 40)), mesh4, [S(0)])})
    opened = ts.open(at)
    opened["x"].load(mesh4, [R()]).wait()
    many = {f"part-{i:05}.parquet" for i in range(4)}
    for name in many:       # as long as it was, and the folder's own time stays
        data = (at / name).read_bytes()
        (at / name).write_bytes(data[:4] + bytes(len(data) - 4))
    with pytest.raises((ts.InvalidArgumentError, ts.FailedPreconditionError), match="table"):
        opened["x"].load(mesh4, [R()]).wait()


def test_what_is_no_table_is_not_replaced(session, mesh4, tmp_path):
    """A folder is replaced with all that is in it."""
    x = {"x": ts.arange(8, device_mesh=mesh4)}
    for name in ("results/thesis.txt", "nested/below/x.parquet"):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_text("years of work")
        folder = tmp_path / name.partition("/")[0]
        with pytest.raises(ts.InvalidArgumentError, match="which no table has; it is not replaced"):
            ts.save(folder, x)
        assert file.read_text() == "years of work"
    ts.save(tmp_path / "table", x)
    (tmp_path / "table" / "_SUCCESS").write_text("")
    ts.save(tmp_path / "table", {"y": x["x"]}, parts=2)
    assert sorted(os.listdir(tmp_path / "table")) == ["part-00000.parquet", "part-00001.parquet"]
    assert sorted(os.listdir(tmp_path)) == ["nested", "results", "table"]


def test_wrong_use(session, mesh4, at):
    x = ts.arange(8, device_mesh=mesh4)
    with pytest.raises(TypeError, match="a folder of Parquet takes a dict of tensors"):
        ts.save(at, x)
    for parts in (0, -1, 2.5, True, "2"):
        with pytest.raises(TypeError, match="parts is a number from 1 on"):
            ts.save(at, {"x": x}, parts=parts)
    with pytest.raises(TypeError, match="parts are those of a table"):
        ts.save(f"{at}.npy", x, parts=2)
    with pytest.raises(ts.InvalidArgumentError, match=r"'x' has \[8\], 'y' has \[3\]"):
        ts.save(at, {"x": x, "y": x[:3]})
    with pytest.raises(ts.InvalidArgumentError, match="has no complex"):
        ts.save(at, {"x": x.astype(ts.complex64)})
    with pytest.raises(ts.InvalidArgumentError, match="bfloat16"):
        ts.save(at, {"x": x.astype(ts.bfloat16)})
    with pytest.raises(ts.InvalidArgumentError, match="a column has entries"):
        ts.save(at, {"x": ts.ones((3, 0), device_mesh=mesh4)})
    with pytest.raises(ts.InvalidArgumentError, match="a table has columns"):
        ts.save(at, {})
    assert not os.listdir(at.parent)


def test_a_full_disk_keeps_the_old_table(new_cluster, small_disk):
    with new_cluster(files=small_disk).connect() as session:
        x = ts.distribute_tensor(numbers((1 << 20,)), session.default_mesh, [S(0)])     # 8 MiB
        ts.save("table", {"x": x[:100]})
        with pytest.raises(ts.ResourceExhaustedError, match="table.*disk is full"):
            ts.save("table", {"x": x, "y": x})
        wait_until(lambda: os.listdir(small_disk) == ["table"])
        # Rows that waited there to be encoded are given back, too, by all of the workers' decoders.
        wait_until(lambda: os.statvfs(small_disk).f_bfree * os.statvfs(small_disk).f_frsize > 7 << 19)
        np.testing.assert_array_equal(ts.load("table")["x"].full_tensor(), x[:100].full_tensor())


def test_a_session_that_ends_in_the_middle_leaves_the_old_table(cluster, at, monkeypatch):
    session = cluster.connect()
    x = ts.ones((300_000, 6), device_mesh=session.default_mesh)
    ts.save(at, {"x": x[:5]})
    monkeypatch.setattr(_files, "bar_of", lambda *_: session.close() or contextlib.nullcontext())
    with pytest.raises(ts.TesseraError):
        ts.save(at, {"x": x})
    wait_until(lambda: os.listdir(at.parent) == [at.name])
    assert column(at, "x").shape == (5, 6)


def decoders_of(pids):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if b"tessera.decoder" in open(f"/proc/{pid}/cmdline", "rb").read() and int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) in pids:
                found.append(int(pid))
    return found


def test_a_decoder_that_ends_between_columns_leaves_the_old_table(new_cluster, tmp_path):
    """Rows that waited in it are lost, and the table isn't whole, though every write succeeded."""
    cluster = new_cluster(2, memory="64MiB", files=tmp_path)
    with cluster.connect() as session:
        x = ts.arange(1000, device_mesh=session.default_mesh)
        ts.save("table", {"x": x[:5]})
        door, name, beside = _files._door_beside("table", session)
        plan, places = ts._encoded.table_parts("table", {"x": x, "y": x}, {}, None)
        door.create_folder("table", name, plan)
        for column_name, tensor in places:
            door.write([(tensor, beside, 0, [8], column_name)])
            found = decoders_of(cluster.worker_pids)
            for pid in found:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: all(len(os.listdir(f"/proc/{pid}/task")) == 1 and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
                                   for pid in found))      # noqa: B023
        with pytest.raises(ts.FailedPreconditionError, match="not all of its parts were written"):
            door.describe(beside)
        del door
        wait_until(lambda: os.listdir(tmp_path) == ["table"])
        assert len(column(tmp_path / "table", "x")) == 5
