"""Files: what workers read and write, on every placement, and what is refused."""

import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE
from tessera import _files
from waiting import wait_until

S, R, P = ts.Shard, ts.Replicate, ts.Partial
DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32,
          np.float64, np.complex64, np.complex128]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def session(folder):
    outside = folder / "served"
    outside.mkdir()
    with ts.local_cluster(4, memory="64MiB", files=[outside], device=DEVICE) as cluster, cluster.connect() as session:
        yield session


@pytest.fixture
def served(folder):
    return folder / "served"


def numbers(shape, dtype, seed=0):
    values = np.random.default_rng(seed).integers(0, 200, shape)
    return (values % 2 == 0) if dtype == np.bool_ else values.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_an_array_comes_back_as_it_was(session, served, dtype):
    mesh = session.init_device_mesh((4,))
    array = numbers((7, 5), dtype)
    np.save(served / "in.npy", array)
    x = ts.load("in.npy", mesh)
    assert x.placements == (S(0),) and x.dtype == array.dtype
    np.testing.assert_array_equal(x.full_tensor(), array)
    ts.save("out.npy", x)
    np.testing.assert_array_equal(np.load(served / "out.npy"), array)
    assert np.load(served / "out.npy").dtype == array.dtype


def test_floats_of_8_bits_come_back_as_they_were(session, served):
    mesh = session.init_device_mesh((4,))
    arrays = {str(dtype): np.arange(256, dtype=np.uint8).view(dtype).reshape(64, 4) for dtype in (ts.float8_e4m3fn, ts.float8_e5m2)}
    tensors = {name: ts.distribute_tensor(array, mesh, [S(0)]) for name, array in arrays.items()}
    ts.save("eight.safetensors", tensors)
    back = ts.load("eight.safetensors", mesh)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name].full_tensor().view(np.uint8), array.view(np.uint8))
        with pytest.raises(ts.InvalidArgumentError, match=f"no {name}; save to a .safetensors file"):
            ts.save("eight.npy", tensors[name])


@pytest.mark.parametrize("order, endian", itertools.product("CF", "<>"))
@pytest.mark.parametrize("placements", [[S(0), R()], [R(), S(1)], [S(1), S(0)], [S(2), S(2)], [S(0, sizes=[1, 8]), S(1)], [R(), R()]],
                         ids=str)
def test_any_placement_order_and_byte_order(session, served, placements, order, endian):
    mesh = session.init_device_mesh((2, 2))
    for dtype in ("i2", "f8", "c8"):
        array = np.asarray(numbers((9, 6, 7), np.dtype(dtype)), dtype=endian + dtype, order=order)
        np.save(served / "in.npy", array)
        x = ts.load(served / "in.npy", mesh, placements)
        assert list(x.placements) == placements
        np.testing.assert_array_equal(x.full_tensor(), array)
        ts.save(str(served / "out.npy"), x)
        np.testing.assert_array_equal(np.load(served / "out.npy"), array)


@pytest.mark.parametrize("index", [np.s_[2:5], np.s_[::-2, 3], np.s_[..., None, 1:4:2], np.s_[5], np.s_[3:3], np.s_[-1, -1, -1], np.s_[:, ::3, ::-1]],
                         ids=str)
def test_a_part_of_a_file(session, served, index):
    array = numbers((9, 6, 7), np.float32)
    np.save(served / "in.npy", array)
    file = ts.open("in.npy")
    assert (file.shape, file.dtype, file.ndim, file.size, len(file)) == ((9, 6, 7), np.float32, 3, 378, 9)
    np.testing.assert_array_equal(file[index].full_tensor(), array[index])
    mesh = session.init_device_mesh((2, 2))
    part = file.load(mesh, [R()] * 2, index=index)
    np.testing.assert_array_equal(part.full_tensor(), array[index])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (3, 0, 2)])
def test_shapes_at_the_edge(session, served, shape):
    array = np.ones(shape)
    np.save(served / "in.npy", array)
    x = ts.load("in.npy", placements=[R()])
    np.testing.assert_array_equal(x.full_tensor(), array)
    ts.save("out.npy", x)
    assert np.load(served / "out.npy").shape == shape


def test_rows_and_columns_larger_than_a_buffer(session, served):
    array = np.random.default_rng(0).normal(size=(1500, 1000))      # 12 MB
    np.save(served / "in.npy", array)
    mesh = session.init_device_mesh((4,))
    for placements in ([S(0)], [S(1)], [S(1, sizes=[1, 990, 2, 7])]):
        x = ts.load("in.npy", mesh, placements)
        np.testing.assert_array_equal(x.full_tensor(), array)
        ts.save("out.npy", x)
        np.testing.assert_array_equal(np.load(served / "out.npy"), array)
    np.save(served / "in.npy", np.asfortranarray(array))
    np.testing.assert_array_equal(ts.load("in.npy", mesh, [S(0)]).full_tensor(), array)


