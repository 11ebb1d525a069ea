"""Collectives on values by position, of one program: against NumPy, with their bytes."""

import itertools

import numpy as np
import pytest

import tessera as ts
import tessera.distributed as dist
from tessera.distributed import LocalTensor, ReduceOp

DTYPES = ["float32", "float64", "int32", "uint8", "bool", "complex64", ts.float16, ts.bfloat16]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def numbers(dtype, shape, seed):
    whole = np.random.default_rng(seed).integers(0, 3, size=shape)
    return whole.astype(bool) if np.dtype(dtype) == bool else whole.astype(dtype)


def is_defined(op, dtype):
    kind = np.dtype(dtype).kind
    if op in ("BAND", "BOR", "BXOR"):
        return kind in "iub"
    return not (op in ("MIN", "MAX") and kind == "c" or op == "AVG" and kind in "iub")


def averaged(total, count):
    """A complex number is divided part by part."""
    divisor = total.real.dtype.type(count)
    return total.real / divisor + 1j * (total.imag / divisor) if total.dtype.kind == "c" else total / count


def reduced(op, arrays):
    stack, dtype = np.stack(arrays), arrays[0].dtype
    if dtype == bool:
        return {"SUM": stack.any(0), "MAX": stack.any(0), "BOR": stack.any(0), "PRODUCT": stack.all(0), "MIN": stack.all(0),
                "BAND": stack.all(0), "BXOR": stack.sum(0) % 2 == 1}[op]
    wide = stack if stack.dtype.kind in "iuc" else stack.astype(np.float64)
    out = {"SUM": lambda: wide.sum(0), "AVG": lambda: averaged(wide.sum(0), len(arrays)), "PRODUCT": lambda: wide.prod(0), "MIN": lambda: wide.min(0),
           "MAX": lambda: wide.max(0), "BAND": lambda: np.bitwise_and.reduce(wide), "BOR": lambda: np.bitwise_or.reduce(wide),
           "BXOR": lambda: np.bitwise_xor.reduce(wide)}[op]()
    return out.astype(dtype)


def groups_of(name, mesh, shape):
    """The group as it is given, and the lists of positions that are each one group."""
    n = int(np.prod(shape))
    if name == "world":
        return None, [list(range(n))]
    if name == "some":
        return dist.new_group([n - 1, 0]), [[n - 1, 0]]
    if name == "one":
        return dist.new_group([1]), [[1]]
    grid = np.arange(n).reshape(shape)
    axis = ("a", "b").index(name)
    return name, [list(line) for line in np.moveaxis(grid, axis, -1).reshape(-1, shape[axis])]


MESHES = [((4,), ("world", "some", "one")), ((3,), ("world", "some")), ((2, 2), ("world", "a", "b", "some"))]
GROUPS = [(shape, name) for shape, names in MESHES for name in names]


@pytest.fixture(params=GROUPS, ids=lambda p: f"{'x'.join(map(str, p[0]))}-{p[1]}")
def world(request, session):
    shape, name = request.param
    mesh = session.init_device_mesh(shape, mesh_dim_names=("a", "b")[:len(shape)])
    group, lines = groups_of(name, mesh, shape)
    return mesh, group, lines


def values(world, dtype, shape, seed=0):
    mesh = world[0]
    arrays = [numbers(dtype, shape, seed + rank) for rank in range(mesh.size())]
    return arrays, LocalTensor(by_position(arrays, mesh), mesh)


def by_position(arrays, mesh):
    return {position: array for position, array in zip(itertools.product(*(range(n) for n in mesh.shape)), arrays)}


def check(x, wanted):
    for rank, want in enumerate(wanted):
        got = x[rank]
        assert got.dtype == want.dtype and got.shape == want.shape, (rank, got, want)
        np.testing.assert_array_equal(got, want, err_msg=f"rank {rank}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_reduce_and_reduce_by_every_op(world, dtype):
    mesh, group, lines = world
    for op, shape in itertools.product(OPS, [(), (3,), (5, 2), (0, 2)]):
        if not is_defined(op, dtype):
            continue
        arrays, x = values(world, dtype, shape)
        dist.all_reduce(x, getattr(ReduceOp, op), group=group)
        wanted = list(arrays)
        for line in lines:
            for rank in line:
                wanted[rank] = reduced(op, [arrays[r] for r in line])
        check(x, wanted)

        arrays, x = values(world, dtype, shape)
        last = len(lines[0]) - 1
        dist.reduce(x, op=getattr(ReduceOp, op), group=group, group_dst=last)
        wanted = list(arrays)
        for line in lines:
            wanted[line[last]] = reduced(op, [arrays[r] for r in line])
        check(x, wanted)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (0, 3)], ids=str)
