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


def test_factors_that_were_made_elsewhere_are_refused(mesh):
    lu, pivots = torch.linalg.lu_factor(MATRIX)
    x, y = (tt.distribute_tensor(one, mesh, [R]) for one in (lu, pivots))
    with pytest.raises(NotImplementedError, match="linalg_lu_solve"):
        torch.linalg.lu_solve(x, y, tt.distribute_tensor(TALL[:4], mesh, [R]))


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