def test_no_tensor_passes_through_the_client(session, served):
    np.save(served / "in.npy", np.ones((1 << 20,)))
    mesh = session.init_device_mesh((4,))
    with session.comm_debug() as moved:
        x = ts.load("in.npy", mesh)
        x.wait()
        ts.save("out.npy", x)
    assert sum(moved.bytes_received) == sum(moved.bytes_sent) == 0


def test_several_tensors_of_one_file(session, served):
    mesh = session.init_device_mesh((4,))
    arrays = {"weight": numbers((6, 5), np.float32), "steps": numbers((3,), np.int64), "mask": numbers((4, 2), np.bool_),
              "half": numbers((5,), ml_dtypes.bfloat16), "none": np.zeros((0, 2), np.float32)}
    ts.save("model.safetensors", {name: ts.distribute_tensor(a, mesh, [S(0)]) for name, a in arrays.items()}, metadata={"epoch": "3"})
    raw = (served / "model.safetensors").read_bytes()
    header = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"epoch": "3"} and header["half"]["dtype"] == "BF16"
    back = ts.load("model.safetensors", mesh, [R()])
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name].full_tensor(), array)
    assert list(ts.load("model.safetensors", names=["mask"])) == ["mask"]
    with pytest.raises(ts.InvalidArgumentError, match="has no 'bias'; it has half, mask, none, steps, weight"):
        ts.load("model.safetensors", names=["bias"])
    assert ts.open("model.safetensors")["weight"][1:3].full_tensor().tolist() == arrays["weight"][1:3].tolist()


def test_the_tensors_of_a_file_are_one_transfer(session, served):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("x", "y"))
    arrays = {f"layer.{i}": numbers((i % 5, 3), np.float32) for i in range(40)} | {"scale": np.float64(3)}
    ts.save("model.safetensors", {name: ts.asarray(a, device_mesh=mesh) for name, a in arrays.items()})
    with session.profile() as profile:
        loaded = ts.load("model.safetensors", mesh)
        total = sum((x.sum() for x in loaded.values()), start=ts.zeros((), device_mesh=mesh))    # waits for them
        assert float(total) == pytest.approx(float(sum(a.sum() for a in arrays.values())))
    uploads = [op for op in profile.ops if op.name == "upload" and "f32[0]" not in op.output and "u8[0]" not in op.output]
    assert [op.output.split(" and ")[1:] for op in uploads] == [["40 more"]]
    for name, x in loaded.items():
        np.testing.assert_array_equal(x.full_tensor(), arrays[name])


