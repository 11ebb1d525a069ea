"""tt.capture: what a captured step gives is what the step gives, to the bit; and what can't be captured is an error at its line."""

import gc
import inspect
import weakref

import pytest
import torch
import torch.nn.functional as F
from models import Gpt, batches
from torch import nn

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW fused amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, amsgrad=True),
}


def mlp(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


def make_step(model, optimizer):
    def step(x, labels):
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def data(mesh, rows=8, count=4):
    draw = torch.Generator().manual_seed(1)
    place = [S(0)] + [R] * (len(mesh.shape) - 1)
    return [(tt.distribute_tensor(torch.randn(rows, 8, generator=draw), mesh, place),
             tt.distribute_tensor(torch.randint(0, 4, (rows,), generator=draw), mesh, place)) for _ in range(count)]


def losses(step, batches, count=8):
    return [step(*batches[i % len(batches)]).item() for i in range(count)]


def both(mesh, wrap, make_optimizer, dropout=0.0):
    """Losses, parameters and the captured step, of two models that begin alike."""
    out = []
    for is_captured in (False, True):
        torch.manual_seed(0)
        model = wrap(mlp(dropout))
        step = make_step(model, make_optimizer(list(model.parameters())))
        step = tt.capture(step) if is_captured else step
        torch.manual_seed(5)
        out.append((losses(step, data(mesh)), [p.cpu() for p in model.parameters()], step))
    (plain, weights, _), (captured, captured_weights, step) = out
    assert captured == plain
    assert all(torch.equal(a, b) for a, b in zip(captured_weights, weights))
    return step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_has_the_bits_of_the_step(mesh22, name):
    step = both(mesh22, lambda model: tt.distribute_module(model, mesh22), OPTIMIZERS[name])
    assert step.replays >= 5


def test_dropout_goes_on_where_it_was(mesh22):
    assert both(mesh22, lambda model: tt.distribute_module(model, mesh22), OPTIMIZERS["AdamW fused"], dropout=0.5).replays >= 5


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_data_parallel_modules_are_captured(mesh22, shard):
    wrap = {"ddp": lambda model: tt.DistributedDataParallel(tt.distribute_module(model, mesh22), mesh22["dp"]),
            "fsdp": lambda model: tt.fully_shard(model, mesh=mesh22["dp"])}[shard]
    assert both(mesh22, wrap, OPTIMIZERS["AdamW fused"]).replays >= 4


def test_a_gpt_with_clipped_gradients_and_checkpoints(mesh22):
    numbers = [tuple(tt.distribute_tensor(one, mesh22, [S(0), R]) for one in pair) for pair in batches()]
    out = []
    for wrap in (lambda f: f, tt.capture):
        torch.manual_seed(0)
        model = tt.distribute_module(Gpt(dropout=0.1, checkpoint=True), mesh22)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)

        def step(x, labels):
            loss = F.cross_entropy(model(x).flatten(0, 1), labels.flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss, "norm": norm}
        step = wrap(step)
        torch.manual_seed(2)
        out.append([(r["loss"].item(), r["norm"].item()) for r in (step(*numbers[i % 3]) for i in range(6))])
    assert out[0] == out[1] and step.replays >= 3


def test_python_runs_no_more_and_one_message_is_sent(mesh22):
    model = tt.distribute_module(mlp(), mesh22)
    calls = []
    inner = make_step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @tt.capture
    def step(x, labels):
        calls.append(1)
        return inner(x, labels)
    batches = data(mesh22)
    losses(step, batches, 10)
    assert len(calls) + step.replays == 10 and len(calls) <= 3


def test_a_schedule_of_the_learning_rate_is_followed(mesh22):
    out = []
    for wrap in (lambda f: f, tt.capture):
        torch.manual_seed(0)
        model = tt.distribute_module(mlp(), mesh22)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        step, got = wrap(make_step(model, optimizer)), []
        for one in data(mesh22, count=8):
            got.append(step(*one).item())
            schedule.step()
        out.append(got)
    assert out[0] == out[1] and step.replays >= 4


def test_a_float_among_the_arguments_is_a_parameter(mesh22):
    x = tt.distribute_tensor(torch.ones(4, 4), mesh22, [S(0), R])
    scaled = tt.capture(lambda x, by: (x * by).sum())
    assert [scaled(x, by).item() for by in (1.0, 2.0, 3.0, 4.5)] == [16.0, 32.0, 48.0, 72.0]
    assert scaled.replays == 2


def test_another_shape_dtype_placement_or_setting_captures_again(mesh22):
    total = tt.capture(lambda x, sign: (x * sign).sum())
    of = lambda shape, dtype, place: tt.distribute_tensor(torch.ones(shape, dtype=dtype), mesh22, place)  # noqa: E731
    cases = [of((4, 4), torch.float32, [S(0), R]), of((6, 4), torch.float32, [S(0), R]), of((4, 4), torch.float64, [S(0), R]),
             of((4, 4), torch.float32, [R, S(1)])]
    for _ in range(3):
        for x in cases:
            for sign in (1, -1):
                assert [total(x, sign).item() for _ in range(3)] == [sign * x.numel()] * 3
    assert total.replays == 8 + 2 * 24      # each of the eight is captured by two calls, and kept


def test_gradients_and_buffers_are_bound(mesh22):
    """A step's traces: gradients of leaves, tensors changed in place, attributes."""
    weight = tt.distribute_tensor(torch.ones(4, 4), mesh22).requires_grad_()
    count = tt.distribute_tensor(torch.zeros(()), mesh22)

    @tt.capture
    def step(x):
        weight.grad = None
        (weight * x).sum().backward()
        count.add_(1)
        step.last = x * 2
    for i in range(1, 6):
        x = tt.distribute_tensor(torch.full((4, 4), float(i)), mesh22)
        step(x)
        assert weight.grad.cpu()[0, 0] == i and step.last.cpu()[0, 0] == 2 * i and count.item() == i
    weight.grad = None
    step(x)
    assert weight.grad.cpu()[0, 0] == 5
    assert step.replays == 2        # whether there was a gradient before is part of what was captured