def test_what_moves_values_as_they_are(world, dtype, shape):
    mesh, group, lines = world
    size = len(lines[0])
    rows = (shape or (1,))[0]

    for root in {0, size - 1}:
        arrays, x = values(world, dtype, shape)
        dist.broadcast(x, group=group, group_src=root)
        wanted = list(arrays)
        for line in lines:
            for rank in line:
                wanted[rank] = arrays[line[root]]
        check(x, wanted)

        arrays, x = values(world, dtype, shape)
        given = [values(world, dtype, shape, 10 + i) for i in range(size)]
        dist.gather(x, [one for _, one in given], group=group, group_dst=root)
        for i, (before, one) in enumerate(given):
            wanted = list(before)
            for line in lines:
                wanted[line[root]] = arrays[line[i]]
            check(one, wanted)

        arrays, x = values(world, dtype, shape)
        given = [values(world, dtype, shape, 20 + i) for i in range(size)]
        dist.scatter(x, [one for _, one in given], group=group, group_src=root)
        wanted = list(arrays)
        for line in lines:
            for i, rank in enumerate(line):
                wanted[rank] = given[i][0][line[root]]
        check(x, wanted)

    arrays, x = values(world, dtype, shape)
    for out_shape in {(size * rows, *shape[1:]), (size, *shape)}:
        before, out = values(world, dtype, out_shape, 30)
        dist.all_gather_into_tensor(out, x, group=group)
        wanted = list(before)
        for line in lines:
            for rank in line:
                wanted[rank] = np.stack([arrays[r] for r in line]).reshape(out_shape)
        check(out, wanted)

    outs = [values(world, dtype, shape, 40 + i) for i in range(size)]
    dist.all_gather([one for _, one in outs], x, group=group)
    for i, (before, out) in enumerate(outs):
        wanted = list(before)
        for line in lines:
            for rank in line:
                wanted[rank] = arrays[line[i]]
        check(out, wanted)


@pytest.mark.parametrize("op", ["SUM", "MAX", "BXOR"])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (0, 2)], ids=str)
def test_reduce_scatter(world, op, shape):
    mesh, group, lines = world
    size = len(lines[0])
    dtype = "int32"
    for in_shape in [(size * shape[0], *shape[1:]), (size, *shape)]:
        arrays, x = values(world, dtype, in_shape)
        before, out = values(world, dtype, shape, 10)
        dist.reduce_scatter_tensor(out, x, getattr(ReduceOp, op), group=group)
        wanted = list(before)
        for line in lines:
            total = reduced(op, [arrays[r] for r in line]).reshape(size, *shape)
            for i, rank in enumerate(line):
                wanted[rank] = total[i]
        check(out, wanted)

    given = [values(world, dtype, shape, 50 + i) for i in range(size)]
    before, out = values(world, dtype, shape, 60)
    dist.reduce_scatter(out, [one for _, one in given], getattr(ReduceOp, op), group=group)
    wanted = list(before)
    for line in lines:
        for i, rank in enumerate(line):
            wanted[rank] = reduced(op, [given[i][0][r] for r in line])
    check(out, wanted)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (0, 2)], ids=str)
def test_all_to_all(world, shape):
    mesh, group, lines = world
    size = len(lines[0])
    in_shape = (size * shape[0], *shape[1:])
    arrays, x = values(world, "float32", in_shape)
    before, out = values(world, "float32", in_shape, 10)
    dist.all_to_all_single(out, x, group=group)
    wanted = list(before)
    for line in lines:
        for j, rank in enumerate(line):
            parts = [arrays[r].reshape(size, *shape)[j] for r in line]
            wanted[rank] = np.concatenate(parts)
    check(out, wanted)
    if isinstance(group, str):
        with pytest.raises(ts.InvalidArgumentError, match="several lines"):
            dist.all_to_all([out], [x], group=group)
        return
    given = [values(world, "float32", shape, 20 + j) for j in range(size)]
    outs = [values(world, "float32", shape, 30 + i) for i in range(size)]
    dist.all_to_all([one for _, one in outs], [one for _, one in given], group=group)
    for i, (before, out) in enumerate(outs):
        wanted = list(before)
        for line in lines:
            for j, rank in enumerate(line):
                wanted[rank] = given[j][0][line[i]]
        check(out, wanted)


