"""Operands that are not where the others are: of the CPU they are an error that says what to write; whole ones of a larger mesh are
taken from there."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import ExpertParallel, MixtureOfExperts, parallelize_module

S, R = ts.Shard, ts.Replicate()


@pytest.fixture
def pair(session):
    """Two of the four workers; what names no mesh goes to all four."""
    return session.init_device_mesh((2,), mesh_dim_names=("dp",), workers=[1, 3])


def on(mesh, *extents, placement=S(0)):
    return tt.distribute_tensor(torch.randn(*extents), mesh, [placement])


# ---- tensors of the CPU ------------------------------------------------------------------------------------------

STRANGERS = {
    "linear": lambda x, c: F.linear(c, x), "layer_norm": lambda x, c: F.layer_norm(c, (4,), x[0], x[1]),
    "layer_norm weight": lambda x, c: F.layer_norm(x, (4,), c[0], c[1]), "rms_norm": lambda x, c: F.rms_norm(c, (4,), x[0]),
    "conv1d": lambda x, c: F.conv1d(c[None], x[:, :, None]), "conv2d": lambda x, c: F.conv2d(c[None, None], x[None, None, :2, :2]),
    "batch_norm": lambda x, c: F.batch_norm(c, x[0], x[1], training=False), "group_norm": lambda x, c: F.group_norm(c, 2, x[0], x[1]),
    "stack": lambda x, c: torch.stack([c, x]), "stack after": lambda x, c: torch.stack([x, c]), "cat": lambda x, c: torch.cat([c, x]),
    "add": lambda x, c: c + x, "mul": lambda x, c: x * c, "sub": lambda x, c: c - x, "div": lambda x, c: x / c, "pow": lambda x, c: c**x,
    "eq": lambda x, c: c == x, "maximum": lambda x, c: torch.maximum(c, x), "where": lambda x, c: torch.where(x > 0, x, c),
    "where condition": lambda x, c: torch.where(c > 0, x, x), "matmul": lambda x, c: c @ x, "addmm": lambda x, c: torch.addmm(c, x, x),
    "bmm": lambda x, c: torch.bmm(c[None], x[None]), "einsum": lambda x, c: torch.einsum("ij,jk", c, x), "outer": lambda x, c: torch.outer(c[0], x[0]),
    "embedding": lambda x, c: F.embedding(torch.zeros(2, dtype=torch.int64), x), "gather": lambda x, c: x.gather(0, c.long()),
    "index_select": lambda x, c: x.index_select(0, torch.zeros(2, dtype=torch.int64)), "scatter": lambda x, c: x.scatter(0, c.long() * 0, x),
    "cross_entropy": lambda x, c: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64)), "mse_loss": lambda x, c: F.mse_loss(c, x),
    "lerp": lambda x, c: torch.lerp(c, x, 0.5),
    "addcmul": lambda x, c: torch.addcmul(c, x, x), "masked_fill": lambda x, c: x.masked_fill(c > 0, 0.0), "clamp": lambda x, c: x.clamp(min=c),
    "in place": lambda x, c: x.add_(c), "in place of the CPU's": lambda x, c: c.add_(x), "prelu": lambda x, c: F.prelu(c, x[0]),
    "bilinear": lambda x, c: F.bilinear(c, x, x[None]), "foreach": lambda x, c: torch._foreach_add([x, c], [x, x]),
    "searchsorted": lambda x, c: torch.searchsorted(x, c), "cdist": lambda x, c: torch.cdist(c, x), "dot": lambda x, c: c[0].dot(x[0]),
    "cumulative": lambda x, c: torch.logical_and(c, x), "complex": lambda x, c: torch.complex(c, x), "index_add": lambda x, c: x.index_add(0, torch.arange(4), c),
    "solve": lambda x, c: torch.linalg.solve(x, c), "kron": lambda x, c: torch.kron(c, x), "atan2": lambda x, c: torch.atan2(c, x),
    "multi-head": lambda x, c: nn.MultiheadAttention(4, 2).to("tessera")(c, c, c),
    "huber": lambda x, c: F.huber_loss(x, c), "kl": lambda x, c: F.kl_div(x, c), "bce": lambda x, c: F.binary_cross_entropy_with_logits(x, c),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_tensor_of_the_cpu_beside_others_is_an_error_that_says_what_to_write(mesh, name):
    x = on(mesh, 4, 4)
    with pytest.raises(ts.InvalidArgumentError, match=r"(?s)\w+: expected all tensors to be on the same device, but \w+\[.*\] on cpu stands beside "
                                                       r"tessera\..*; tt.distribute_tensor\(x, mesh, placements\) brings it there"):
        STRANGERS[name](x, torch.rand(4, 4))


def test_where_torch_looks_first_the_error_is_its_own(mesh):
    x, other = on(mesh, 4, 4), torch.rand(4, 4)
    with pytest.raises(RuntimeError, match="same device type, but got query.device: cpu key.device: tessera:0"):
        F.scaled_dot_product_attention(other[None], x[None], x[None])
    with pytest.raises(RuntimeError, match="found input tensor at cpu and parameter tensor at tessera:0"):
        nn.LSTM(4, 4).to("tessera")(other)


def test_a_row_s_own_error_is_left_as_it_is(mesh):
    x = on(mesh, 4, 4)
    with pytest.raises(ts.InvalidArgumentError, match="matmul"):
        x @ on(mesh, 3, 3)
    with pytest.raises(IndexError):
        x[torch.tensor([7])].cpu()


# ---- tensors of another mesh --------------------------------------------------------------------------------------

def test_what_a_factory_made_is_taken_to_the_mesh_of_what_it_meets(session, pair):
    x = on(pair, 6, 4)
    reference = x.full_tensor()
    positions = torch.arange(4, device=x.device)
    mask = torch.ones(6, 4, dtype=torch.bool, device=x.device).tril()
    table = torch.randn(4, 4).to(x.device)
    for function in (lambda x, p, m, t: x + p, lambda x, p, m, t: p * x, lambda x, p, m, t: x.masked_fill(~m, -1.0), lambda x, p, m, t: torch.where(m, x, 0.0),
                     lambda x, p, m, t: x @ t, lambda x, p, m, t: F.embedding(p, t) + x[:4], lambda x, p, m, t: x.index_select(1, p),
                     lambda x, p, m, t: torch.cat([x, t]), lambda x, p, m, t: torch.stack([t, x[:4]]), lambda x, p, m, t: x.gather(1, (m * p).long()),
                     lambda x, p, m, t: F.linear(x, t, t[0]), lambda x, p, m, t: F.layer_norm(x, (4,), t[0], t[1]), lambda x, p, m, t: x[m],
                     lambda x, p, m, t: x.clone().mul_(m), lambda x, p, m, t: torch.addcmul(x[:4], t, t), lambda x, p, m, t: x[p.flip(0)]):
        got = function(x, positions, mask, table)
        expected = function(reference, positions.cpu(), mask.cpu(), table.cpu())
        assert got.device_mesh == pair
        torch.testing.assert_close(got.cpu(), expected)
    assert positions.device_mesh == session.default_mesh        # it may meet another mesh next


def test_that_moves_no_bytes(session, pair):
    x = on(pair, 64, 64)
    table = torch.randn(64, 64, device="tessera")
    with session.comm_debug() as comm:
        (x * table).wait()
    assert sum(comm.bytes_received) == 0


def test_gradients_go_through_it(pair):
    x = on(pair, 6, 4).requires_grad_()
    reference = x.full_tensor().detach().requires_grad_()
    scale, letters = torch.rand(4), torch.tensor([0, 2, 5])
    for one, where in ((x, "tessera"), (reference, "cpu")):
        (F.embedding(letters.to(where), one) * scale.to(where)).square().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), reference.grad)


def test_what_is_written_to_goes_along_and_its_views_too(pair):
    x = on(pair, 4, 4)
    mask = torch.zeros(4, 4, device="tessera")
    row = mask[1]
    mask += x
    assert mask.device_mesh == pair
    torch.testing.assert_close(row.cpu(), x.cpu()[1])
    total = torch.zeros(4, 4, device="tessera")
    total[:2].copy_(x[:2])
    torch.testing.assert_close(total.cpu()[:2], x.cpu()[:2])


def test_what_can_not_come_is_an_error_that_names_default_placement(session, pair):
    x, other = on(pair, 4, 4), session.init_device_mesh((2,), workers=[0, 2])
    with pytest.raises(ts.InvalidArgumentError, match="add: operands live on different workers.*tt.default_placement"):
        x + on(other, 4, 4, placement=R)
    with pytest.raises(ts.InvalidArgumentError, match="mul.*different workers.*tt.default_placement"):
        x * torch.ones(4, 4, device="tessera", requires_grad=True)
    with pytest.raises(ts.InvalidArgumentError, match="different workers.*tt.default_placement"):
        x * on(session.default_mesh, 4, 4)      # in shards: bytes would move


def test_experts_on_a_part_of_the_workers(session):
    mesh = session.init_device_mesh((2,), mesh_dim_names=("ep",), workers=[0, 1])
    reference = MixtureOfExperts(8, 16, experts=4, top_k=2, groups=2)
    model = parallelize_module(copy.deepcopy(reference), mesh, ExpertParallel())
    x = torch.randn(4, 6, 8)
    expected = reference(x)
    got = model(tt.distribute_tensor(x, mesh, [S(0)]))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-6)
    for one, out in ((reference, expected), (model, got)):
        (out.square().mean() + 0.01 * one.balance).backward()
    for (name, one), other in zip(model.named_parameters(), reference.parameters()):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_module_that_came_by_to_is_made_parallel_on_another_mesh(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    reference = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    model = copy.deepcopy(reference).to("tessera")
    parallelize_module(model, mesh["tp"], {"0": tt.parallel.ColwiseParallel(), "2": tt.parallel.RowwiseParallel()})
    for layer in (model[0], model[2]):
        tt.fully_shard(layer, mesh=mesh["dp"])
    x = torch.randn(6, 8)
    torch.testing.assert_close(model(x.to("tessera")).cpu(), reference(x), rtol=1e-5, atol=1e-6)


# ---- bools -----------------------------------------------------------------------------------------------------

def test_bools_times_numbers_are_what_they_are_on_the_cpu(mesh):
    own = torch.tensor([True, False, True])
    b = own.to("tessera")
    for function in (lambda b: b * True, lambda b: True * b, lambda b: b * False, lambda b: b * 2, lambda b: b * 0.5, lambda b: b * b,
                     lambda b: b.clone().mul_(True), lambda b: torch.mul(b, False), lambda b: b.int() * True, lambda b: b.double() * True,
                     lambda b: b * torch.tensor(True)):
        got, expected = function(b), function(own)
        assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
