"""Linear algebra, transforms and what is found by order: what OpInfo can't say of them."""

import pytest
import torch

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard


def both(x, mesh, placement):
    """The leaf here and on the workers."""
    return x.clone().requires_grad_(), tt.distribute_tensor(x, mesh, [placement]).requires_grad_()


def brought(values, x):
    return values if x.device.type == "cpu" else tt.distribute_tensor(values, x.device_mesh)


MATRIX = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) + 3 * torch.eye(4)
TALL = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("placement", [R, S(0), S(1)])
@pytest.mark.parametrize("function, matrix", [
    (lambda a: torch.linalg.eigh(a @ a.mT)[1].abs(), MATRIX), (lambda a: torch.linalg.eigh(a @ a.mT)[0], MATRIX),
    (lambda a: torch.linalg.svd(a, full_matrices=False)[0].abs(), TALL), (lambda a: torch.linalg.qr(a)[0], TALL),
    (lambda a: torch.linalg.qr(a)[1], TALL), (lambda a: torch.linalg.solve(a, a[:, :2]), MATRIX),
    (lambda a: torch.linalg.solve(a, a[:2], left=False), MATRIX), (lambda a: torch.linalg.solve(a, a[0]), MATRIX),
    (lambda a: torch.linalg.slogdet(a)[1], MATRIX), (torch.linalg.det, MATRIX), (lambda a: torch.linalg.cholesky(a @ a.mT), MATRIX),
    (lambda a: torch.linalg.eigvals(a).abs().sort().values, MATRIX), (lambda a: torch.linalg.eig(a)[1].abs().square().sum(), MATRIX),
    (lambda a: torch.linalg.matrix_exp(a / 3), MATRIX), (lambda a: torch.linalg.lu(a)[1], TALL), (lambda a: torch.linalg.lu(a.mT)[2], TALL),
    (lambda a: torch.linalg.lu_factor(a)[0], MATRIX), (lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a[:, :2]), MATRIX),
    (lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a[:2], left=False), MATRIX),
    (lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a[:, :2], adjoint=True), MATRIX),
    (lambda a: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), a[:2], left=False, adjoint=True), MATRIX),
    (torch.linalg.pinv, TALL), (lambda a: torch.linalg.pinv(a, rtol=0.5), TALL), (lambda a: torch.linalg.pinv(a @ a.mT, hermitian=True, atol=0.1), TALL),
    (lambda a: torch.linalg.lstsq(a, a[:, :2] * 2 + 1)[0], TALL), (lambda a: torch.linalg.lstsq(a, a[:, 0] + 1, driver="gelsd")[0], TALL),
    (lambda a: torch.linalg.lstsq(a, a[:, :1] + 1, driver="gels").residuals, TALL), (lambda a: torch.linalg.cond(a), MATRIX),
    (lambda a: torch.cholesky_solve(a[:, :2], torch.linalg.cholesky(a @ a.mT)), MATRIX),
    (lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a @ a.mT, upper=True), upper=True), MATRIX),
    (lambda a: torch.linalg.householder_product(a, torch.ones_like(a[0]) / 2), TALL), (lambda a: torch.linalg.multi_dot([a, a.mT, a]), TALL),
    (lambda a: torch.linalg.matrix_power(a, -2), MATRIX), (lambda a: torch.linalg.matrix_norm(a, 2), TALL),
    (lambda a: torch.linalg.tensorsolve(a.reshape(2, 2, 4), a[0].reshape(2, 2)), MATRIX), (lambda a: torch.linalg.tensorinv(a.reshape(2, 2, 4)), MATRIX),
    (lambda a: torch.fft.irfft(torch.fft.rfft(a) * 2, n=4), TALL), (lambda a: torch.fft.fft2(a, norm="ortho").abs(), TALL),
    (lambda a: a.median(0).values, TALL), (lambda a: a.median(), TALL), (lambda a: a.cummax(0).values, TALL),
], ids=lambda value: "" if callable(value) else "x".join(map(str, value.shape)))
def test_values_and_gradients_are_those_of_the_cpu(mesh, function, matrix, placement):
    here, there = both(matrix, mesh, placement)
    expected, got = function(here), function(there)
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    (expected * weights).sum().backward()
    (got * brought(weights, got)).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-3, atol=1e-4)


def test_a_singular_matrix_is_named_where_the_result_is_read(mesh):
    x = tt.distribute_tensor(torch.zeros(3, 3), mesh, [R])
    with pytest.raises(ts.LinAlgError, match="inv"):
        torch.linalg.inv(x).cpu()
    assert x.sum().item() == 0


def test_factors_that_were_made_elsewhere(mesh):
    factors = torch.linalg.lu_factor(MATRIX)
    there = [tt.distribute_tensor(one, mesh, [S(0)]) for one in factors]
    for options in ({}, {"adjoint": True}, {"left": False}, {"left": False, "adjoint": True}):
        b = TALL[:4] if options.get("left", True) else TALL
        torch.testing.assert_close(torch.linalg.lu_solve(*there, tt.distribute_tensor(b, mesh, [S(0)]), **options).cpu(),
                                   torch.linalg.lu_solve(*factors, b, **options), rtol=1e-4, atol=1e-5)
    for got, expected in zip(torch.lu_unpack(*there), torch.lu_unpack(*factors)):
        torch.testing.assert_close(got.cpu(), expected)
    for got, expected in zip(torch.linalg.lu_factor(tt.distribute_tensor(MATRIX, mesh, [S(1)])), factors):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.parametrize("placement", [R, S(0), S(1)])
