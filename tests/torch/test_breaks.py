"""Things that torch code does to tensors besides ops: each either works as torch does, or is refused by name."""

import copy
import gc
import io
import pickle
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tessera as ts
import tessera.torch as tt

D = "tessera"


def tensor(*shape, dtype=torch.float32, placements=None):
    return tt.distribute_tensor(torch.arange(float(np.prod(shape))).reshape(shape).to(dtype), placements=placements)


def values(x):
    return x.detach().cpu().tolist()


def linear(*extents):
    return tt.distribute_module(nn.Linear(*extents))


pytestmark = pytest.mark.usefixtures("mesh")


# ---- in place and views ------------------------------------------------------------------------------------------

def test_in_place_shows_in_every_name_and_not_in_results():
    x = tensor(4)
    y, z = x, x + 0
    x += 1
    assert values(y) == [1, 2, 3, 4] and values(z) == [0, 1, 2, 3]


def test_a_clone_is_not_written():
    x = tensor(3)
    y = x.clone()
    x.mul_(2)
    assert values(y) == [0, 1, 2]


def test_a_write_to_a_view_shows_in_its_base_and_in_other_views():
    x = tensor(2, 3)
    row, turned = x[0], x.t()
    row.add_(10)
    turned[2] = -1
    assert values(x) == [[10, 11, -1], [3, 4, -1]] and values(row) == [10, 11, -1]


def test_a_write_through_several_views():
    x = tensor(2, 2, 3)
    x.view(4, 3)[1:3].mul_(0)
    assert sum(values(x.flatten())) == 0 + 1 + 2 + 9 + 10 + 11


@pytest.mark.parametrize("placements", [[ts.Shard(0)], [ts.Shard(1)]], ids=str)
def test_writes_keep_placements(placements):
    x = tensor(4, 4, placements=placements)
    x[1, 2] = 7
    x[:, 3] = tensor(4)
    expected = torch.arange(16.0).reshape(4, 4)
    expected[1, 2] = 7
    expected[:, 3] = torch.arange(4.0)
    assert x.placements == tuple(placements) and torch.equal(x.cpu(), expected)


def test_chunks_are_views():
    a, b = tensor(6).chunk(2)
    a.add_(1)
    assert values(b) == [3, 4, 5] and values(a) == [1, 2, 3]


def test_a_write_to_an_expanded_tensor_is_refused():
    with pytest.raises(RuntimeError, match="clone"):
        tensor(1, 3).expand(4, 3).add_(1)


def test_in_place_on_what_backward_saved_raises_as_torch_does():
    x = tensor(3).requires_grad_()
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_on_a_view_has_its_gradient():
    x = tensor(2, 3).requires_grad_()
    y = x * 2
    y[0].mul_(3)
    y.sum().backward()
    assert values(x.grad) == [[6, 6, 6], [2, 2, 2]]


def test_in_place_keeps_the_dtype_and_refuses_another_shape():
    x = tensor(3, dtype=torch.bfloat16)
    x.mul_(1.5)
    assert x.dtype == torch.bfloat16
    with pytest.raises(ts.InvalidArgumentError, match="keeps the shape"):
        tensor(3).add_(tensor(2, 3))


def test_strides_are_torchs():
    x = tensor(2, 3)
    assert x.t().stride() == (1, 3) and not x.t().is_contiguous()
    assert x[:, 1:].stride() == (3, 1) and x[:, 1:].storage_offset() == 1
    assert tensor(1, 3).expand(4, 3).stride() == (0, 1)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        x.t().view(6)
    assert values(x.t().reshape(6)) == [0, 3, 1, 4, 2, 5]


def test_as_strided_set_and_resize():
    assert values(tensor(2, 3).as_strided((2, 2), (3, 1))) == [[0, 1], [3, 4]]
    x = tensor(3)
    x.set_(tensor(3) * 2)
    assert values(x) == [0, 2, 4]
    x.resize_(2)
    assert values(x) == [0, 2]


# ---- .data, parameters, copies --------------------------------------------------------------------------------------

def test_data_of_a_parameter():
    p = nn.Parameter(tensor(3))
    p.data.add_(1)
    assert values(p) == [1, 2, 3]
    p.data = tensor(4) * 5
    assert tuple(p.shape) == (4,) and values(p) == [0, 5, 10, 15] and isinstance(p, nn.Parameter)


