"""Contractions of every shape against NumPy, over placements and meshes; plans and counters agree."""

import numpy as np
import pytest

import tessera as ts
from conftest import DEVICE

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def close(x, want):
    got = x.full_tensor()
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, got.dtype, want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def place(session, array, mesh, seed):
    """The array under placements that the seed chooses among all that its dims allow."""
    rng = np.random.default_rng(seed)
    choices = [R()] + [S(d) for d in range(array.ndim)]
    return session.distribute_tensor(array, mesh, [choices[rng.integers(len(choices))] for _ in range(mesh.ndim)])


def same(session, mesh, function, oracle, shapes, rng, rounds=4, dtype=np.float64):
    for seed in range(rounds):
        arrays = [rng.integers(-4, 5, shape).astype(dtype) for shape in shapes]
        tensors = [place(session, a, mesh, 7 * seed + i) for i, a in enumerate(arrays)]
        close(function(*tensors), np.asarray(oracle(*arrays)))


def test_a_product_in_tf32_is_exact_on_cpus_and_its_plan_says_it(session, mesh4, rng):
    """test_gpu_workers.py has the same on GPUs."""
    a, b = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, mesh4, [R()])
    for product in (lambda x, y, **how: ts.matmul(x, y, **how), lambda x, y, **how: ts.einsum("mk,kn->mn", x, y, **how)):
        if DEVICE == "cpu":
            assert product(x, y, precision="tf32").full_tensor().tobytes() == product(x, y).full_tensor().tobytes()
        assert "tf32" in str(ts.explain(product, x, y, precision="tf32"))
        assert "tf32" not in str(ts.explain(product, x, y, precision="full"))
        with pytest.raises(ts.InvalidArgumentError, match="precision is 'half', not 'full' or 'tf32'"):
            product(x, y, precision="half")
    # It says nothing of other dtypes, and an einsum of three has it in each product.
    assert ts.matmul(x.astype(ts.float64), y, precision="tf32").dtype == ts.float64
    assert str(ts.explain(ts.einsum, "ij,jk,kl->il", x, y, y, precision="tf32")).count("tf32") >= 2