@pytest.mark.parametrize("shape", [(19, 19), (13, 19), (19, 13), (3, 9, 11), (4, 4), (1, 3)], ids=str)
def test_factors_without_pivots(mesh, shape, placement):
    """torch has them on GPUs alone: L U is the matrix, and a gradient that goes through them is the sum's."""
    a = torch.randn(shape, generator=torch.Generator().manual_seed(2)) + 6 * torch.eye(*shape[-2:])
    x = tt.distribute_tensor(a, mesh, [placement]).requires_grad_()
    none, lower, upper = torch.linalg.lu(x, pivot=False)
    assert none.numel() == 0 and torch.equal(lower.detach().cpu().diagonal(0, -2, -1), torch.ones(*shape[:-2], min(shape[-2:])))
    assert torch.equal(lower.detach().cpu(), lower.detach().cpu().tril()) and torch.equal(upper.detach().cpu(), upper.detach().cpu().triu())
    torch.testing.assert_close((lower @ upper).detach().cpu(), a, rtol=1e-4, atol=1e-5)
    (lower @ upper).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.ones(shape), rtol=1e-3, atol=1e-3)
    factors, pivots, info = torch.linalg.lu_factor_ex(x.detach(), pivot=False)
    torch.testing.assert_close(factors.cpu(), lower.detach().cpu().tril(-1)[..., :factors.shape[-1]] + upper.detach().cpu()
                               if shape[-2] == shape[-1] else factors.cpu())
    assert pivots.cpu().flatten().tolist() == list(range(1, min(shape[-2:]) + 1)) * (shape[0] if len(shape) > 2 else 1) and not info.cpu().any()


def test_factors_without_pivots_solve_and_tell_a_zero(mesh):
    x, b = tt.distribute_tensor(MATRIX, mesh, [S(0)]), tt.distribute_tensor(TALL[:4], mesh, [S(0)])
    torch.testing.assert_close(torch.linalg.lu_solve(*torch.linalg.lu_factor(x, pivot=False), b).cpu(), torch.linalg.solve(MATRIX, TALL[:4]))
    singular = tt.distribute_tensor(torch.tensor([[1.0, 2, 3], [2, 4, 1], [0, 1, 1]]), mesh)
    assert torch.linalg.lu_factor_ex(singular, pivot=False).info.item() == 2


def test_factors_of_complex_matrices_and_batches(mesh):
    a = torch.complex(MATRIX, MATRIX.flip(0)).expand(3, 4, 4).clone() + torch.arange(3.0)[:, None, None] * torch.eye(4)
    x, b = tt.distribute_tensor(a, mesh, [S(0)]), torch.complex(TALL[:4, :2], TALL[2:, :2])
    factors = torch.linalg.lu_factor(a)
    for options in ({}, {"adjoint": True}, {"left": False}, {"left": False, "adjoint": True}):
        right = (b if options.get("left", True) else b.mT).expand(3, -1, -1)
        torch.testing.assert_close(torch.linalg.lu_solve(*torch.linalg.lu_factor(x), tt.distribute_tensor(right, mesh, [R]), **options).cpu(),
                                   torch.linalg.lu_solve(*factors, right, **options), rtol=1e-4, atol=1e-5)
    w, v = torch.linalg.eig(x)
    torch.testing.assert_close(x.cpu() @ v.cpu(), v.cpu() * w.cpu()[:, None], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.linalg.pinv(x).cpu(), torch.linalg.pinv(a), rtol=1e-4, atol=1e-5)
    many = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(4))
    for got, expected in zip(torch.linalg.lstsq(*(tt.distribute_tensor(one, mesh, [S(0)]) for one in (many, many[..., :2] + 1)), driver="gelsd"),
                             torch.linalg.lstsq(many, many[..., :2] + 1, driver="gelsd")):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("placement", [R, S(0), S(1)])
@pytest.mark.parametrize("offset", [0, 1, -2])
def test_what_is_written_to_a_diagonal_shows_in_the_matrix(mesh, placement, offset):
    here, there = TALL.clone(), tt.distribute_tensor(TALL, mesh, [placement])
    for x in (here, there):
        x.diagonal(offset).mul_(2)
        x.diagonal(offset)[0] = 7
        x.mT.diagonal(-offset).add_(1)
    assert torch.equal(there.cpu(), here)
    batch, other = torch.arange(24.0).reshape(2, 3, 4), tt.distribute_tensor(torch.arange(24.0).reshape(2, 3, 4), mesh, [S(0)])
    for x in (batch, other):
        x.diagonal(offset, 0, 2).fill_(-1)
    assert torch.equal(other.cpu(), batch)
    assert torch.equal(torch.diagonal_scatter(there, there.diagonal(offset) * 0, offset).cpu(), torch.diagonal_scatter(here, here.diagonal(offset) * 0, offset))