def test_what_is_written_to_data_is_no_version_that_backward_refuses():
    x = tensor(3).requires_grad_()
    loss, version = (x * x).sum(), x._version
    x.data.add_(1)
    x.data[0] = 5
    assert x._version == version
    loss.backward()
    assert values(x.grad) == [10, 4, 6]
    torch.autograd.gradgradcheck(lambda v: v.tanh().sum(), tensor(2, dtype=torch.float64).requires_grad_())


def test_a_module_to_another_dtype():
    m = linear(2, 2)
    m.to(torch.bfloat16)
    assert m.weight.dtype == torch.bfloat16 and tt.to_handle(m.weight).dtype == ts.bfloat16


def test_modules_go_to_the_device_and_back():
    m = nn.Linear(2, 2)
    weight = m.weight.detach().clone()
    m.to(D)
    assert m.weight.device.type == D and torch.equal(m.weight.detach().cpu(), weight)
    m.cpu()
    assert m.weight.device.type == "cpu" and torch.equal(m.weight.detach(), weight)


def test_swapped_parameters():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        m = nn.Linear(2, 2).to(D)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert m.weight.device.type == D


def test_deepcopy_copies_values_and_kinds():
    m = linear(2, 2)
    n = copy.deepcopy(m)
    n.weight.data.zero_()
    assert m.weight.detach().abs().sum().item() > 0 and isinstance(n.weight, nn.Parameter)
    assert n.weight.placements == m.weight.placements


def test_pickle_keeps_placements():
    p = pickle.loads(pickle.dumps(nn.Parameter(tensor(4, placements=[ts.Shard(0)]))))
    assert isinstance(p, nn.Parameter) and isinstance(p, tt.Tensor)
    assert values(p) == [0, 1, 2, 3] and p.placements == (ts.Shard(0),)


class Older:
    """A tensor as torch.save wrote it before files were torch's own."""

    def __reduce_ex__(self, protocol):
        from tessera.torch._tensor import rebuild
        return rebuild, (torch.arange(4.0), True, ((1, 0, 0),), True)


def test_an_older_file_is_loaded_with_its_placements():
    file = io.BytesIO()
    torch.save({"weight": Older()}, file)
    file.seek(0)
    p = torch.load(file, weights_only=True)["weight"]
    assert isinstance(p, nn.Parameter) and values(p) == [0, 1, 2, 3] and p.placements == (ts.Shard(0),)


def test_tensors_that_share_a_value_share_a_storage_of_the_file():
    x, file = tensor(1000), io.BytesIO()
    torch.save({"x": x, "same": x.detach(), "other": x + 1}, file)
    assert 8000 < len(file.getvalue()) < 11000
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert values(loaded["same"]) == values(x) and values(loaded["other"]) == values(x + 1)


@pytest.mark.parametrize("location", ["tessera:0/S(9)", "tessera:0/S(0),S(0),S(0)", "tessera:0/X", "tessera:0/S(99999999999)", "tessera:0/S(0;1,2)", "tessera:0/"])
def test_a_file_that_says_other_places_is_loaded_to_the_default_one(location):
    from tessera.torch._storages import _place_of
    mesh, placements = _place_of(location, (4,))
    assert placements == ([ts.Shard(0)] if location == "tessera:0/S(0;1,2)" else [ts.Replicate()])


def test_torch_save_and_load_of_weights_alone():
    m, file = linear(2, 2), io.BytesIO()
    torch.save(m.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["weight"].cpu(), m.weight.detach().cpu())


@pytest.mark.parametrize("where", ["cpu", torch.device("cpu"), {"tessera:0": "cpu"}, lambda storage, location: storage])
def test_what_was_saved_here_is_loaded_where_map_location_says(where):
    m, file = linear(2, 2), io.BytesIO()
    torch.save({"state": m.state_dict(), "weight": m.weight}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=where)
    assert loaded["state"]["bias"].device.type == loaded["weight"].device.type == "cpu"
    assert torch.equal(loaded["weight"], m.weight.detach().cpu()) and isinstance(loaded["weight"], nn.Parameter)


