"""Sparse gradients of tables: the CPU's, and its optimizers' steps, wherever the table and the numbers lie."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
NUMBERS = torch.tensor([[1, 4, 4, 0], [2, 2, 7, 6], [1, 0, 3, 5], [4, 4, 4, 9]])
OPTIMIZERS = {
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD of each": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Table(torch.nn.Module):
    """The mean of rows, by an embedding or by a bag."""

    def __init__(self, kind, weight, **options):
        super().__init__()
        make = torch.nn.Embedding if kind == "embedding" else torch.nn.EmbeddingBag
        self.rows = make(*weight.shape, _weight=weight.clone(), sparse=True, **options)

    def forward(self, numbers):
        return self.rows(numbers).square().sum()


def placed(module, mesh, place):
    def onto(name, part, on):
        for own, parameter in list(part.named_parameters(recurse=False)):
            part.register_parameter(own, torch.nn.Parameter(tt.distribute_tensor(parameter.detach(), on, [place])))
    return tt.distribute_module(module, mesh, onto)


CASES = [("embedding", {}), ("embedding", {"padding_idx": 4}), ("bag", {"mode": "sum"}), ("bag", {"mode": "mean", "padding_idx": 4})]


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind, options", CASES, ids=str)
def test_steps_are_those_of_the_cpu(session, workers, optimizer, kind, options):
    mesh = session.init_device_mesh((workers,))
    for place, cut in itertools.product([R, S(0), S(1)], [R, S(0)]):
        here, there = Table(kind, drawn(10, 8), **options), placed(Table(kind, drawn(10, 8), **options), mesh, place)
        steps = [OPTIMIZERS[optimizer](one.parameters()) for one in (here, there)]
        for round_ in range(3):
            numbers = (NUMBERS + round_) % 10
            here(numbers).backward()
            there(tt.distribute_tensor(numbers, mesh, [cut])).backward()
            grad = there.rows.weight.grad
            assert grad.is_sparse and grad.layout == torch.sparse_coo
            torch.testing.assert_close(grad.to_dense().cpu(), here.rows.weight.grad.to_dense())
            for step in steps:
                step.step()
                step.zero_grad()
            torch.testing.assert_close(there.rows.weight.detach().cpu(), here.rows.weight.detach())
        assert there.rows.weight.placements == (place,)


def test_gradients_of_two_passes_are_added(mesh):
    here, there = Table("embedding", drawn(10, 8)), placed(Table("embedding", drawn(10, 8)), mesh, S(0))
    for numbers in (NUMBERS, NUMBERS[:2]):
        here(numbers).backward()
        there(numbers.to("tessera")).backward()
    assert there.rows.weight.grad._nnz() == 24      # torch's CPU merges neighbours
    one, other = (x.rows.weight.grad.coalesce() for x in (there, here))
    assert torch.equal(one.indices().cpu(), other.indices())
    torch.testing.assert_close(one.values().cpu(), other.values())
    torch.testing.assert_close(one.cpu().to_dense(), other.to_dense())


def test_weights_of_samples_have_sparse_rows_beside_them(mesh):
    weights = drawn(16, seed=3)
    starts = torch.tensor([0, 3, 3, 9])
    here, there = drawn(10, 8).requires_grad_(), tt.distribute_tensor(drawn(10, 8), mesh, [S(0)]).requires_grad_()
    of_here, of_there = weights.clone().requires_grad_(), tt.distribute_tensor(weights, mesh, [S(0)]).requires_grad_()
    for table, own in ((here, of_here), (there, of_there)):
        F.embedding_bag(NUMBERS.flatten().to(table.device), table, starts.to(table.device), mode="sum", sparse=True, per_sample_weights=own).square().sum().backward()
    torch.testing.assert_close(there.grad.to_dense().cpu(), here.grad.to_dense())
    torch.testing.assert_close(of_there.grad.cpu(), of_here.grad)


def test_arithmetic_of_sparse_tensors_of_two_dims(mesh):
    at, values = torch.tensor([[0, 2, 2, 0], [1, 3, 3, 0]]), drawn(4, 5)
    here = torch.sparse_coo_tensor(at, values, (3, 4, 5))
    there = torch.sparse_coo_tensor(tt.distribute_tensor(at, mesh), tt.distribute_tensor(values, mesh, [S(0)]), (3, 4, 5))
    dense = drawn(3, 4, 5, seed=2)
    for function in (lambda x, d: x.coalesce(), lambda x, d: x + x, lambda x, d: -x * 3, lambda x, d: x / 2, lambda x, d: d + x,
                     lambda x, d: torch.add(d, x, alpha=0.5), lambda x, d: d.clone().add_(x, alpha=-2), lambda x, d: d.sparse_mask(x.coalesce()),
                     lambda x, d: x.clone().mul_(2).add_(x), lambda x, d: x.double(), lambda x, d: x - x * 3):
        expected, got = function(here, dense), function(there, dense.to("tessera"))
        assert got.is_sparse == expected.is_sparse and got.dtype == expected.dtype
        if got.is_sparse:
            assert got.is_coalesced() == expected.is_coalesced()
        torch.testing.assert_close(got.to_dense().cpu(), expected.to_dense())


def test_no_values(mesh):
    table = placed(Table("embedding", drawn(10, 8)), mesh, R)
    step = torch.optim.SparseAdam(table.parameters())
    table(torch.zeros(0, dtype=torch.int64, device="tessera")).backward()
    step.step()
    assert torch.equal(table.rows.weight.detach().cpu(), drawn(10, 8))


def test_errors_name_the_op(mesh):
    x = torch.sparse_coo_tensor(torch.tensor([[0, 2]], device="tessera"), torch.ones(2, 4, device="tessera"), (5, 4))
    with pytest.raises(NotImplementedError, match="aten.sin.default: has no row in Tessera for sparse tensors; x.to_dense()"):
        x.sin()
    with pytest.raises(ts.InvalidArgumentError, match=r"add_: .* its own shape, not \(5, 3\) and \(5, 4\)"):
        torch.ones(5, 3, device="tessera").add_(x)
    with pytest.raises(ts.InvalidArgumentError, match="takes indices and values on one device"):
        torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 4, device="tessera"), (5, 4))
    with pytest.raises(ts.InvalidArgumentError, match="add_: a sparse tensor can't take a dense one"):
        x.add_(torch.ones(5, 4, device="tessera"))
    assert "nnz=2" in repr(x)