def test_tensors_that_come_together_have_memory_all_or_none(new_cluster, tmp_path):
    cluster = new_cluster(workers=2, memory="16MiB", files=tmp_path)
    session = cluster.connect()
    large = np.ones((3 << 20,), np.float32)     # 12 MiB each, 6 a worker
    np.save(tmp_path / "one.npy", large)
    header = json.dumps({name: {"dtype": "F32", "shape": [large.size], "data_offsets": [i * large.nbytes, (i + 1) * large.nbytes]}
                         for i, name in enumerate("abc")}).encode()
    (tmp_path / "three.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + 3 * large.tobytes())
    with session:
        three = ts.load("three.safetensors")
        for x in three.values():
            with pytest.raises(ts.ResourceExhaustedError, match="number 2 of 3 that are read together"):
                x.wait()
        assert [worker["used_bytes"] for worker in session.status()["workers"]] == [0, 0]
        two = ts.load("three.safetensors", names=["a", "c"])
        assert float(two["c"].sum()) == large.size


def test_pending_terms_are_reduced_first(session, served):
    mesh = session.init_device_mesh((4,))
    x = ts.distribute_tensor(np.arange(32.0).reshape(8, 4), mesh, [S(0)]).sum(axis=0)
    ts.save("out.npy", x)
    np.testing.assert_array_equal(np.load(served / "out.npy"), np.arange(32.0).reshape(8, 4).sum(axis=0))


@pytest.mark.parametrize("path", ["../secret.npy", "../served/../secret.npy", "{folder}/secret.npy", "/etc/passwd.npy", "link.npy", "up/secret.npy"])
def test_no_path_leads_out(session, folder, served, path):
    np.save(folder / "secret.npy", np.ones(3))
    for name, target in (("link.npy", folder / "secret.npy"), ("up", folder)):
        if not (served / name).is_symlink():
            os.symlink(target, served / name)
    path = path.format(folder=folder)
    with pytest.raises((ts.PermissionDeniedError, ts.InvalidArgumentError)):
        ts.load(path)
    if "link" not in path:
        with pytest.raises((ts.PermissionDeniedError, ts.InvalidArgumentError)):
            ts.save(path, ts.ones((3,)))
    assert np.load(folder / "secret.npy").tolist() == [1, 1, 1]


def test_what_is_no_such_file(session, served):
    with pytest.raises(ts.NotFoundError, match="missing.npy"):
        ts.load("missing.npy")
    (served / "text.npy").write_text("hello")
    with pytest.raises(ts.InvalidArgumentError, match="is no .npy file"):
        ts.load("text.npy")
    (served / "empty.npy").write_bytes(b"")
    with pytest.raises(ts.InvalidArgumentError, match="is no .npy file"):
        ts.load("empty.npy")
    np.save(served / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ts.InvalidArgumentError, match="has the dtype object, which no tensor has"):
        ts.load("objects.npy")
    whole = numbers((100,), np.float64)
    np.save(served / "cut.npy", whole)
    with open(served / "cut.npy", "r+b") as file:
        file.truncate(500)
    with pytest.raises(ts.InvalidArgumentError, match=r"is cut: float64\[100\] from byte 128 on, and the file has 500"):
        ts.load("cut.npy")
    (served / "folder.npy").mkdir()
    with pytest.raises(ts.TesseraError, match="folder.npy"):
        ts.load("folder.npy")
    with pytest.raises(ts.InvalidArgumentError, match="is there, and is no regular file"):
        ts.save("folder.npy", ts.ones((3,)))
    os.mkfifo(served / "pipe.npy")
    with pytest.raises(ts.InvalidArgumentError, match="no regular file"):
        ts.load("pipe.npy")
    with pytest.raises(ts.UnimplementedError, match="formats are known by their ending"):
        ts.load("x.csv")


def test_headers_that_lie(session, served):
    def npy(header: bytes, version=(1, 0)):
        length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
        (served / "lie.npy").write_bytes(b"\x93NUMPY" + bytes(version) + length + header)
    for header in (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 1099511627776), }\n",
                   b"{'descr': '<f8', 'fortran_order': False, 'shape': (-4,), }\n", b"{'descr': '<V9', 'fortran_order': False, 'shape': (1,), }\n",
                   b"__import__('os').abort()\n", b"(" * 5000, b"\xff\xfe\n"):
        npy(header)
        with pytest.raises(ts.InvalidArgumentError, match="lie.npy"):
            ts.load("lie.npy")
    (served / "lie.npy").write_bytes(b"\x93NUMPY\x02\x00" + b"\xff\xff\xff\xff" + b"{")
    with pytest.raises(ts.InvalidArgumentError, match="lie.npy"):
        ts.load("lie.npy")
    one = lambda **entry: json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()   # noqa: E731
    for length, header in ((2**40, b"{}"), (None, b"{"), (None, b"[]"), (None, one(shape=[3])), (None, one(data_offsets=[-8, 0])),
                           (None, one(data_offsets=[8, 16])), (None, one(dtype="F4")), (None, one(shape=[2**62, 2**62])), (None, one(shape=["a"])), (None, one(dtype=["F32"])), (None, one(data_offsets=[0])), (None, one(shape=[1e999])),
                           (None, b"[" * 100_000)):
        (served / "lie.safetensors").write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(ts.InvalidArgumentError, match="lie.safetensors"):
            ts.load("lie.safetensors")


def test_a_bool_in_a_file_may_be_any_byte(session, served):
    array = np.array([0, 1, 2, 255], np.uint8)
    np.save(served / "in.npy", array.view(np.bool_))
    x = ts.load("in.npy")
    assert x.dtype == np.bool_ and x.full_tensor().view(np.uint8).tolist() == [0, 1, 1, 1]


def test_a_file_that_changes_is_refused(session, served):
    np.save(served / "in.npy", np.ones(1000))
    file = ts.open("in.npy")
    np.save(served / "in.npy", np.zeros(2000))
    with pytest.raises(ts.FailedPreconditionError, match="has changed since it was looked at"):
        file[:10].full_tensor()