@pytest.mark.parametrize("where", [D, torch.device(D), {"cpu": D}])
def test_what_was_saved_elsewhere_is_loaded_here(mesh, where):
    m, file, turned = nn.Linear(2, 2), io.BytesIO(), torch.arange(12.0).view(3, 4).t()[1:]
    torch.save({"state": m.state_dict(), "weight": m.weight, "turned": turned, "none": torch.empty(0), "one": torch.tensor(3)}, file)
    file.seek(0)
    with tt.default_placement(mesh, [ts.Shard(0)]):
        loaded = torch.load(file, map_location=where)
    assert all(isinstance(loaded[key], tt.Tensor) for key in ("weight", "turned", "none", "one"))
    assert values(loaded["turned"]) == turned.tolist() and loaded["one"].item() == 3 and loaded["turned"].placements == (ts.Shard(0),)
    assert torch.equal(loaded["state"]["weight"].cpu(), m.weight) and isinstance(loaded["weight"], nn.Parameter)


def test_state_dicts_between_here_and_there():
    m, c = linear(2, 2), nn.Linear(2, 2)
    m.load_state_dict(c.state_dict())
    assert torch.equal(m.weight.detach().cpu(), c.weight.detach()) and isinstance(m.weight, tt.Tensor)
    other = nn.Linear(2, 2)
    other.load_state_dict(m.state_dict())
    assert torch.equal(other.weight, c.weight)
    assigned = linear(2, 2)
    assigned.load_state_dict(m.state_dict(), assign=True)
    assert torch.equal(assigned.weight.detach().cpu(), c.weight.detach())


def test_state_dict_of_an_optimizer():
    m = linear(2, 2)
    first = torch.optim.AdamW(m.parameters())
    m(tensor(1, 2)).sum().backward()
    first.step()
    second = torch.optim.AdamW(m.parameters())
    second.load_state_dict(first.state_dict())
    second.step()
    assert isinstance(second.state[m.weight]["exp_avg"], tt.Tensor)


def test_averaged_models_and_schedulers():
    m = linear(3, 2)
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    m(tensor(1, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    averaged = torch.optim.swa_utils.AveragedModel(m)
    averaged.update_parameters(m)
    assert isinstance(next(averaged.parameters()), tt.Tensor)


# ---- what has no address -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("read", [lambda x: x.untyped_storage().tolist(), lambda x: x.untyped_storage().clone(), lambda x: x.share_memory_(),
                                  lambda x: x.pin_memory()])
def test_memory_is_refused_by_name(read):
    with pytest.raises(ts.FailedPreconditionError, match="lives on workers"):
        read(tensor(2, 2))


@pytest.mark.parametrize("make", [lambda: torch.UntypedStorage(8, device=D), lambda: torch.UntypedStorage(8).to(device=D)])
def test_a_storage_here_is_refused(make):
    with pytest.raises(RuntimeError, match="a storage of 8 bytes on tessera"):
        make()


def test_values_are_read_where_they_are_asked_for():
    x = tensor(3)
    assert x.tolist() == [0, 1, 2] and np.asarray(x).tolist() == [0, 1, 2] and x.numpy().dtype == np.float32
    assert torch.from_dlpack(x.cpu()).tolist() == [0, 1, 2]
    assert (x.sum() > 1).item() is True and bool(x.sum() > 1) and float(x.sum()) == 3.0 and int(tensor(1)) == 0
    assert [float(one) for one in x] == [0, 1, 2] and len(x) == 3 and f"{x.sum():.2f}" == "3.00"


def test_repr_fetches_nothing(monkeypatch):
    monkeypatch.setattr(type(tt.to_handle(tensor(1))), "_full", None)
    text = repr(tensor(2, 3, placements=[ts.Shard(0)]))
    assert text == "tessera.Tensor(f32[2,3] @ mesh(tp:4) [S(0)])"
    assert repr(nn.Parameter(tensor(2))) == "tessera.Parameter(f32[2] @ mesh(tp:4) [R], requires_grad=True)"


# ---- factories ---------------------------------------------------------------------------------------------------------

