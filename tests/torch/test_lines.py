"""A late error says torch's op and the line of the program; tt.blocking() raises it there."""

import inspect
import pathlib
import threading
import traceback

import pytest
import torch
import torch.nn.functional as F

import _tessera
import tessera as ts
import tessera.torch as tt

FILE = "test_lines.py"


def here(offset: int = 0) -> str:
    return f"{FILE}:{inspect.currentframe().f_back.f_lineno + offset}"


@pytest.fixture
def table(mesh):
    return tt.distribute_tensor(torch.randn(5, 3), mesh, [ts.Replicate()])


@pytest.fixture
def wrong(mesh):
    return tt.distribute_tensor(torch.tensor([1, 7]), mesh, [ts.Replicate()])


def test_an_index_that_is_out_of_range_is_said_of_the_embedding_and_its_line(table, wrong):
    place = here(1)
    found = F.embedding(wrong, table)
    with pytest.raises(ts.IndexOutOfRangeError, match=f"^embedding: .*index 7 is not from 0 to 4, at .*{place}; on the way here: ") as caught:
        found.square().sum().item()
    assert str(caught.value).count(", at ") == 1


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)

    def forward(self, words):
        return torch.nn.Sequential(self.table, torch.nn.Identity())(words)      # the line


def test_the_line_is_that_of_the_programs_module_not_of_torchs(mesh, wrong):
    model = tt.distribute_module(Words(), mesh)
    line = next(i for i, text in enumerate(pathlib.Path(__file__).read_text().split("\n"), 1) if "# the line" in text and "return" in text)
    with pytest.raises(ts.IndexOutOfRangeError, match=f"{FILE}:{line}"):
        model(wrong).sum().item()


def test_what_is_refused_at_once_is_said_of_torchs_op(mesh):
    x = tt.distribute_tensor(torch.randn(4, 3), mesh, [ts.Replicate()])
    weight = tt.distribute_tensor(torch.randn(2, 5), mesh, [ts.Replicate()])
    with pytest.raises(ts.InvalidArgumentError, match="^(linear|addmm|mm|t|matmul): "):
        F.linear(x, weight)


def test_an_op_of_backward_is_of_the_line_of_backward(mesh, monkeypatch):
    func = torch.ops.aten.leaky_relu_backward.default
    x = tt.distribute_tensor(torch.ones(3), mesh, [ts.Replicate()]).requires_grad_(True)
    F.leaky_relu(x).sum().backward()
    names = {"row": func.tessera_row, "seen": [], "site_here": _tessera.site_here}
    own = compile("def spy(*given):\n    seen.append(site_here())\n    return row(*given)", f"{pathlib.Path(tt.__file__).parent}/spy.py", "exec")
    exec(own, names)        # noqa: S102 - a row of the package
    monkeypatch.setattr(func, "tessera_row", names["spy"])
    loss = F.leaky_relu(x).sum()
    place = here(1)
    loss.backward()
    [(line, op)] = names["seen"]
    assert line.endswith(place) and op == "leaky_relu_backward"


def test_within_blocking_the_traceback_stands_at_the_line(table, wrong):
    with tt.blocking():
        with pytest.raises(ts.IndexOutOfRangeError, match="^embedding: ") as caught:
            place = here(1)
            F.embedding(wrong, table)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert f"{FILE}:{frames[0].lineno}" == place
    found = F.embedding(wrong, table)       # nobody waits any more
    with pytest.raises(ts.IndexOutOfRangeError):
        found.cpu()


def test_training_within_blocking_is_what_it_is_without(mesh):
    def train():
        torch.manual_seed(0)
        model = tt.distribute_module(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        x = tt.distribute_tensor(torch.randn(16, 8), mesh, [ts.Shard(0)])
        for _ in range(3):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    without = train()
    with tt.blocking():
        assert train() == without


def test_a_thread_has_its_own_lines(table, wrong):
    places = {}

    def ask(name):
        places[name] = here(1)
        places[f"{name} found"] = F.embedding(wrong, table)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in "ab":
        with pytest.raises(ts.IndexOutOfRangeError, match=places[name]):
            places[f"{name} found"].cpu()


def test_within_blocking_a_captured_step_runs_as_it_is_and_fails_at_its_line(table):
    @tt.capture
    def step(words):
        return F.embedding(words, table).sum()      # the step's line

    words = [tt.distribute_tensor(torch.tensor([1, i]), table.device_mesh, [ts.Replicate()]) for i in (0, 1, 2, 7)]
    for one in words[:3]:
        step(one)
    assert step.replays == 1
    late = step(words[3])
    line = next(i for i, text in enumerate(pathlib.Path(__file__).read_text().split("\n"), 1) if text.endswith("# the step's line"))
    with pytest.raises(ts.IndexOutOfRangeError, match=f"^embedding: .*{FILE}:{line}"):
        late.item()
    with tt.blocking(), pytest.raises(ts.IndexOutOfRangeError) as caught:
        step(words[3])
    assert line in [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)]
