"""local_map: what each shard gives by itself, joined, and what moves for it."""

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial


@pytest.fixture
def x(session):
    return np.random.default_rng(0).normal(size=(10, 6))


def shards(array, n):
    size = -(-len(array) // n)
    return [array[i * size:(i + 1) * size] for i in range(n)]


def test_rows_about_their_own_mean_move_nothing(session, x):
    mesh = session.init_device_mesh((4,))
    rows = ts.distribute_tensor(x, mesh, [S(0)])
    rows.wait()
    with session.comm_debug() as moved:
        out = ts.local_map(lambda part: part - part.mean(axis=0), rows)
        out.wait()
    assert sum(moved.bytes_received) == 0
    assert out.placements == (S(0),)
    np.testing.assert_allclose(out.full_tensor(), np.concatenate([p - p.mean(axis=0) for p in shards(x, 4)]))


def test_shards_of_other_extents(session, x):
    mesh = session.init_device_mesh((4,))
    rows = ts.distribute_tensor(x, mesh, [S(0)])
    heads = ts.local_map(lambda part: part[:1], rows, out_placements=[S(0, sizes=[1, 1, 1, 1])])
    np.testing.assert_array_equal(heads.full_tensor(), np.concatenate([p[:1] for p in shards(x, 4)]))
    counts = ts.local_map(lambda part: ts.full((1,), part.shape[0], device_mesh=part.device_mesh), rows, out_placements=[S(0)])
    assert counts.full_tensor().tolist() == [3, 3, 3, 1]
    sorted_parts = ts.local_map(lambda part: ts.sort(part, axis=0), rows)
    np.testing.assert_array_equal(sorted_parts.full_tensor(), np.concatenate([np.sort(p, axis=0) for p in shards(x, 4)]))


def test_an_empty_shard(session):
    mesh = session.init_device_mesh((4,))
    few = ts.distribute_tensor(np.arange(5.0), mesh, [S(0)])       # 2, 2, 1, 0
    np.testing.assert_array_equal(ts.local_map(lambda part: part * part.shape[0], few).full_tensor(), [0, 2, 4, 6, 4])


def test_two_mesh_dims_several_results_and_terms(session, x):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("a", "b"))
    blocks = ts.distribute_tensor(x, mesh, [S(0), S(1)])
    total, squares = ts.local_map(lambda block: (block.sum(), block * block), blocks,
                                  out_placements=([P("sum"), P("sum")], [S(0), S(1)]))
    assert total.placements == (P("sum"), P("sum"))
    np.testing.assert_allclose(float(total), x.sum())
    np.testing.assert_allclose(squares.full_tensor(), x * x)
    nested = ts.distribute_tensor(x, mesh, [S(0), S(0)])
    np.testing.assert_array_equal(ts.local_map(lambda part: part + 1, nested).full_tensor(), x + 1)
    half = ts.distribute_tensor(x, mesh, [R(), S(0)])
    norms = ts.local_map(lambda part: ts.linalg.vector_norm(part, axis=1), half, out_placements=[R(), S(0)])
    np.testing.assert_allclose(norms.full_tensor(), np.linalg.norm(x, axis=1))


@pytest.mark.parametrize("op, reduce", [("sum", np.sum), ("max", np.max), ("min", np.min), ("product", np.prod), ("avg", np.mean)])
def test_terms(session, x, op, reduce):
    mesh = session.init_device_mesh((4,))
    rows = ts.distribute_tensor(x[:8], mesh, [S(0)])
    terms = ts.local_map(lambda part: part[0], rows, out_placements=[P(op)])
    np.testing.assert_allclose(terms.full_tensor(), reduce(x[:8:2], axis=0))


def test_several_tensors_and_numbers(session, x):
    mesh = session.init_device_mesh((4,))
    rows, weights = ts.distribute_tensor(x, mesh, [S(0)]), ts.asarray(np.arange(6.0), device_mesh=mesh)
    out = ts.local_map(lambda part, w, scale: part @ w * scale, rows, weights, 3.0)
    np.testing.assert_allclose(out.full_tensor(), x @ np.arange(6.0) * 3)
    columns = ts.distribute_tensor(x, mesh, [S(1)])
    both = ts.local_map(lambda a, b: a + b, columns, rows, in_placements=[[S(0)], [S(0)]])
    np.testing.assert_array_equal(both.full_tensor(), 2 * x)


def test_what_is_refused(session, x):
    mesh = session.init_device_mesh((4,))
    rows = ts.distribute_tensor(x, mesh, [S(0)])
    with pytest.raises(TypeError, match="local_map: 3 is no function; write "):
        ts.local_map(3, x)
    with pytest.raises(ts.TesseraError, match="needs a Tensor after the function"):
        ts.local_map(lambda: None, 3)
    with pytest.raises(ts.InvalidArgumentError, match="a pending value has terms and no shards"):
        ts.local_map(lambda part: part, rows.sum(axis=0))
    with pytest.raises(ts.TesseraError, match="gave float at .0,., not a Tensor"):
        ts.local_map(lambda part: 1.0, rows)
    with pytest.raises(ts.InvalidArgumentError, match=r"gave shapes \(3, 3\) at \(0,\) and \(3, 2\) at \(1,\)"):
        widths = iter([3, 2, 2, 2])
        ts.local_map(lambda part: part[:, :next(widths)], rows)
    with pytest.raises(ts.InvalidArgumentError, match="2 lists of out_placements for 1 results"):
        ts.local_map(lambda part: part, rows, out_placements=([S(0)], [R()]))
    with pytest.raises(ts.InvalidArgumentError, match="would count them 4 times"):
        ts.local_map(lambda part: part, ts.asarray(x, device_mesh=mesh), out_placements=[P("sum")])
    with pytest.raises(ts.InvalidArgumentError, match="different meshes"):
        ts.local_map(lambda a, b: a, rows, ts.ones((2,), device_mesh=mesh[0:1]))