FACTORIES = {
    "empty": lambda: torch.empty(2, device=D), "zeros": lambda: torch.zeros(2, device=D), "ones": lambda: torch.ones(2, 3, device=D),
    "full": lambda: torch.full((2,), 3.0, device=D), "arange": lambda: torch.arange(4, device=D),
    "arange step": lambda: torch.arange(0.0, 1.0, 0.25, device=D), "rand": lambda: torch.rand(3, device=D),
    "randn": lambda: torch.randn(3, device=D), "eye": lambda: torch.eye(3, device=D), "linspace": lambda: torch.linspace(0, 1, 3, device=D),
    "randint": lambda: torch.randint(0, 5, (3,), device=D), "randperm": lambda: torch.randperm(4, device=D),
    "tensor": lambda: torch.tensor([1.0, 2.0], device=D), "tril_indices": lambda: torch.tril_indices(3, 3, device=D),
    "as_tensor": lambda: torch.as_tensor(np.ones(2), device=D), "zeros_like": lambda: torch.zeros_like(tensor(3)),
    "generator": lambda: torch.rand(3, device=D, generator=torch.Generator(D)),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    made = FACTORIES[name]()
    assert isinstance(made, tt.Tensor) and made.device.type == D
    assert made.cpu().shape == made.shape


def test_factories_give_what_torchs_give():
    assert values(torch.arange(2, 8, 3, device=D)) == [2, 5]
    assert values(torch.eye(2, device=D)) == [[1, 0], [0, 1]]
    assert values(torch.linspace(0, 1, 3, device=D)) == [0, 0.5, 1]
    assert sorted(values(torch.randperm(5, device=D))) == [0, 1, 2, 3, 4]
    assert values(torch.full((2,), 3, device=D)) == [3, 3] and torch.full((2,), 3, device=D).dtype == torch.int64


def test_default_placement_says_where(mesh):
    with tt.default_placement(mesh, [ts.Shard(0)]):
        assert torch.zeros(8, 2, device=D).placements == (ts.Shard(0),) and torch.zeros((), device=D).placements == (ts.Replicate(),)
    assert torch.zeros(8, 2, device=D).placements == (ts.Replicate(),)


def test_modules_on_the_device_and_from_meta():
    with torch.device(D):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert {type(p) for p in layer.parameters()} == {tt.Tensor}
    assert layer(torch.rand(2, 3, 8, device=D)).shape == (2, 3, 8)
    with torch.device("meta"):
        m = nn.Linear(4, 4)
    m.to_empty(device=D)
    m.reset_parameters()
    assert m.weight.detach().abs().sum().item() > 0


def test_attention_modules_in_eval_mode():
    layer = tt.distribute_module(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    with torch.no_grad():
        assert layer(torch.rand(2, 5, 8, device=D)).shape == (2, 5, 8)


def test_random_numbers_by_seed_and_by_generator():
    torch.manual_seed(7)
    first = values(torch.rand(4, device=D))
    torch.manual_seed(7)
    assert values(torch.rand(4, device=D)) == first
    draw = torch.Generator(D).manual_seed(7)
    assert values(torch.rand(4, device=D, generator=draw)) == first
    state = torch.tessera.get_rng_state()
    second = values(torch.randn(4, device=D))
    torch.tessera.set_rng_state(state)
    assert values(torch.randn(4, device=D)) == second != first


# ---- indices ------------------------------------------------------------------------------------------------------------

def test_indexing_by_tensors_and_masks():
    x = tensor(4)
    assert values(x[torch.tensor([0, 2])]) == [0, 2] and values(x[tensor(2, dtype=torch.int64)]) == [0, 1]
    assert values(x[x > 1]) == [2, 3]
    x[x > 1] = 0
    assert values(x) == [0, 1, 0, 0]
    y = tensor(3, 4)
    y[torch.tensor([0, 2])] = tensor(4)
    assert values(y[2]) == [0, 1, 2, 3]
    y.index_put_((torch.tensor([0, 0]).to(D),), torch.ones(2, 4, device=D), accumulate=True)
    assert values(y[0]) == [2, 3, 4, 5]


def test_topk_sort_gather_and_scatter():
    x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]])
    t = tt.distribute_tensor(x, placements=[ts.Shard(0)])
    for one, expected in ((t.topk(2), x.topk(2)), (t.sort(1), x.sort(1)), (t.max(1), x.max(1))):
        assert values(one[0]) == expected[0].tolist() and values(one[1]) == expected[1].tolist()
    at = torch.tensor([[0, 2], [1, 0]])
    assert values(t.gather(1, at.to(D))) == x.gather(1, at).tolist()
    assert values(t.scatter_add(1, at.to(D), torch.ones(2, 2, device=D))) == x.scatter_add(1, at, torch.ones(2, 2)).tolist()