MATMUL_SHAPES = [((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
                 ((6, 3, 4), (6, 4, 5)), ((6, 1, 3, 4), (2, 4, 5)), ((1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
                 ((0, 3, 4), (0, 4, 5)), ((2, 3, 0), (2, 0, 5)), ((5, 1, 1), (1, 1, 7))]


@pytest.mark.parametrize("shapes", MATMUL_SHAPES, ids=str)
def test_matmul_of_any_leading_dims(session, mesh22, rng, shapes):
    same(session, mesh22, ts.matmul, np.matmul, shapes, rng)


EINSUMS = [("bij,bjk->bik", (5, 3, 4), (5, 4, 2)), ("ij,jk", (3, 4), (4, 5)), ("ij,kj->ik", (3, 4), (5, 4)),
           ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("ijk,kjl->li", (3, 4, 5), (5, 4, 2)), ("i,j->ji", (3,), (4,)),
           ("ij,ij->", (3, 4), (3, 4)), ("ij,ij->ij", (3, 4), (3, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
           ("ijk,k->j", (3, 4, 5), (5,)), ("ab,cd->abcd", (2, 3), (4, 2)), ("kmb,nbk->nbm", (7, 3, 2), (4, 2, 7))]


@pytest.mark.parametrize("case", EINSUMS, ids=lambda case: case[0])
def test_einsum_of_two_operands(session, mesh22, rng, case):
    notation, *shapes = case
    same(session, mesh22, lambda a, b: ts.einsum(notation, a, b), lambda a, b: np.einsum(notation, a, b), shapes, rng)


def test_einsum_of_one_operand_and_of_three(session, mesh22, rng):
    for notation in ("ij->ji", "ij->i", "ij->", "ij->ij", "ij"):
        same(session, mesh22, lambda a: ts.einsum(notation, a), lambda a: np.einsum(notation, a), [(4, 6)], rng, rounds=2)
    same(session, mesh22, lambda a, b, c: ts.einsum("ij,jk,kl->il", a, b, c),
         lambda a, b, c: np.einsum("ij,jk,kl->il", a, b, c), [(3, 4), (4, 5), (5, 2)], rng)


def test_einsum_of_one_operand_is_a_tensor_of_its_own(session, mesh22):
    x = session.distribute_tensor(np.zeros((4, 6)), mesh22, [S(0), R()])
    scalar = session.distribute_tensor(np.array(0.0), mesh22, [R(), R()])
    for notation, operand in [("ij->ij", x), ("ij", x), ("...->...", x), ("i...->i...", x), ("i", x[0]), ("", scalar), ("->", scalar)]:
        result = ts.einsum(notation, operand)
        assert result is not operand and result.placements == operand.placements
        assert ts.explain(ts.einsum, notation, operand).bytes_received == [0] * 4
        result += 1
        np.testing.assert_array_equal(operand.full_tensor(), np.zeros(operand.shape))
        np.testing.assert_array_equal(result.full_tensor(), np.ones(operand.shape))


@pytest.mark.parametrize("notation, shapes", [
    ("...ij,...jk->ik", [(2, 3, 4), (2, 4, 5)]), ("...ij->ij", [(2, 3, 4)]), ("...,...->", [(3,), (3,)]), ("...j,j->", [(2, 3), (3,)]),
    ("i...j...->ij", [(3, 4)]), ("......", [()]), ("...->......", [(3,)]), ("...->......", [()])])
def test_einsum_refuses_the_ellipses_that_numpy_refuses(session, mesh4, notation, shapes):
    with pytest.raises(ValueError):
        np.einsum(notation, *map(np.ones, shapes))
    with pytest.raises(ts.InvalidArgumentError, match=r"^einsum: .*\.\.\."):
        ts.einsum(notation, *(ts.ones(shape, device_mesh=mesh4) for shape in shapes))


def test_einsum_takes_an_ellipsis_of_no_dims_anywhere(session, mesh22, rng):
    for notation in ("...ij,...jk->ik", "ij,jk...->ik", "ij...,jk->...ik", "ij,jk->ik..."):
        same(session, mesh22, lambda a, b: ts.einsum(notation, a, b), lambda a, b: np.einsum(notation, a, b), [(3, 4), (4, 5)], rng,
             rounds=2)


STRETCHED = [("i,i->", (1,), (5,)), ("ij,jk->ik", (3, 1), (2, 3)), ("ij,jk->ik", (3, 4), (1, 5)),
             ("bij,bjk->bik", (2, 3, 1), (2, 4, 5)), ("bij,bjk->bik", (1, 3, 4), (2, 1, 5)), ("ij,ij->", (1, 4), (3, 1)),
             ("ij,ij->i", (3, 1), (1, 4)), ("...j,j", (2, 3, 1), (4,)), ("ij,jk->ik", (3, 1), (1, 5)),
             ("i,i,i->", (1,), (5,), (1,)), ("i,i,i->", (1,), (1,), (5,)), ("ij,jk,kl->il", (3, 1), (4, 1), (5, 2))]


@pytest.mark.parametrize("case", STRETCHED, ids=str)
def test_einsum_broadcasts_letters_that_are_summed_over(session, mesh22, rng, case):
    notation, *shapes = case
    for dtype in (np.float64, np.int32):
        same(session, mesh22, lambda *xs: ts.einsum(notation, *xs), lambda *xs: np.einsum(notation, *xs), shapes, rng,
             dtype=dtype)


MIXED = [("ij,k->ik", (np.full((1, 3), 100, "i1"), np.array([1, 2], "i4"))),
         ("ij,k->k", (np.ones((1000, 100), "f2"), np.ones(1, "f4"))), ("ij,jk->ik", (np.full((2, 1), 100, "i1"), np.full((3, 2), 2, "i2"))),
         ("ij,jk,kl->il", (np.full((1, 2), 100, "i1"), np.ones((2, 1), "i1"), np.full((1, 1), 2, "i4"))),
         ("i,i,->", (np.ones(3, bool), np.full(3, 100, "i1"), np.array(2, "i8"))), ("ij->i", (np.eye(3, 4) > 0,)), ("ij->", (np.zeros((2, 2), bool),)),
         ("ij,k->k", (np.full((2, 3), True), np.array([1, 2], "i4")))]


@pytest.mark.parametrize("case", MIXED, ids=lambda case: f"{case[0]} {' '.join(str(a.dtype) for a in case[1])}")
def test_einsum_works_in_the_common_dtype(session, mesh22, case):
    notation, arrays = case
    for seed in range(3):
        tensors = [place(session, a, mesh22, seed + i) for i, a in enumerate(arrays)]
        close(ts.einsum(notation, *tensors), np.asarray(np.einsum(notation, *arrays)))


@pytest.mark.parametrize("dtypes", [
    ("int8", "uint8", "bfloat16"), ("bfloat16", "int8", "uint8"), ("uint8", "float16", "int8"), ("int16", "uint16", "float32"),
    ("int8", "uint8", "int16"), ("int64", "uint64", "float32"), ("bool", "int8", "float16")], ids=str)
def test_einsum_promotes_all_operands_together(session, mesh4, dtypes):
    operands = [ts.ones((2,), dtype=getattr(ts, name), device_mesh=mesh4) for name in dtypes]
    result = ts.einsum("i,i,i->i", *operands)
    assert result.dtype == np.result_type(*(getattr(ts, name) for name in dtypes))
    np.testing.assert_array_equal(result.full_tensor().astype("f8"), np.ones(2))


def test_einsum_refuses_what_does_not_broadcast(session, mesh4):
    x, y = ts.ones((3, 2), device_mesh=mesh4), ts.ones((4, 5), device_mesh=mesh4)
    with pytest.raises(ts.InvalidArgumentError, match="einsum: inner dims differ"):
        ts.einsum("ij,jk->ik", x, y)
    for refused in (lambda: x[:, :1] @ y, lambda: ts.tensordot(x[:, :1], y, axes=1)):
        with pytest.raises(ts.InvalidArgumentError, match="inner dims differ"):
            refused()


def test_named_products(session, mesh22, rng):
    same(session, mesh22, ts.bmm, np.matmul, [(5, 3, 4), (5, 4, 2)], rng)
    same(session, mesh22, ts.mm, np.matmul, [(3, 4), (4, 2)], rng)
    same(session, mesh22, ts.outer, np.outer, [(5,), (6,)], rng)
    same(session, mesh22, ts.vecdot, np.vecdot, [(4, 3, 5), (3, 5)], rng)
    same(session, mesh22, lambda a, b: ts.linalg.vecdot(a, b, axis=-2), lambda a, b: np.vecdot(a, b, axis=-2),
         [(4, 3, 5), (3, 5)], rng)
    same(session, mesh22, lambda a, b: ts.vecdot(a, b, axis=np.int64(-1)), np.vecdot, [(4, 5), (5,)], rng, rounds=1)
    same(session, mesh22, ts.tensordot, np.tensordot, [(3, 4, 5), (4, 5, 2)], rng)
    for axes in (0, 1, np.int64(1), np.array([[2], [0]]), ([0, 2], [1, 0]), ([-1], [0])):
        same(session, mesh22, lambda a, b: ts.tensordot(a, b, axes=axes), lambda a, b: np.tensordot(a, b, axes=axes),
             [(3, 4, 5), (5, 3, 2)], rng, rounds=2)


def test_addmm_scales_and_broadcasts(session, mesh22, rng):
    shapes = [(5,), (3, 4), (4, 5)]
    same(session, mesh22, ts.addmm, lambda c, a, b: c + a @ b, shapes, rng)
    same(session, mesh22, lambda c, a, b: ts.addmm(c, a, b, beta=2, alpha=0.5), lambda c, a, b: 2 * c + 0.5 * (a @ b),
         shapes, rng)


def test_addmm_takes_numbers_and_arrays(session, mesh22, rng):
    a, b = rng.random((3, 4)), rng.random((4, 5))
    x, y = (session.distribute_tensor(array, mesh22, [S(0), S(1)]) for array in (a, b))
    for addend in (1, 1.5, True, np.float64(2), np.int8(3), np.ones((3, 1)), np.array(2.0)):
        for options in ({}, {"beta": 2}, {"beta": np.float32(0.5), "alpha": 3}, {"beta": 0}, {"beta": True, "alpha": False},
                        {"alpha": np.array(0.5)}):
            want = options.get("beta", 1) * addend + options.get("alpha", 1) * (a @ b)
            close(ts.addmm(addend, x, y, **options), want)
    close(ts.addmm(0, x, y, alpha=x[0, 0]), a[0, 0] * (a @ b))
    ones = ts.ones((2, 2), dtype="int32", device_mesh=mesh22)
    assert ts.addmm(ones, ones, ones, alpha=0.5).dtype == np.float64
    close(ts.addmm(ts.full((5,), np.nan, device_mesh=mesh22), x, y, beta=0), a @ b)


def test_addmm_checks_an_input_that_it_does_not_read(session, mesh4, cluster):
    x = ts.ones((3, 4), device_mesh=mesh4)
    other = cluster.connect()
    foreign = ts.ones((3,), device_mesh=other.default_mesh)
    for beta in (1, 0, 2, 0.0):
        for addend, match in [("junk", "addmm: str"), (None, "addmm: NoneType"),
                              (ts.ones((3, 3, 4), device_mesh=mesh4), r"addmm: .*\[3,3,4\].*\[3,3\]"), (np.ones((2, 3, 3)), r"addmm: .*\[2,3,3\].*\[3,3\]"),
                              (ts.ones((7, 7), device_mesh=mesh4), r"addmm: .*\[7,7\].*\[3,3\]"), (ts.ones((1, 1, 1), device_mesh=mesh4), r"addmm: .*\[1,1,1\].*\[3,3\]"),
                              (foreign, "addmm: .*another session")]:
            with pytest.raises(ts.InvalidArgumentError, match="^" + match):
                ts.addmm(addend, x, x.T, beta=beta)
    other.close()


@pytest.mark.parametrize("name", ["beta", "alpha"])
def test_addmm_scales_by_numbers(session, mesh4, name):
    x = ts.ones((4, 4), device_mesh=mesh4)
    for factor in ("2", None, np.array([1, 2]), x, x[0, :1], 10**30, [1, 2], np.str_("2")):
        with pytest.raises(ts.InvalidArgumentError, match="^addmm: "):
            ts.addmm(x, x, x, **{name: factor})


def test_what_addmm_refuses_is_named_after_it(session, mesh4):
    x, y = ts.ones((3, 4), device_mesh=mesh4), ts.ones((4,), device_mesh=mesh4)
    for operands in ((y, x, y), (y, x, x), (y, x, np.ones((4, 3))), (y, y, x)):
        with pytest.raises(ts.InvalidArgumentError, match="^addmm: "):
            ts.addmm(*operands)
    sharded = session.distribute_tensor(np.ones((8, 8)), mesh4, [S(1)])
    with ts.implicit_redistribution("forbid"), pytest.raises(ts.FailedPreconditionError, match="^addmm: .*forbidden: matmul"):
        ts.addmm(sharded, sharded.T, sharded.T)


def test_implicit_moves_are_told_by_what_was_called(session, mesh4):
    x = session.distribute_tensor(np.ones((4, 8, 8)), mesh4, [S(2)])
    with ts.implicit_redistribution("forbid"):
        for call, name in ((ts.bmm, "bmm"), (ts.matmul, "matmul")):
            with pytest.raises(ts.FailedPreconditionError, match=f"^{name}: implicit redistribution is forbidden: "):
                call(x, x)
        with pytest.raises(ts.FailedPreconditionError, match="^mm: implicit"):
            ts.mm(x[0], x[0])
    with ts.implicit_redistribution("warn"), pytest.warns(ts.ImplicitRedistributionWarning, match="^bmm: einsum"):
        ts.bmm(x, x)
    with pytest.raises(ts.InvalidArgumentError, match="^mm: inner dims differ"):
        ts.mm(x[0], x[0, :4])


def test_what_a_warning_runs_speaks_for_itself(session, mesh4, monkeypatch):
    x = session.distribute_tensor(np.ones((4, 8, 8)), mesh4, [S(2)])
    said = []

    def show(*_, **__):
        with pytest.raises(ts.TesseraError) as caught:
            ts.ones((1 << 20, 1 << 20), device_mesh=mesh4).wait()
        said.append(str(caught.value))

    monkeypatch.setattr("warnings.showwarning", show)
    with ts.implicit_redistribution("warn"):
        ts.bmm(x, x)
    assert said and said[0].startswith("ones: "), said


def test_addmm_works_in_the_memory_of_its_product(new_cluster):
    cluster = new_cluster(workers=1, memory="36MiB")
    session = cluster.connect()
    mesh = session.init_device_mesh((1,))
    a, b, r = (session.distribute_tensor(np.ones(shape), mesh) for shape in [(2048, 16), (16, 2048), (2048,)])
    for options in ({}, {"alpha": 2}, {"alpha": 2, "beta": 3}):
        result = ts.addmm(r, a, b, **options)
        assert result[0, 0].item() == options.get("beta", 1) + options.get("alpha", 1) * 16
        del result


@pytest.mark.parametrize("dtype", ["i4", "i8", "f4"])
def test_batches_of_every_dtype(session, mesh22, rng, dtype):
    same(session, mesh22, ts.matmul, np.matmul, [(2, 3, 4), (2, 4, 5)], rng, dtype=dtype)


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("i4", "i8"), ("i4", "f8")], ids=str)
def test_dtypes_are_promoted(session, mesh22, rng, dtypes):
    arrays = [rng.integers(-4, 5, shape).astype(dtype) for shape, dtype in zip([(6, 4), (4, 5)], dtypes)]
    for seed in range(4):
        x, y = (place(session, a, mesh22, 3 * seed + i) for i, a in enumerate(arrays))
        close(x @ y, arrays[0] @ arrays[1])
        close(y.T @ x.T, arrays[1].T @ arrays[0].T)


def test_permuted_and_sliced_operands_are_read_as_they_lie(session, mesh22, rng):
    a, b = rng.random((4, 6, 5)), rng.random((5, 7, 6))
    x, y = session.distribute_tensor(a, mesh22, [S(0), R()]), session.distribute_tensor(b, mesh22, [R(), S(1)])
    close(ts.einsum("bmk,knm->nb", x, y), np.einsum("bmk,knm->nb", a, b))
    close(x.transpose(1, 0, 2)[:, ::2] @ y[:, 1:4, 0], np.matmul(a.transpose(1, 0, 2)[:, ::2], b[:, 1:4, 0]))


def test_pending_operands_stay_pending(session, mesh4, rng):
    a, b = rng.random((3, 6, 8)), rng.random((3, 8, 5))
    x, y = session.distribute_tensor(a, mesh4, [S(2)]), session.distribute_tensor(b, mesh4, [S(1)])
    product = ts.bmm(x, y)
    assert product.placements == (P("sum"),)
    close(product, a @ b)
    close(ts.matmul(product, session.distribute_tensor(np.eye(5), mesh4, [R()])), a @ b)
    assert ts.bmm(session.distribute_tensor(b, mesh4, [S(0)]), session.distribute_tensor(b.mT.copy(), mesh4, [S(0)])).placements == (S(0),)


@pytest.mark.whole_system
def test_large_operands_are_read_in_place_and_counted_once(session, mesh4, rng):
    a, b = rng.random((512, 640)), rng.random((640, 256))
    batches = rng.random((2, 256, 300)), rng.random((2, 300, 192))
    for left, right in [(S(0), S(0)), (S(0), S(1)), (S(1), S(1)), (R(), S(0)), (S(1), R())]:
        x, y = session.distribute_tensor(a, mesh4, [left]), session.distribute_tensor(b, mesh4, [right])
        plan = ts.explain(ts.matmul, x, y)
        with session.comm_debug() as comm:
            product = x @ y
        assert comm.bytes_received[:4] == plan.bytes_received, plan
        close(product, a @ b)
    x, y = session.distribute_tensor(a, mesh4, [S(0)]), session.distribute_tensor(b, mesh4, [S(0)])
    plan = ts.explain(ts.matmul, x, y)
    assert plan.steps[0].startswith("contract "), plan
    assert plan.peak_bytes == [(a.nbytes + b.nbytes + 512 * 256 * 8) // 4] * 4, plan
    for axis in (0, 1, 2):
        x = session.distribute_tensor(batches[0], mesh4, [S(axis)])
        y = session.distribute_tensor(batches[1], mesh4, [S(1)])
        plan = ts.explain(ts.bmm, x, y)
        with session.comm_debug() as comm:
            product = ts.bmm(x, y)
        assert comm.bytes_received[:4] == plan.bytes_received, plan
        close(product, batches[0] @ batches[1])


def test_wrong_shapes_are_errors_where_they_are_made(session, mesh4):
    x = session.distribute_tensor(np.ones((3, 4, 5)), mesh4, [R()])
    for function, match in [(lambda: ts.matmul(x, x), "inner dims differ"), (lambda: ts.bmm(x, x[0]), "batches of matrices"),
                            (lambda: ts.bmm(x, x.mT[:2]), r"bmm: the batches differ, 3 and 2 .*f64\[3,4,5\].*f64\[2,5,4\]"),
                            (lambda: ts.matmul(x, x.transpose(0, 2, 1)[:2]), "batch dims"),
                            (lambda: ts.einsum("ij,jk->ik", x, x), "has other dims"), (lambda: ts.einsum("ijk,->l", x), "operands"),
                            (lambda: ts.einsum("ijk->l", x), "in no operand"), (lambda: ts.einsum("i k", x), "other dims"),
                            (lambda: ts.tensordot(x, x, axes=4), "axes 4"), (lambda: ts.outer(x, x), "vectors"),
                            (lambda: ts.vecdot(x, x, axis=-4), "axis")]:
        with pytest.raises(ts.InvalidArgumentError, match=match):
            function()
    for axes in (np.nan, None, ([1],), ([1], [0], [0]), 1.0, "1", ([1.0], [0])):
        with pytest.raises(ts.InvalidArgumentError, match="^tensordot: axes"):
            ts.tensordot(x, x, axes=axes)
    for axis in (0, 1.0, "0", None, np.int64(1), [-1, -2]):
        with pytest.raises(ts.InvalidArgumentError, match="^vecdot: axis"):
            ts.vecdot(x, x, axis=axis)
    with pytest.raises(ts.InvalidArgumentError, match="'i' is 3 and 2"):
        ts.einsum("iij->j", session.distribute_tensor(np.ones((3, 2, 2)), mesh4, [R()]))


@pytest.mark.parametrize("notation, shapes", [
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)]), ("ij,jk,kl,ll->i", [(3, 4), (4, 5), (5, 6), (6, 6)]), ("ii->i", [(6, 6)]),
    ("ii", [(6, 6)]), ("iij->j", [(3, 3, 2)]), ("ijij->ji", [(2, 3, 2, 3)]), ("ii,i->i", [(6, 6), (6,)]),
    ("iii->i", [(4, 4, 4)]), ("a,b,c,d,e,f,g->gfedcba", [(2,)] * 7), ("ij,ij,ij,jk->k", [(3, 4), (1, 4), (3, 1), (4, 2)]),
    ("...ij,...jk,kl->...il", [(2, 3, 4), (4, 5), (5, 2)])])
def test_einsum_of_any_number_of_operands(session, mesh22, rng, notation, shapes):
    arrays = [rng.standard_normal(shape) for shape in shapes]
    want = np.einsum(notation, *arrays)
    for placements in ([R(), R()], [S(0), R()], [R(), S(0)]):
        tensors = [session.distribute_tensor(a, mesh22, placements) for a in arrays]
        np.testing.assert_allclose(ts.einsum(notation, *tensors).full_tensor(), want, rtol=1e-9, atol=1e-9)


def test_einsum_multiplies_the_cheapest_pair_first(session, mesh4):
    """Two matrices and a vector: from the vector's side no product of matrices is made."""
    a = session.distribute_tensor(np.ones((512, 512), np.float32), mesh4, [S(0)])
    x = session.distribute_tensor(np.ones(512, np.float32), mesh4, [R()])
    with session.comm_debug() as comm:
        ts.einsum("ij,jk,k->i", a, a, x).wait()
    assert sum(comm.bytes_received) < 512 * 512 * 4