def test_a_file_that_is_cut_while_it_is_read_fails_that_load_alone(session, served):
    array = np.lib.format.open_memmap(served / "whole.npy", "w+", np.float32, (1 << 24,))      # 64 MiB, on no disk
    del array
    x = ts.load("whole.npy")
    os.truncate(served / "whole.npy", 1000)
    with pytest.raises(ts.FailedPreconditionError, match="changed|ends at byte"):
        x.wait()
    assert float(ts.ones((4,)).sum()) == 4


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors"])
def test_a_session_that_ends_in_the_middle_leaves_the_old_file(new_cluster, tmp_path, monkeypatch, name):
    session = new_cluster(files=tmp_path).connect()
    given = (lambda x: x) if name == "x.npy" else (lambda x: {"x": x})
    x = ts.ones((300_000, 6), device_mesh=session.default_mesh)
    ts.save(name, given(x[:5]))
    old = (tmp_path / name).read_bytes()
    monkeypatch.setattr(_files, "bar_of", lambda *_: session.close() or contextlib.nullcontext())
    with pytest.raises(ts.TesseraError):
        ts.save(name, given(x))
    wait_until(lambda: os.listdir(tmp_path) == [name])
    assert (tmp_path / name).read_bytes() == old


@pytest.mark.parametrize("name", ["x.npy", "x.safetensors", "x.h5", "x.zarr", "x.parquet"])
def test_a_disk_that_is_full_or_for_reading_alone_keeps_the_old_file(new_cluster, small_disk, name):
    for package in {".h5": ["h5py"], ".zarr": ["zarr"], ".parquet": ["pyarrow"]}.get(name[1:], []):
        pytest.importorskip(package)
    given = (lambda x: x) if name == "x.npy" else (lambda x: {"x": x})
    with new_cluster(files=small_disk).connect() as session:
        x = ts.distribute_tensor(np.random.default_rng(0).normal(size=(1 << 20)), session.default_mesh, [S(0)])     # 8 MiB
        ts.save(name, given(x[:100]))
        with pytest.raises(ts.ResourceExhaustedError, match="disk is full|No space left"):
            ts.save(name, given(x))
        wait_until(lambda: os.listdir(small_disk) == [name])
        # Not while a worker has the file open that it has just removed.
        wait_until(lambda: subprocess.run(["mount", "-o", "remount,ro", small_disk], capture_output=True, check=False).returncode == 0)
        with pytest.raises(ts.PermissionDeniedError, match="Read-only file system"):
            ts.save(name, given(x[:100]))
        back = ts.load(name)
        np.testing.assert_array_equal((back if name == "x.npy" else back["x"]).full_tensor(), x[:100].full_tensor())


def test_what_fails_leaves_the_old_file(session, served):
    np.save(served / "old.npy", np.ones(4))
    mesh = session.init_device_mesh((4,))
    bad = ts.linalg.inv(ts.zeros((2, 2), device_mesh=mesh))
    with pytest.raises(ts.TesseraError):
        ts.save("old.npy", bad)
    assert np.load(served / "old.npy").tolist() == [1, 1, 1, 1]
    wait_until(lambda: not [name for name in os.listdir(served) if ".tessera-" in name])


def test_a_full_disk(session, served):
    x = ts.ones((1 << 20,), dtype=ts.float64)
    many = {f"x{i}": x for i in range(1 << 14)}     # 128 GiB; its bytes are reserved before one is written
    if os.statvfs(served).f_bavail * os.statvfs(served).f_frsize > 1 << 37:
        pytest.skip("the disk has room for it")
    with pytest.raises(ts.ResourceExhaustedError, match="No space left"):
        ts.save("large.safetensors", many)
    wait_until(lambda: not [name for name in os.listdir(served) if ".tessera-" in name or name.startswith("large")])


def test_wrong_use(session, served):
    mesh = session.init_device_mesh((4,))
    x = ts.ones((3,), device_mesh=mesh)
    with pytest.raises(ts.TesseraError, match="a .npy file takes one Tensor, not dict"):
        ts.save("x.npy", {"x": x})
    with pytest.raises(ts.TesseraError, match="takes a dict of tensors by name"):
        ts.save("x.safetensors", x)
    with pytest.raises(ts.InvalidArgumentError, match="no bfloat16"):
        ts.save("x.npy", x.astype(ts.bfloat16))
    with pytest.raises(ts.TesseraError, match="a path is a string"):
        ts.load(b"x.npy")
    np.save(served / "in.npy", np.ones((2, 2)))
    with pytest.raises(ts.IndexOutOfRangeError):
        ts.open("in.npy")[2]
    with pytest.raises(ts.InvalidArgumentError, match="out of range for rank 2"):
        ts.load("in.npy", mesh, [S(2)])