def test_gradients_are_added_up_where_the_step_does_not_clear_them(mesh22):
    weight = tt.distribute_tensor(torch.ones(4, 4), mesh22).requires_grad_()
    x = tt.distribute_tensor(torch.ones(4, 4), mesh22)
    step = tt.capture(lambda x: (weight * x).sum().backward())
    for i in range(1, 7):
        step(x)
        assert weight.grad.cpu()[0, 0] == i
    weight.grad = None                      # another way through the step
    step(x)
    assert weight.grad.cpu()[0, 0] == 1 and step.replays >= 3


def test_a_value_that_somebody_holds_stays(mesh22):
    """An argument or a parameter of which somebody has the handle is not overwritten by what takes its place."""
    x = tt.distribute_tensor(torch.zeros(4), mesh22)
    step = tt.capture(lambda x: x.add_(1))
    held = []
    for i in range(6):
        held.append(tt.to_handle(x))
        step(x)
    assert [one.full_tensor()[0] for one in held] == [0, 1, 2, 3, 4, 5] and x.cpu()[0] == 6


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, one in enumerate(lines) if text in one)


def refused(step, *args, count=6):
    with pytest.raises(ts.FailedPreconditionError) as caught:
        for _ in range(count):
            step(*args)
    return caught


def test_reading_and_bringing_values_is_an_error_at_its_line(mesh22):
    x = tt.distribute_tensor(torch.ones(4), mesh22)

    def reads(x):
        y = x.sum()
        return y * y.item()

    def decides(x):
        return x if (x.sum() > 3) else -x

    def brings(x):
        return x + tt.distribute_tensor(torch.ones(4), mesh22)
    for function, text, said in ((reads, "item", "are read"), (decides, "if (", "are read"), (brings, "ones", "are brought")):
        caught = refused(tt.capture(function), x)
        assert said in str(caught.value)
        assert any(one.lineno + 1 == line_of(function, text) and one.path.name == "test_capture.py" for one in caught.traceback)
        assert (x + 1).cpu()[0] == 2        # the capture is over


def test_a_number_of_nowhere_and_another_way_are_errors_that_name_the_line(mesh22):
    x = tt.distribute_tensor(torch.ones(4), mesh22)
    state = {"n": 1}

    def counts(x):
        state["n"] += 1
        return x * state["n"]

    def alternates(x):
        state["n"] += 1
        return x * 2 if state["n"] % 2 else x.exp()
    caught = refused(tt.capture(counts), x)
    assert f"test_capture.py:{line_of(counts, 'return')}" in str(caught.value) and "2 in one call and 3 in the next" in str(caught.value)
    caught = refused(tt.capture(alternates), x)
    assert f"test_capture.py:{line_of(alternates, 'return')}" in str(caught.value) and "multiply" in str(caught.value)


def test_an_optimizer_that_counts_here_says_what_to_do(mesh22):
    model = tt.distribute_module(mlp(), mesh22)
    step = tt.capture(make_step(model, torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)))
    assert "fused" in str(refused(step, *data(mesh22, count=1)[0]).value)


def test_cpu_tensors_and_captures_in_captures_are_refused(mesh22):
    x = tt.distribute_tensor(torch.ones(4), mesh22)
    with pytest.raises(ts.InvalidArgumentError, match=r"float32\[4\] on cpu"):
        tt.capture(lambda x, y: x + y)(x, torch.ones(4))
    inner = tt.capture(lambda x: x + 1)
    with pytest.raises(ts.FailedPreconditionError, match="capture"):
        tt.capture(lambda x: inner(x) * 2)(x)


def test_a_refused_capture_keeps_no_parameters(mesh22):
    inner = tt.capture(lambda x: x + 1)
    with pytest.raises(ts.FailedPreconditionError, match="capture"):
        tt.capture(lambda x: inner(x) * 2)(tt.distribute_tensor(torch.ones(4), mesh22))
    parameter = torch.nn.Parameter(tt.distribute_tensor(torch.ones(4), mesh22))
    optimizer = torch.optim.SGD([parameter], 0.1)
    parameter.square().sum().backward()
    optimizer.step()
    gone = weakref.ref(parameter)
    del parameter, optimizer
    gc.collect()
    assert gone() is None


def test_a_lost_result_does_not_pile_up_memory(mesh22, session):
    x = tt.distribute_tensor(torch.ones(64, 64), mesh22)
    step = tt.capture(lambda x: ((x @ x).relu() @ x).sum())
    for _ in range(5):
        step(x).item()
    before = len(session.tensors())
    for _ in range(50):
        step(x).item()
    assert len(session.tensors()) <= before + 1


def test_train_and_eval_are_seen(mesh):
    model = mlp(dropout=0.5).to("tessera")
    wrapper = nn.Sequential(model, nn.Dropout(0.5))
    x = torch.ones(4, 8).to("tessera")
    step = tt.capture(lambda x: wrapper(x).detach())
    for _ in range(4):
        step(x)
    assert step.replays == 2
    model.eval()
    wrapper[1].eval()
    quiet = [step(x) for _ in range(4)]
    assert step.replays == 4 and all(torch.equal(one.cpu(), wrapper(x).detach().cpu()) for one in quiet)
    model.train()
    assert not torch.equal(step(x).cpu(), step(x).cpu())        # dropout goes on, of this mode
    wrapper.train()
    assert not torch.equal(step(x).cpu(), step(x).cpu()) and step.replays >= 6
