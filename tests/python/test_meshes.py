"""Meshes, views, sub-meshes, and which session a function means."""

import gc
import os
import threading
import time

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE

OTHER_DEVICE = "cpu" if DEVICE == "cuda" else "cuda"
S, R, P = ts.Shard, ts.Replicate, ts.Partial


def test_what_a_mesh_says(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh.shape, mesh.ndim, mesh.mesh_dim_names, mesh.device_type) == ((2, 2), 2, ("dp", "tp"), DEVICE)
    assert mesh.workers == (0, 1, 2, 3) and mesh.size() == 4 and mesh.size(0) == mesh.size("tp") == 2
    assert mesh.positions() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert repr(mesh) == "mesh(dp:2,tp:2)"
    assert mesh == session.init_device_mesh(DEVICE, [2, 2], mesh_dim_names=["dp", "tp"])
    assert hash(mesh) == hash(ts.DeviceMesh(DEVICE, [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"), _session=session))
    assert mesh != session.init_device_mesh((2, 2)) and session.default_mesh.shape == (4,)
    assert mesh.flatten("all").shape == (4,)
    assert repr(session.init_device_mesh((2,), workers=(3, 1))) == "mesh(2; workers=3,1)"


@pytest.mark.parametrize("arguments, options", [
    (((5,),), {}), (((2, 3),), {}), (((0,),), {}), (((-1,),), {}), (((2**40, 2**40),), {}), (((2**70,),), {}), (((),), {}),
    (((2, 2),), {"mesh_dim_names": ("a",)}), (((2, 2),), {"mesh_dim_names": ("a", "a")}), (((2,),), {"workers": (0, 0)}),
    (((2,),), {"workers": (0, 9)}), (((2,),), {"workers": (-1, 0)}), ((OTHER_DEVICE, (2,)), {}), ((1.5,), {}), (("two",), {}),
    (((2,),), {"workers": (0,)}), (((2,),), {"mesh_dim_names": ("1x",)})])
def test_a_mesh_that_makes_no_sense_is_refused(session, arguments, options):
    with pytest.raises(ts.InvalidArgumentError):
        session.init_device_mesh(*arguments, **options)


def test_a_view_is_the_parent_with_the_others_replicated(session, mesh22, rng):
    a = rng.random((6, 4))
    x = session.distribute_tensor(a, mesh22["tp"], [S(0)])
    assert x.device_mesh == mesh22 and x.placements == (R(), S(0))
    assert mesh22["tp"].shape == (2,) and mesh22["tp"].mesh_dim_names == ("tp",)
    np.testing.assert_array_equal(x.full_tensor(), a)


def test_reordered_names_split_the_other_way(session, mesh22, rng):
    a = rng.random((8, 4))
    x = session.distribute_tensor(a, mesh22["tp", "dp"], [S(0), S(0)])
    rows = {worker: x.box(p)[0] for p, worker in zip(x.device_mesh.positions(), x.device_mesh.workers)}
    assert rows == {0: (0, 2), 2: (2, 4), 1: (4, 6), 3: (6, 8)}
    np.testing.assert_array_equal(x.full_tensor(), a)


def test_sub_meshes_are_meshes(session, mesh22, rng):
    assert mesh22[0].workers == (0, 1) and mesh22[:, 1].workers == (1, 3) and mesh22[1].mesh_dim_names == ("tp",)
    a = rng.random((4, 4))
    x = session.distribute_tensor(a, mesh22[:, 1], [S(0)])
    np.testing.assert_array_equal(x.full_tensor(), a)
    for key in (5, ("dp", 0), "xx", (0, 0, 0), 1.5):
        with pytest.raises(ts.InvalidArgumentError):
            mesh22[key]


def test_chosen_workers_hold_the_shards(session, rng):
    mesh = session.init_device_mesh((2,), workers=(3, 1))
    a = rng.random((5, 2))
    x = session.distribute_tensor(a, mesh, [S(0)])
    np.testing.assert_array_equal(x.to_local(0), a[:3])
    with session.comm_debug() as comm:
        x.redistribute([R()])
    assert comm.bytes_received == [0, 48, 0, 32]


def test_nested_and_flat_shards_differ(session, mesh22, rng):
    a = rng.random((5, 1))
    x = session.distribute_tensor(a, mesh22, [S(0), S(0)])
    assert [x.box(p)[0] for p in mesh22.positions()] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    y = x.redistribute(mesh22.flatten(), [S(0)])
    assert [y.box(p)[0] for p in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]
    np.testing.assert_array_equal(y.full_tensor(), a)


@pytest.mark.parametrize("placements", [[], [S(0)], [S(0)] * 3, [S(2), R()], [S(-3), R()], ["S(0)", R()], None.__class__, 3,
                                        [P(), R()], [S(2**40), R()]])
def test_bad_placements_name_the_mesh(session, mesh22, placements):
    with pytest.raises(ts.InvalidArgumentError, match="distribute_tensor"):
        session.distribute_tensor(np.zeros((4, 4)), mesh22, placements)


def test_one_placement_is_no_list_for_two_mesh_dims(session, mesh22):
    x = ts.ones((4, 4), device_mesh=mesh22)
    for refused in (lambda: x.redistribute(S(0)), lambda: x.redistribute(placements=S(0)), lambda: x.redistribute(mesh22, S(0)),
                    lambda: session.distribute_tensor(np.ones(3), mesh22, S(0)), lambda: ts.redistribute([x, x], placements=S(0)),
                    lambda: ts.zeros((3,), device_mesh=mesh22, placements=S(0)), lambda: x.explain_redistribute(S(0))):
        with pytest.raises(ts.InvalidArgumentError, match=r"Shard\(0\) .*mesh\(dp:2,tp:2\).*list.* one for each of its 2 dims"):
            refused()


def test_placements_are_taken_from_anything_that_iterates(session, mesh22):
    x = ts.ones((4, 4), device_mesh=mesh22)
    assert x.redistribute(p for p in (S(0), R())).placements == (S(0), R())
    with pytest.raises(ts.InvalidArgumentError, match=r"1 placements \[Shard\(0\)\]"):
        x.redistribute(p for p in (S(0),))


def test_arguments_of_a_mesh_are_checked(session, mesh22):
    for refused in (lambda: ts.DeviceMesh("cpu", [[0, 1], [2]], _session=session), lambda: ts.DeviceMesh("cpu", [2**40], _session=session),
                    lambda: ts.DeviceMesh("cpu", [2**70], _session=session), lambda: ts.DeviceMesh("cpu", None, _session=session),
                    lambda: mesh22.flatten(5), lambda: mesh22["tp",].flatten(5), lambda: mesh22[::0], lambda: mesh22[True],
                    lambda: mesh22[np.True_], lambda: mesh22.size(1.0), lambda: mesh22.size([0]), lambda: mesh22["a":"b"]):
        with pytest.raises(ts.InvalidArgumentError):
            refused()
    assert mesh22.size(np.int64(1)) == 2


def test_with_mesh_is_the_default(session, mesh22):
    with session:
        with mesh22:
            assert ts.zeros((4,)).device_mesh == mesh22
        assert ts.zeros((4,)).device_mesh == session.default_mesh


def test_the_innermost_session_is_meant(cluster):
    first, second = cluster.connect(), cluster.connect()
    with pytest.raises(ts.FailedPreconditionError, match=f"session {first.id}"):
        ts.zeros((2,))
    with first:
        with second:
            assert ts.zeros((2,)).session is second
        assert ts.zeros((2,)).session is first
    with pytest.raises(ts.FailedPreconditionError):
        ts.zeros((2,), device_mesh=first.default_mesh)


@pytest.mark.parametrize("mesh_of", [lambda session: session.default_mesh, lambda session: session.init_device_mesh((2,))],
                         ids=["default mesh", "own mesh"])
def test_a_session_that_is_dropped_is_closed_at_once(cluster, mesh_of):
    def use():
        session = cluster.connect()
        mesh = mesh_of(session)
        assert mesh == mesh_of(session)
        np.testing.assert_array_equal(session.distribute_tensor(np.ones(8), mesh).full_tensor(), 1)

    def count_open():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    use()
    gc.collect()
    gc.disable()
    try:
        before = count_open()
        for _ in range(3):
            use()
        deadline = time.monotonic() + 60    # a thread that was joined is listed for a moment longer
        while any(more > had for more, had in zip(count_open(), before)):
            assert time.monotonic() < deadline, (count_open(), before)
            time.sleep(0.01)
    finally:
        gc.enable()


def test_handles_of_another_session_are_refused(cluster, session):
    with cluster.connect() as other:
        x, y = ts.zeros((2,), device_mesh=session.default_mesh), ts.zeros((2,), device_mesh=other.default_mesh)
        with pytest.raises(ts.InvalidArgumentError, match="another session"):
            x + y
        np.testing.assert_array_equal((x + 1).full_tensor(), 1)


def test_a_mesh_of_another_cluster_is_refused(cluster, session, new_cluster):
    with new_cluster(workers=4).connect() as stranger, cluster.connect() as other:
        mesh, x = stranger.default_mesh, ts.ones((4, 4), device_mesh=session.default_mesh, placements=[ts.Shard(0)])
        uses = {
            "redistribute": [lambda: x.redistribute(mesh, [ts.Replicate()]), lambda: x.redistribute(device_mesh=mesh),
                             lambda: ts.redistribute([x, x], mesh, [ts.Replicate()]),
                             lambda: x.explain_redistribute(mesh, [ts.Shard(1)]),
                             lambda: ts.asarray(x, device_mesh=mesh), lambda: ts.distribute_tensor(x, mesh, [ts.Shard(1)])],
            "to_device": [lambda: x.to_device(mesh)],
            "distribute_tensor": [lambda: session.distribute_tensor(np.ones(4), mesh, [ts.Shard(0)])],
            "from_local": [lambda: session.from_local([np.ones(1)] * 4, mesh, [ts.Shard(0)])],
        }
        for op, calls in uses.items():
            for call in calls:
                with pytest.raises(ts.InvalidArgumentError, match=f"^{op}: .*is of the cluster at unix:.*, not of that at unix:"):
                    call()
        # A mesh says where new tensors are, and sessions of one cluster share its meshes.
        assert ts.zeros((4,), device_mesh=mesh).session is stranger
        moved = x.redistribute(other.default_mesh, [ts.Shard(1)])
        assert moved.session is session and moved.placements == (ts.Shard(1),)
        np.testing.assert_array_equal(x.to_device(other.init_device_mesh((2,))).full_tensor(), np.ones((4, 4)))


def test_what_an_op_refuses_of_its_operands_is_named_after_it(cluster, session):
    with cluster.connect() as other:
        x, y = ts.zeros((2,), device_mesh=session.default_mesh), ts.zeros((2,), device_mesh=other.default_mesh)
        for op, call in {"add": lambda: x + y, "where": lambda: ts.where(x > 0, x, y)}.items():
            with pytest.raises(ts.InvalidArgumentError, match=rf"^{op}: operand [12], f64\[2\] .* is of another session"):
                call()
        with pytest.raises(ts.InvalidArgumentError, match="^redistribute: takes at most 64 operands, not 65"):
            ts.redistribute([x] * 65, placements=[ts.Replicate()])


def test_a_closed_session_says_so(cluster):
    session = cluster.connect()
    x = ts.zeros((2,), device_mesh=session.default_mesh)
    session.close()
    session.close()
    for use in (lambda: x + 1, x.full_tensor, x.wait, session.sync, session.tensors, lambda: session.init_device_mesh((2,))):
        with pytest.raises(ts.FailedPreconditionError, match="closed"):
            use()
    assert "closed" in repr(session) and "f64[2]" in repr(x)


def test_a_fork_may_not_use_the_session(session):
    x = ts.ones((2,), device_mesh=session.default_mesh)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            x + 1
        except ts.FailedPreconditionError as error:
            code = 0 if "fork" in str(error) else 2
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal((x + 1).full_tensor(), 2)


def test_ten_clients_at_once(cluster, rng):
    a = rng.random((30, 30))
    failures = []

    def client():
        try:
            with cluster.connect() as session:
                x = session.distribute_tensor(a, session.default_mesh, [S(0)])
                for _ in range(10):
                    x = (x @ x).redistribute([S(1)]) / 10
                    x = x.redistribute([S(0)])
                want = a
                for _ in range(10):
                    want = want @ want / 10
                np.testing.assert_allclose(x.full_tensor(), want)
        except Exception as error:  # told by the main thread
            failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_threads_share_a_session(session, mesh4):
    x = ts.ones((16, 16), device_mesh=mesh4, placements=[S(0)])
    out = [None] * 4

    def work(i):
        out[i] = float(ts.sum(sum([x * k for k in range(50)], x * i)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert out == [256 * (1225 + i) for i in range(4)]


def test_of_two_meshes_the_one_is_taken_that_receives_less(session, mesh4, mesh22, rng):
    a, b, v = rng.random((16, 8)), rng.random((8, 16)), rng.random(16)
    x, y = session.distribute_tensor(a, mesh22, [S(0), R()]), session.distribute_tensor(b, mesh22, [R(), S(1)])
    bias = session.distribute_tensor(v, mesh4, [R()])
    functions = [lambda: x @ y + bias, lambda: bias + x @ y, lambda: ts.addmm(bias, x, y), lambda: (bias > x @ y) * 1.0,
                 lambda: ts.where(bias > 0.5, x @ y, 0.0), lambda: ts.where(bias > 0.5, bias, x @ y), lambda: bias[0] * (x @ y)]
    wants = [a @ b + v, v + a @ b, v + a @ b, (v > a @ b) * 1.0, np.where(v > 0.5, a @ b, 0.0), np.where(v > 0.5, v, a @ b), v[0] * (a @ b)]
    for function, want in zip(functions, wants):
        with session.comm_debug() as comm:
            result = function()
        assert comm.total_bytes == 0 and result.device_mesh == mesh22 and result.placements == (S(0), S(1))
        np.testing.assert_allclose(result.full_tensor(), want)


def test_operands_on_two_meshes_move_as_much_in_either_order(session, mesh4, mesh22, rng):
    a, b = rng.random((6, 5)), rng.random((6, 5))
    turned = session.init_device_mesh((4,), workers=(2, 0, 3, 1))
    for mesh, flat in [(mesh4, [R()]), (mesh4, [S(0)]), (turned, [S(1)]), (turned, [S(0)])]:
        for folded in ([R(), R()], [S(0), R()], [S(0), S(1)], [S(1), S(1)]):
            x, y = session.distribute_tensor(a, mesh, flat), session.distribute_tensor(b, mesh22, folded)
            moved = []
            for left, right in ((x, y), (y, x)):
                with session.comm_debug() as comm:
                    result = left + right
                np.testing.assert_array_equal(result.full_tensor(), a + b)
                assert comm.bytes_received == ts.explain(ts.add, left, right).bytes_received
                moved.append(comm.total_bytes)
            assert moved[0] == moved[1], (flat, folded)
