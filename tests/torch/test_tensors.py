"""Tensors of tessera.torch: placements, moving between them, handles, dtypes; and what is refused."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from models import R, S

import tessera as ts
import tessera.torch as tt


def test_distribute_tensor_places_and_keeps_what_a_leaf_is(mesh22):
    source = torch.arange(12.0).reshape(4, 3).requires_grad_()
    x = tt.distribute_tensor(source, mesh22, [S(0), S(1)])
    assert x.placements == (S(0), S(1)) and x.device_mesh == mesh22 and x.requires_grad and x.is_leaf
    assert torch.equal(x.to_local((1, 0)), source.detach()[2:, :2]) and x.box((1, 0)) == [(2, 4), (0, 2)]
    assert torch.equal(x.full_tensor(), source.detach())
    again = tt.distribute_tensor(x.detach(), mesh22, [R, S(0)])
    assert again.placements == (R, S(0)) and torch.equal(again.cpu(), source.detach())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                                   torch.float64, torch.complex64], ids=str)
def test_dtypes_there_and_back(mesh, dtype):
    x = torch.tensor([0, 1, 2, 3]).to(dtype)
    assert torch.equal(tt.distribute_tensor(x, mesh, [S(0)]).cpu(), x)


def test_redistribute_and_its_gradient(mesh):
    x = tt.distribute_tensor(torch.ones(8, 4), mesh, [S(0)]).requires_grad_()
    y = x.redistribute(placements=[S(1)])
    z = y.redistribute([R], async_op=True)
    assert y.placements == (S(1),) and z.placements == (R,)
    (z * 2).sum().backward()
    assert x.grad.placements == (S(0),) and torch.equal(x.grad.cpu(), torch.full((8, 4), 2.0))
    assert x.redistribute([S(0)]) is x and x.redistribute([S(-2)]) is x


def test_a_gradient_that_is_made_on_another_mesh_comes_to_its_parameter(session, mesh):
    own = session.init_device_mesh((2, 2))
    p = torch.nn.Parameter(tt.distribute_tensor(torch.ones(3), own))
    beside = torch.arange(3.0, device="tessera")        # on the default mesh
    p.grad = beside * 0
    (p * p).sum().backward()
    assert p.grad.device_mesh == own and p.grad.placements == p.placements and p.grad.tolist() == [2, 2, 2]


def test_the_gradient_of_a_pending_sum_is_replicated(mesh):
    a = tt.distribute_tensor(torch.ones(4, 8), mesh, [S(1)]).requires_grad_()
    b = tt.distribute_tensor(torch.ones(8, 4), mesh, [S(0)])
    product = a @ b
    assert product.placements == (ts.Partial(),)
    product.retain_grad()
    product.redistribute([S(0)]).sum().backward()
    assert product.grad.placements == (R,) and torch.equal(a.grad.cpu(), torch.full((4, 8), 4.0))


def test_dtypes_on_the_way(session, mesh):
    x = tt.distribute_tensor(torch.ones(8, 4), mesh, [S(0)]).requires_grad_()
    with session.comm_debug() as comm:
        y = x.redistribute([R], forward_dtype=torch.bfloat16)
    assert y.dtype == torch.bfloat16 and sum(comm.bytes_received) == 3 * 8 * 4 * 2
    y.sum().backward()
    assert x.grad.dtype == torch.float32 and x.grad.placements == (S(0),)
    z = x.redistribute([R], backward_dtype=torch.bfloat16)
    assert z.dtype == torch.float32
    z.sum().backward()
    assert x.grad.dtype == torch.float32


def test_handles(mesh):
    handle = mesh._session.distribute_tensor(np.ones((4, 2), np.float32), mesh, [S(0)])
    x = tt.from_handle(handle)
    x.add_(1)
    assert handle.full_tensor().sum() == 8 and tt.to_handle(x).full_tensor().sum() == 16
    kept = tt.to_handle(x)
    x.zero_()
    assert kept.full_tensor().sum() == 16 and ts.sum(tt.to_handle(x)).item() == 0


def test_from_local(mesh):
    x = tt.from_local({(i,): torch.full((2, 3), float(i)) for i in range(4)}, mesh, [S(0)])
    assert x.shape == (8, 3) and x.cpu()[:, 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_distribute_module_with_functions(mesh):
    def place(name, module, device_mesh):
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter(tt.distribute_tensor(module.weight.detach(), device_mesh, [S(0)]))

    m = tt.distribute_module(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)), mesh, place,
                             input_fn=lambda mod, inputs, device_mesh: tt.distribute_tensor(inputs[0], device_mesh),
                             output_fn=lambda mod, out, device_mesh: out.redistribute(placements=[R]))
    assert m[0].weight.placements == (S(0),) and m[0].bias.placements == (R,) and m[1].running_mean.placements == (R,)
    m.eval()
    assert m(torch.ones(2, 8)).placements == (R,)


def test_promotion_is_torchs(mesh):
    cases = [(torch.int64, 2.5), (torch.float32, 2), (torch.bfloat16, 2.5), (torch.bool, 1), (torch.int32, True), (torch.float16, torch.float32),
             (torch.int32, torch.int64), (torch.bool, torch.float32), (torch.float32, torch.tensor(2.0, dtype=torch.float64)),
             (torch.int64, torch.tensor(2.5))]
    for kind, other in cases:
        a = torch.tensor([1, 0, 1]).to(kind)
        b = torch.tensor([1, 1, 0]).to(other) if isinstance(other, torch.dtype) else other
        x = tt.distribute_tensor(a, mesh)
        y = tt.distribute_tensor(b, mesh) if isinstance(other, torch.dtype) else b
        for op in (torch.add, torch.mul, torch.maximum if isinstance(b, torch.Tensor) and b.ndim else torch.add):
            got, expected = op(x, y), op(a, b)
            assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected), (kind, other, op)
    assert (tt.distribute_tensor(torch.tensor([1, 2]), mesh) / 2).dtype == torch.float32
    assert tt.distribute_tensor(torch.tensor([1, 2]), mesh).exp().dtype == torch.float32


# ---- what is refused -----------------------------------------------------------------------------------------------------

def test_an_op_without_a_row_is_named(mesh):
    with pytest.raises(NotImplementedError, match=r"aten\.hash_tensor\.default.*has no row"):
        torch.hash_tensor(tt.distribute_tensor(torch.ones(4, 4), mesh))


def test_tensors_of_other_devices_are_refused(mesh):
    x = tt.distribute_tensor(torch.ones(3), mesh)
    with pytest.raises(ts.InvalidArgumentError, match=r"add: expected all tensors to be on the same device.*float32\[3\] on cpu"):
        x + torch.ones(3)
    assert (x + torch.tensor(2.0)).cpu().tolist() == [3, 3, 3]
    with pytest.raises((RuntimeError, ValueError), match="device"):
        torch.nn.functional.linear(torch.ones(2, 3), tt.distribute_tensor(torch.ones(4, 3), mesh))


def test_tensors_of_two_sessions_are_refused(cluster, mesh):
    with cluster.connect() as other:
        x = tt.distribute_tensor(torch.ones(3), mesh)
        y = tt.distribute_tensor(torch.ones(3), other.default_mesh)
        with pytest.raises(ts.TesseraError, match="session"):
            x + y


def test_shapes_that_do_not_fit_are_refused_at_the_line(mesh):
    x = tt.distribute_tensor(torch.ones(3, 4), mesh)
    for f in (lambda: x + tt.distribute_tensor(torch.ones(5), mesh), lambda: x @ x, lambda: x.view(5), lambda: x[:, 7],
              lambda: torch.nn.functional.linear(x, x.t()), lambda: torch.nn.functional.layer_norm(x, (5,))):
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            f()


def test_dtypes_of_products_must_agree(mesh):
    x = tt.distribute_tensor(torch.ones(3, 3), mesh)
    with pytest.raises(ts.InvalidArgumentError, match="same dtype"):
        x @ x.to(torch.bfloat16)


def test_arguments_of_the_wrong_kind(mesh):
    for f in (lambda: tt.distribute_tensor([1, 2], mesh), lambda: tt.distribute_tensor(torch.ones(2), "mesh"),
              lambda: tt.from_handle(torch.ones(2)), lambda: tt.to_handle(torch.ones(2)),
              lambda: tt.distribute_tensor(torch.ones(2), mesh, [S(3)]), lambda: tt.distribute_tensor(torch.ones(2), mesh, [R, R]),
              lambda: tt.distribute_tensor(torch.ones(2, device="meta"), mesh)):
        with pytest.raises(ts.TesseraError):
            f()


def test_a_parameter_on_a_lost_worker_fails_by_its_name():
    with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
        import os
        import signal
        mesh = session.init_device_mesh((2,))
        m = tt.distribute_module(torch.nn.Linear(4, 4), mesh)
        m(tt.distribute_tensor(torch.ones(2, 4), mesh)).sum().item()
        kept = {name: value.cpu() for name, value in m.state_dict().items()}
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        os.kill(cluster.worker_pids[1], signal.SIGKILL)
        with pytest.raises(ts.TesseraError, match="worker 1"):
            for _ in range(100):
                m(tt.distribute_tensor(torch.ones(2, 4), mesh, [S(0)])).sum().backward()
                optimizer.step()
                m.weight.sum().item()
        m.zero_grad()
        rest = session.init_device_mesh((1,), workers=[0])
        again = torch.nn.Linear(4, 4)
        again.load_state_dict(kept)
        tt.distribute_module(again, rest)
        out = again(tt.distribute_tensor(torch.ones(2, 4), rest))
        out.sum().backward()
        assert out.shape == (2, 4) and again.weight.grad.sum().item() == 32


def test_coverage_lists_the_rows():
    text = io.StringIO()
    tt.coverage(text)
    for name in ("add.Tensor", "linear_backward.default", "_fused_adamw_.default", "view.default"):
        assert f" {name}" in text.getvalue()


def test_tessera_alone_does_not_import_torch():
    code = "import sys, tessera; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_torch_the_error_says_how_to_get_it():
    code = "import sys; sys.modules['torch'] = None\ntry:\n  import tessera.torch\nexcept ImportError as e: print(e)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "tessera.torch needs PyTorch" in out and "tools/setup_torch" in out and "tessera[torch]" in out


@pytest.mark.parametrize("make", [
    lambda **on: torch.full((2, 3), 7, **on), lambda **on: torch.full((2,), 1.5, **on), lambda **on: torch.full((), True, **on),
    lambda **on: torch.full((2,), 1.5, dtype=torch.int32, **on), lambda **on: torch.full((2,), 2 + 1j, **on), lambda **on: torch.full((0, 2), 1.0, **on),
    lambda **on: torch.zeros(2, 3, **on), lambda **on: torch.ones(2, dtype=torch.bool, **on), lambda **on: torch.zeros((), dtype=torch.bfloat16, **on),
    lambda **on: torch.full((2,), -1, dtype=torch.uint8, **on)])
def test_factories_of_one_value_are_the_cpus(mesh, make):
    got, expected = make(device="tessera"), make()
    assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)
    got.add_(1) if got.dtype != torch.bool else got.logical_not_()       # a value of its own
    assert torch.equal(make(device="tessera").cpu(), expected)