def test_parts_of_complex_numbers(mesh):
    values = torch.complex(TALL, TALL + 1)
    x = tt.distribute_tensor(values, mesh, [S(0)])
    assert torch.equal(torch.view_as_real(x).cpu(), torch.view_as_real(values))
    assert torch.equal(x.real.cpu(), values.real) and torch.equal(x.imag.cpu(), values.imag)
    assert torch.equal(torch.view_as_complex(torch.view_as_real(x)).cpu(), values) and torch.equal(x.conj().cpu(), values.conj().resolve_conj())


def test_order(mesh):
    values = TALL.clone()
    values[2, 1] = float("nan")
    x = tt.distribute_tensor(values, mesh, [S(0)])
    for got, expected in ((x.median(1), values.median(1)), (x.median(0), values.median(0)), (x.kthvalue(2, 1), values.kthvalue(2, 1))):
        assert torch.equal(got.values.cpu().nan_to_num(9), expected.values.nan_to_num(9)) and torch.equal(got.indices.cpu(), expected.indices)
    numbers = torch.tensor([3, 1, 3, 2, 1, 1])
    y = tt.distribute_tensor(numbers, mesh, [S(0)])
    for got, expected in zip(torch.unique(y, return_inverse=True, return_counts=True), torch.unique(numbers, return_inverse=True, return_counts=True)):
        assert torch.equal(got.cpu(), expected)
    assert torch.equal(torch.bincount(y, minlength=6).cpu(), torch.bincount(numbers, minlength=6))
    edges = torch.tensor([1, 2, 3])
    assert torch.equal(torch.bucketize(y, tt.distribute_tensor(edges, mesh, [R]), right=True).cpu(), torch.bucketize(numbers, edges, right=True))


@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_places_in_rows_and_runs(mesh, place):
    drawn = torch.Generator().manual_seed(5)
    rows, values = torch.randint(0, 9, (4, 6), generator=drawn).float().sort(-1).values, torch.randint(-1, 11, (4, 5), generator=drawn).float()
    values[1, 2], values[3, 0] = float("nan"), float("nan")
    sequence, wanted = (tt.distribute_tensor(one, mesh, [place]) for one in (rows, values))
    for options in ({}, {"right": True}, {"side": "left", "out_int32": True}):
        expected = torch.searchsorted(rows, values, **options)
        got = torch.searchsorted(sequence, wanted, **options)
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    sorter = rows.flip(-1).argsort(-1)
    got = torch.searchsorted(tt.distribute_tensor(rows.flip(-1), mesh, [place]), wanted, sorter=tt.distribute_tensor(sorter, mesh, [place]))
    assert torch.equal(got.cpu(), torch.searchsorted(rows.flip(-1).contiguous(), values, sorter=sorter))
    runs = torch.tensor([3, 3, 1, 1, 1, 3, 2, 2])
    for got, expected in zip(torch.unique_consecutive(tt.distribute_tensor(runs, mesh, [S(0)]), return_inverse=True, return_counts=True),
                             torch.unique_consecutive(runs, return_inverse=True, return_counts=True)):
        assert torch.equal(got.cpu(), expected)
    for bounds in ((0, 0), (1, 8)):
        x = values.nan_to_num(4)
        assert torch.equal(torch.histc(tt.distribute_tensor(x, mesh, [place]), 7, *bounds).cpu(), torch.histc(x, 7, *bounds))
    same = torch.full((4,), 2.0)
    assert torch.equal(torch.histc(tt.distribute_tensor(same, mesh, [S(0)]), 3).cpu(), torch.histc(same, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 7), (2, 6, 3)])
def test_the_reflections_of_a_qr_are_those_of_the_cpu(mesh, shape, dtype):
    matrix = torch.randn(shape, dtype=dtype)
    for placement in (ts.Replicate(), ts.Shard(0)):
        for got, expected in zip(torch.geqrf(tt.distribute_tensor(matrix, mesh, [placement])), torch.geqrf(matrix)):
            torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_a_matrix_that_needs_no_reflections_has_a_qr_of_them(mesh):
    for matrix in (torch.eye(4), torch.ones(5, 3).triu()):
        vectors, scales = torch.geqrf(tt.distribute_tensor(matrix, mesh))
        q = torch.linalg.householder_product(vectors, scales).cpu()
        torch.testing.assert_close(q @ vectors.cpu()[:q.shape[1]].triu(), matrix, rtol=1e-5, atol=1e-5)


def test_an_orthogonal_parametrization_is_orthogonal(mesh):
    for kind in ("matrix_exp", "cayley", "householder"):
        m = torch.nn.utils.parametrizations.orthogonal(tt.distribute_module(torch.nn.Linear(6, 4), mesh), orthogonal_map=kind)
        w = m.weight.detach().cpu()
        torch.testing.assert_close(w @ w.t(), torch.eye(4), rtol=1e-4, atol=1e-5)