# ---- autograd machinery ---------------------------------------------------------------------------------------------------

def test_hooks_of_tensors_and_leaves():
    x = tensor(3).requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.placements) or g * 2)
    x.register_post_accumulate_grad_hook(lambda p: seen.append("added"))
    (x * 2).sum().backward()
    assert seen == [(ts.Replicate(),), "added"] and values(x.grad) == [4, 4, 4]


def test_a_hook_that_raises_is_an_exception():
    x = tensor(3).requires_grad_()

    def fail(grad):
        raise ValueError("from the hook")

    x.register_hook(fail)
    with pytest.raises(ValueError, match="from the hook"):
        (x * 2).sum().backward()
    y = tensor(3).requires_grad_()
    (y * 2).sum().backward()
    assert values(y.grad) == [2, 2, 2]


def test_hooks_run_on_the_callers_thread():
    x = tensor(3).requires_grad_()
    who = []
    x.register_hook(lambda g: who.append(threading.current_thread()) and None)
    (x * 2).sum().backward()
    assert who == [threading.current_thread()]


def test_backward_in_a_thread_of_the_users():
    out = []

    def work():
        x = tensor(3).requires_grad_()
        (x * x).sum().backward()
        out.append(values(x.grad))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert out == [[0, 2, 4]] * 4


def test_double_backward_and_functional_transforms():
    x = tensor(3).requires_grad_()
    g, = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
    g.sum().backward()
    assert values(x.grad) == [0, 6, 12]
    m = linear(3, 2)
    parameters = dict(m.named_parameters())
    loss = lambda p, one: torch.func.functional_call(m, p, (one,)).sum()    # noqa: E731
    assert values(torch.func.grad(loss)(parameters, tensor(4, 3))["weight"]) == [[18, 22, 26]] * 2
    _, tangent = torch.func.jvp(lambda v: (v * v).sum(), (tensor(3),), (tensor(3),))
    assert tangent.item() == 10


def test_inference_mode_and_no_grad():
    m = linear(3, 2)
    with torch.inference_mode():
        assert m(tensor(1, 4, 3)).shape == (1, 4, 2)
        assert (tensor(3) > 0).sum().item() == 2
    with torch.no_grad():
        assert not m(tensor(1, 3)).requires_grad


VIEWS = {
    "detach": lambda x: x.detach(), "t": lambda x: x.t(), "index": lambda x: x[0], "view": lambda x: x.view(2, 8), "expand": lambda x: x.expand(2, 4, 4),
    "chunk": lambda x: x.chunk(2)[1], "as_strided": lambda x: x.as_strided((2, 2), (4, 1), 1), "unfold": lambda x: x.unfold(0, 2, 1), "diagonal": lambda x: x.diagonal(),
}