def test_uneven_values(session):
    mesh = session.init_device_mesh((3,))
    arrays = [numbers("int64", (extent, 2), extent) for extent in (2, 0, 5)]
    x = LocalTensor(arrays, mesh)
    check(x, arrays)
    outs = [LocalTensor([np.zeros_like(array)] * 3, mesh) for array in arrays]
    dist.all_gather(outs, x)
    for out, array in zip(outs, arrays):
        check(out, [array] * 3)

    sent = [[1, 0, 1], [0, 0, 0], [2, 2, 1]]
    received = [list(one) for one in zip(*sent)]
    out = LocalTensor([np.zeros((sum(one), 2), np.int64) for one in received], mesh)
    dist.all_to_all_single(out, x, received, sent)
    cuts = [np.split(array, np.cumsum(one)[:-1]) for array, one in zip(arrays, sent)]
    check(out, [np.concatenate([cuts[i][j] for i in range(3)]) for j in range(3)])

    lists = [LocalTensor([numbers("int64", array.shape, 9 * i + rank) for rank in range(3)], mesh) for i, array in enumerate(arrays)]
    befores = [[one[rank] for rank in range(3)] for one in lists]
    into = LocalTensor([np.zeros_like(array) for array in arrays], mesh)
    dist.reduce_scatter(into, lists)
    check(into, [sum(before) for before in befores])


def test_no_more_bytes_than_a_redistribution_needs(session):
    n, k = 4, 1000
    mesh = session.init_device_mesh((n,))
    x = LocalTensor([np.full(n * k, rank, np.float32) for rank in range(n)], mesh).wait()
    wide = LocalTensor([np.zeros(n * n * k, np.float32)] * n, mesh).wait()
    part = LocalTensor([np.zeros(k, np.float32)] * n, mesh).wait()
    nbytes = n * k * 4

    def moved(call):
        with session.comm_debug() as debug:
            call()
            for one in (x, wide, part):
                one.wait()
        return sum(debug.bytes_received)

    assert moved(lambda: dist.all_reduce(x)) == 2 * (n - 1) * nbytes
    assert moved(lambda: dist.reduce_scatter_tensor(part, x)) == (n - 1) * nbytes
    assert moved(lambda: dist.all_gather_into_tensor(wide, x)) == n * (n - 1) * nbytes
    assert moved(lambda: dist.all_to_all_single(x, x)) == (n - 1) * nbytes
    assert moved(lambda: dist.broadcast(x, 2)) == (n - 1) * nbytes
    assert moved(lambda: dist.reduce(x, 1)) == (n - 1) * nbytes
    assert moved(lambda: dist.all_reduce(x, group=dist.new_group([1, 3]))) == 2 * nbytes
    assert moved(lambda: LocalTensor.from_tensor(x.as_tensor([ts.Shard(0)]))) == 0


def test_the_same_bits_everywhere_and_always(session):
    mesh = session.init_device_mesh((4,))
    arrays = [np.random.default_rng(rank).normal(size=10007).astype(np.float32) * 10.0**rank for rank in range(4)]
    first = None
    for _ in range(5):
        x = LocalTensor(arrays, mesh)
        dist.all_reduce(x)
        for got in x:
            first = got if first is None else first
            assert got.tobytes() == first.tobytes()


def test_a_scaled_sum_and_work(session):
    mesh = session.init_device_mesh((2,))
    x = LocalTensor([np.array([1.0, 2.0]), np.array([3.0, 4.0])], mesh)
    work = dist.all_reduce(x, ReduceOp.premul_sum(0.5), async_op=True)
    assert work.wait(timeout=30) and work.is_completed() and work.result() == [x]
    np.testing.assert_array_equal(x[1], [2.0, 3.0])
    dist.barrier()