def test_folders_for_reading_alone_and_none(tmp_path):
    np.save(tmp_path / "in.npy", np.ones(3))
    with ts.local_cluster(1, memory="16MiB", files=f"{tmp_path}:ro") as cluster, cluster.connect():
        assert ts.load("in.npy").full_tensor().tolist() == [1, 1, 1]
        with pytest.raises(ts.PermissionDeniedError, match="for reading alone"):
            ts.save("out.npy", ts.ones((3,)))
    with ts.local_cluster(1, memory="16MiB", files=()) as cluster, cluster.connect():
        with pytest.raises(ts.PermissionDeniedError, match="serves no files"):
            ts.load(str(tmp_path / "in.npy"))
    with pytest.raises(ts.UnavailableError, match="--files"):
        ts.local_cluster(1, memory="16MiB", files="/no/such/folder")


NO_PERMISSION = """
import sys
import numpy as np
import tessera as ts

with ts.local_cluster(2, memory="16MiB", files=".") as cluster, cluster.connect():
    for name in sys.argv[1:]:
        one = (lambda x: x) if name.endswith(".npy") else (lambda x: {"x": x})
        for what in (lambda: ts.open("closed/" + name), lambda: ts.save("locked/" + name, one(ts.arange(8)))):
            try:
                what()
                print(name, "was done")
            except ts.PermissionDeniedError as error:
                print(name, "denied" if "Permission denied" in str(error) and name in str(error) else error)
    assert float(ts.ones(4).sum()) == 4
"""


def test_no_permission(tmp_path):
    """Root's own processes may do anything; so these have given up the rights that are above permissions."""
    names = ["x.npy", "x.safetensors", *(name for name, package in (("x.h5", "h5py"), ("x.zarr", "zarr"), ("x.parquet", "pyarrow"), ("table", "pyarrow"))
                                         if importlib.util.find_spec(package))]
    for folder in ("closed", "locked"):
        (tmp_path / folder).mkdir()
    with ts.local_cluster(1, memory="16MiB", files=tmp_path) as cluster, cluster.connect():
        for name in names:
            ts.save(f"closed/{name}", ts.arange(8) if name == "x.npy" else {"x": ts.arange(8)})
    owner = 65534 if os.getuid() == 0 else -1
    for name in names:
        os.chmod(tmp_path / "closed" / name, 0)
        os.chown(tmp_path / "closed" / name, owner, owner)
    os.chmod(tmp_path / "locked", 0o555)
    os.chown(tmp_path / "locked", owner, owner)
    command = [sys.executable, "-c", NO_PERMISSION, *names]
    if owner > 0:
        if not shutil.which("setpriv"):
            pytest.skip("root can't give up its rights here")
        command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"{name} denied" for name in names for _ in range(2)], done.stdout + done.stderr


def test_each_tensor_of_a_file_has_its_own_placements(session, served):
    mesh = session.init_device_mesh((4,))
    arrays = {"w": numbers((8, 4), np.float32), "b": numbers((4,), np.float32, 1), "c": numbers((5,), np.float32, 2)}
    ts.save(served / "each.safetensors", {name: session.distribute_tensor(a, mesh, [R()]) for name, a in arrays.items()})
    loaded = ts.load(served / "each.safetensors", mesh, {"w": [S(1)], "b": [R()]})
    assert (loaded["w"].placements, loaded["b"].placements, loaded["c"].placements) == ((S(1),), (R(),), (S(0),))
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name].full_tensor(), array)
    with pytest.raises(ts.InvalidArgumentError, match="has no 'v'; it has b, c, w"):
        ts.load(served / "each.safetensors", mesh, {"v": [R()]})
    np.save(served / "one.npy", arrays["w"])
    with pytest.raises(TypeError, match="one tensor, without a name"):
        ts.load(served / "one.npy", mesh, {"w": [R()]})


def test_nothing_is_read_as_partial(session, served):
    mesh = session.init_device_mesh((4,))
    np.save(served / "terms.npy", np.ones((4, 4)))
    for wanted in ([P()], P("max")):
        with pytest.raises(ts.InvalidArgumentError, match=r"nothing is read as Partial: placements are .*Partial"):
            ts.load(served / "terms.npy", mesh, wanted)
    with pytest.raises(ts.InvalidArgumentError, match="nothing is read as Partial"):
        ts.open(served / "terms.npy").load(mesh, [P()], index=slice(0, 2))


def test_a_name_that_a_file_does_not_have_is_told_with_those_it_has(session, served):
    ts.save(served / "named.safetensors", {"w": ts.ones(3, device=session.default_mesh)})
    members = ts.open(served / "named.safetensors")
    assert members.get("v") is None and "v" not in members
    with pytest.raises(ts.NotFoundError, match="named.safetensors has no 'v'; it has w"):
        members["v"]