@pytest.mark.parametrize("kind", [torch.Tensor.clone, torch.nn.Parameter], ids=["tensor", "parameter"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_in_inference_mode_of_tensors_that_were_made_outside(name, kind):
    both = [kind(tensor(4, 4)), kind(torch.arange(16.0).reshape(4, 4))]
    with torch.inference_mode():
        views = [VIEWS[name](x) for x in both]
        assert [one.is_inference() for one in views] == [False, False] and VIEWS[name](both[0] * 2).is_inference()
        assert torch.equal(views[0].cpu(), views[1])
        if name not in ("expand", "unfold"):        # elements that are there more than once
            for one in views:
                one.add_(1)
    assert torch.equal(both[0].detach().cpu(), both[1].detach())


def test_what_waits_for_a_device_waits_for_all_that_was_asked(monkeypatch):
    from tessera.torch import _device
    waited = []
    monkeypatch.setattr(_device, "synchronize", lambda: waited.append(None))
    torch.accelerator.synchronize()
    event = torch.Event(device=D)
    event.record()
    event.synchronize()
    assert len(waited) == 2


def test_anomaly_mode():
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        (tensor(3).requires_grad_() * 2).sum().backward()


def test_handles_are_let_go():
    x = tensor(3)
    gone = weakref.ref(x._cell)
    y = x + 1
    del x
    gc.collect()
    assert gone() is None and values(y) == [1, 2, 3]
    z = tensor(3).requires_grad_()
    out = z.exp().sum()
    cell = weakref.ref(out._cell)
    out.backward()
    del out
    gc.collect()
    assert cell() is None


OPTIMIZERS = [(name, options) for name in ("Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "LBFGS", "Adafactor")
              for options in ([{}] if name in ("LBFGS", "Adafactor") else [{}, {"foreach": False}, {"maximize": True}])]
OPTIMIZERS += [("Adagrad", {"fused": True}), ("Adagrad", {"fused": True, "lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
               ("LBFGS", {"line_search_fn": "strong_wolfe"}), ("RMSprop", {"momentum": 0.9, "centered": True})]


@pytest.mark.parametrize("name, options", OPTIMIZERS, ids=str)
def test_other_optimizers_step_as_torchs(name, options):
    torch.manual_seed(1)
    kind = torch.float64 if name == "LBFGS" else torch.float32      # which divides by differences of gradients
    here = nn.Linear(3, 2, dtype=kind)
    there = tt.distribute_module(copy.deepcopy(here))
    x = torch.randn(4, 3, dtype=kind)
    for m, data in ((here, x), (there, tt.distribute_tensor(x))):
        optimizer = getattr(torch.optim, name)(m.parameters(), lr=0.01, **options)

        def closure():
            optimizer.zero_grad()
            loss = m(data).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            closure()
            optimizer.step(closure) if name == "LBFGS" else optimizer.step()
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop"])
def test_optimizers_that_keep_their_step_on_workers(name):
    torch.manual_seed(1)
    here = nn.Linear(3, 2)
    there = tt.distribute_module(copy.deepcopy(here))
    x = torch.randn(4, 3)
    for m, data, options in ((here, x, {}), (there, tt.distribute_tensor(x), {"capturable": True})):
        optimizer = getattr(torch.optim, name)(m.parameters(), lr=0.01, **options)
        for _ in range(3):
            m(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach(), rtol=1e-4, atol=1e-5)


def test_an_optimizer_of_sparse_gradients():
    tables = nn.Embedding(5, 3, sparse=True), nn.Embedding(5, 3, sparse=True)
    tables[1].load_state_dict(tables[0].state_dict())
    for table, device in zip(tables, ("cpu", D)):
        table.to(device)
        optimizer = torch.optim.SparseAdam(list(table.parameters()))
        table(torch.tensor([1, 2], device=device)).sum().backward()
        optimizer.step()
    torch.testing.assert_close(tables[1].weight.cpu(), tables[0].weight)


def test_normalisation_across_channels():
    m, x = nn.CrossMapLRN2d(3), torch.randn(2, 4, 3, 3)
    one, other = x.clone().requires_grad_(), tt.distribute_tensor(x).requires_grad_()
    for data in (one, other):
        m(data).square().sum().backward()
    torch.testing.assert_close(m(other).detach().cpu(), m(one).detach())
    torch.testing.assert_close(other.grad.cpu(), one.grad)


def test_out_arguments():
    out = torch.empty(3, device=D)
    torch.add(tensor(3), 1, out=out)
    assert values(out) == [1, 2, 3]


def test_parameters_to_vector_and_assert_close():
    assert nn.utils.parameters_to_vector(linear(2, 2).parameters()).shape == (6,)
    torch.testing.assert_close(tensor(3), tensor(3))


def test_weight_norm():
    m = torch.nn.utils.parametrizations.weight_norm(linear(3, 2))
    assert m(tensor(1, 3)).shape == (1, 2)


def test_data_loaders_give_batches_that_go_there():
    from torch.utils.data import DataLoader, TensorDataset
    rows = [one[0].to(D) for one in DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4)]
    assert [tuple(one.shape) for one in rows] == [(4,), (4,), (2,)] and values(rows[2]) == [8, 9]


def test_norms_losses_and_activations_as_torchs():
    torch.manual_seed(2)
    x, y = torch.randn(4, 6), torch.rand(4, 6)
    labels = torch.tensor([0, 5, -100, 2])
    for f in (lambda a, b: F.smooth_l1_loss(a, b), lambda a, b: F.binary_cross_entropy_with_logits(a, b), lambda a, b: F.huber_loss(a, b),
              lambda a, b: F.softplus(a).sum(), lambda a, b: F.elu(a).sum(), lambda a, b: F.gelu(a, approximate="tanh").sum(),
              lambda a, b: F.mse_loss(a, b, reduction="sum"), lambda a, b: F.l1_loss(a, b), lambda a, b: F.softmax(a, 1).square().sum(),
              lambda a, b: F.leaky_relu(a).sum(), lambda a, b: F.hardtanh(a).sum(), lambda a, b: F.kl_div(F.log_softmax(a, 1), b),
              lambda a, b: a.var(1).sum() + a.std() + a.norm() + b.clamp(0.2, 0.7).sum(),
              lambda a, b: F.cross_entropy(a, labels.to(a.device)), lambda a, b: torch.logsumexp(a, 1).sum(),
              lambda a, b: (a.cumsum(1) * b.flip(0)).sum(), lambda a, b: torch.einsum("ij,kj->ik", a, b).sin().sum()):
        p = x.clone().requires_grad_()
        q = tt.distribute_tensor(x, placements=[ts.Shard(0)]).requires_grad_()
        here, there = f(p, y), f(q, tt.distribute_tensor(y, placements=[ts.Shard(0)]))
        here.backward()
        there.backward()
        torch.testing.assert_close(there.detach().cpu(), here.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-6)


# ---- what else torch has ------------------------------------------------------------------------------------------------

def test_arrays_beside_tensors_are_not_a_download():
    assert values(np.float32(2) * tensor(3)) == values(tensor(3) * np.float32(2)) == [0, 2, 4]
    for f in (lambda: tensor(3) + np.ones(3, np.float32), lambda: np.ones(3, np.float32) + tensor(3), lambda: np.add(tensor(3), 1)):
        with pytest.raises(TypeError):
            f()


def test_distributed_checkpoint_of_one_process(tmp_path):
    import torch.distributed.checkpoint as checkpoint
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({"w": tensor(4, 4)}, checkpoint_id=tmp_path, no_dist=True)
        there = {"w": tt.distribute_tensor(torch.zeros(4, 4), placements=[ts.Shard(0)])}
        checkpoint.load(there, checkpoint_id=tmp_path, no_dist=True)
    assert there["w"].sum().item() == 120 and there["w"].placements == (ts.Shard(0),)


def test_tracing_and_compiling():
    from torch.fx.experimental.proxy_tensor import make_fx
    names = [str(n.target) for n in make_fx(lambda x: (x * 2).sum())(tensor(3)).graph.nodes if n.op == "call_function"]
    assert names == ["aten.mul.Tensor", "aten.sum.default"]
    m = linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = torch.compile(m, backend="eager")(tensor(4, 3))
    assert torch.equal(out.detach().cpu(), m(tensor(4, 3)).detach().cpu())


def test_vmap():
    m = linear(3, 2)
    x = tensor(4, 3)
    assert torch.allclose(torch.func.vmap(lambda one: (one * one).sum())(x).cpu(), (x * x).sum(1).cpu())
    assert torch.allclose(torch.func.vmap(lambda one: m(one).sum())(x).detach().cpu(), m(x).sum(1).detach().cpu())


def test_batch_norm_keeps_its_running_statistics():
    torch.manual_seed(0)
    here = nn.BatchNorm1d(3)
    there = tt.distribute_module(copy.deepcopy(here))
    x = torch.randn(8, 3)
    torch.testing.assert_close(there(tt.distribute_tensor(x, placements=[ts.Shard(0)])).detach().cpu(), here(x).detach())
    torch.testing.assert_close(there.running_mean.cpu(), here.running_mean)
    assert there.num_batches_tracked.item() == 1


def test_group_norm_and_ops_without_a_row():
    m = nn.GroupNorm(2, 4)
    x = torch.randn(2, 4, 3)
    torch.testing.assert_close(tt.distribute_module(copy.deepcopy(m))(tt.distribute_tensor(x)).detach().cpu(), m(x).detach())
    with pytest.raises(NotImplementedError, match="aten.hash_tensor.default: has no row in Tessera"):
        torch.hash_tensor(tensor(5, 5))


def test_saved_modules():
    m, file = linear(2, 2), io.BytesIO()
    torch.save(m, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False).weight.detach().cpu(), m.weight.detach().cpu())


def test_meta_copies():
    x = tensor(2, 3).t().to("meta")
    assert x.device.type == "meta" and x.stride() == (1, 3)