def test_as_a_tensor_and_back(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("a", "b"))
    x = LocalTensor([[np.full((2, 3), 10.0 * i + j) for j in range(2)] for i in range(2)], mesh)
    whole = x.as_tensor([ts.Shard(0), ts.Partial()])
    assert whole.shape == (4, 3) and list(whole.placements) == [ts.Shard(0), ts.Partial()]
    np.testing.assert_array_equal(whole.full_tensor(), [[1.0] * 3] * 2 + [[21.0] * 3] * 2)
    turned = x.as_tensor([ts.Shard(1), ts.Shard(0)])
    assert turned.shape == (4, 6)
    np.testing.assert_array_equal(turned.full_tensor(), np.block([[x[0], x[2]], [x[1], x[3]]]))
    check(LocalTensor.from_tensor(turned), [x[i] for i in range(4)])


@pytest.mark.parametrize("call, error, words", [
    (lambda x, m: LocalTensor(np.zeros((2, 2)), m), TypeError, "one value for each position"),
    (lambda x, m: LocalTensor([np.zeros(2)], m), ValueError, "nested list in mesh shape"),
    (lambda x, m: LocalTensor([np.zeros((2, 2)), np.zeros((2, 3))], m), ValueError, "differ in more than dim 0"),
    (lambda x, m: LocalTensor([np.zeros(2), np.zeros(2, np.float32)], m), TypeError, "float64 at position 0 and float32 at 1"),
    (lambda x, m: dist.all_reduce(np.zeros(2)), TypeError, "must be a LocalTensor"),
    (lambda x, m: dist.all_reduce(x, "mean"), ValueError, "ReduceOp.SUM, ReduceOp.AVG"),
    (lambda x, m: dist.all_reduce(x, ReduceOp.BAND), TypeError, "bits of integers"),
    (lambda x, m: dist.all_reduce(LocalTensor([np.zeros(2), np.zeros(3)], m)), ValueError, r"differ in shape: \(2,\) at position 0 and \(3,\) at 1"),
    (lambda x, m: dist.all_reduce(LocalTensor([np.zeros(2, int)] * 2, m), ReduceOp.AVG), TypeError, "no whole number"),
    (lambda x, m: dist.broadcast(x), ValueError, "takes src or group_src"),
    (lambda x, m: dist.broadcast(x, 0, group_src=0), ValueError, "takes src or group_src"),
    (lambda x, m: dist.broadcast(x, 2), IndexError, "src 2 is out of range for a group of 2"),
    (lambda x, m: dist.broadcast(x, 0, group=dist.new_group([1])), ValueError, r"src=0 is not in the group of \[1\]"),
    (lambda x, m: dist.all_reduce(x, group=dist.new_group([0, 2])), IndexError, "rank 2 of the group is out of range"),
    (lambda x, m: dist.new_group([0, 0]), ValueError, "different positions"),
    (lambda x, m: dist.all_reduce(x, group="tp"), IndexError, "no dim 'tp'"),
    (lambda x, m: dist.all_reduce(x, group=3), TypeError, "new_group"),
    (lambda x, m: dist.all_reduce(x, groups=3), TypeError, "groups"),
    (lambda x, m: dist.all_gather([x], x), ValueError, "1 LocalTensors for a group of 2"),
    (lambda x, m: dist.all_gather_into_tensor(x, x), ValueError, r"it is \(4,\) or \(2, 2\)"),
    (lambda x, m: dist.reduce_scatter_tensor(x, x), ValueError, r"it is \(4,\) or \(2, 2\)"),
    (lambda x, m: dist.all_to_all_single(x, x, [1, 1], [2, 0]), ValueError, "rank 0 sends 2 rows to rank 0, which expects 1"),
    (lambda x, m: dist.all_to_all_single(x, x, [1, 1], [2, 1]), ValueError, "doesn't add up to the 2 rows"),
    (lambda x, m: x[5], IndexError, "no position 5"),
    (lambda x, m: x.as_tensor([ts.Shard(0)], shape=(5,)), ValueError, r"position \[0\] holds \[2\]"),
])
def test_what_makes_no_sense_is_an_error_by_name(session, call, error, words):
    mesh = session.init_device_mesh((2,))
    x = LocalTensor([np.zeros(2), np.ones(2)], mesh)
    with pytest.raises(error, match=words):
        call(x, mesh)
    np.testing.assert_array_equal(x[1], [1.0, 1.0])
