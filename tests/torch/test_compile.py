"""torch.compile: Dynamo's graphs run as the program does without, to the bit, and are asked for as one message."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from models import Attention, GatedMlp, R, S, same_start
from torch import nn

import tessera.torch as tt
from tessera.torch import _compiled
from tessera.torch.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """The graphs that are compiled in a test."""
    torch._dynamo.reset()
    made = []

    def seen(*args):
        made.append(_compiled._Graph(*args))
        return made[-1]
    monkeypatch.setattr(_compiled, "_new_graph", seen)
    yield made
    torch._dynamo.reset()


class Gpt(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(nn.ModuleDict({"n1": nn.LayerNorm(width), "a": Attention(width, 4), "n2": nn.LayerNorm(width),
                                                   "m": GatedMlp(width)}) for _ in range(layers))
        self.drop, self.norm, self.head = nn.Dropout(0.1), nn.LayerNorm(width), nn.Linear(width, 32, bias=False)

    def forward(self, x, labels=None):
        h = self.drop(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        for block in self.blocks:
            h = h + block.a(block.n1(h)) if hasattr(block, "a") else h + block["a"](block["n1"](h))
            h = h + block["m"](block["n2"](h))
        scores = self.head(self.norm(h))
        return scores if labels is None else F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def train(model, step, batches, seed=0):
    """Losses of some steps of AdamW."""
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for batch in batches:
        loss = step(*batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [one.item() for one in losses]


def tokens(count, *shape):
    return [(torch.randint(0, 32, shape).to("tessera"), torch.randint(0, 32, shape).to("tessera")) for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"backend": "tessera"}, {"fullgraph": True}], ids=str)
def test_a_gpt_trains_as_without(mesh, graphs, options):
    model, other = (one.to("tessera") for one in same_start(Gpt))
    batches = tokens(5, 2, 8)
    compiled = torch.compile(model, **options)
    assert train(model, compiled, batches) == train(other, other, batches)
    assert len(graphs) == 2 and [one.replays for one in graphs] == [3, 3]       # forward and backward
    for one, wanted in zip(model.parameters(), other.parameters()):
        assert torch.equal(one.cpu(), wanted.cpu())


def test_modes_branches_and_shapes_are_seen(mesh, graphs):
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.drop, self.down, self.is_wide = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4), False

        def forward(self, x):
            h = self.drop(F.relu(self.up(x)))
            return self.down(h * 2 if self.is_wide else h)
    model = Mlp().to("tessera")
    compiled, x = torch.compile(model), torch.randn(6, 8).to("tessera")

    def same(*args):
        torch.manual_seed(3)
        wanted = model(*args)
        torch.manual_seed(3)
        assert torch.equal(compiled(*args).detach().cpu(), wanted.detach().cpu())
    for _ in range(3):
        same(x)
    model.eval()
    for _ in range(3):
        same(x)
    model.is_wide = True
    same(x)
    model.train()
    same(x)
    for rows in (4, 5, 7, 9):           # of which Dynamo makes one graph for all
        same(torch.randn(rows, 8).to("tessera"))
    with torch.no_grad():
        for _ in range(3):
            same(x)
    same(tt.distribute_tensor(torch.randn(6, 8), mesh, [S(0)]))         # another placement is another program of the graph
    count = len(graphs)
    same(tt.distribute_tensor(torch.randn(6, 8), mesh, [S(0)]))
    assert len(graphs) == count


def test_a_function_that_is_another_one_each_time_ends_at_torch_s_limit(mesh):
    """Beyond it Dynamo runs the function as it is, or says so where a whole graph is asked for."""
    def scaled(x, by):
        return x * len(by)
    x = torch.ones(3, device="tessera")
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(scaled, dynamic=False)
        assert [compiled(x, "a" * n).sum().item() for n in range(5)] == [0, 3, 6, 9, 12]
        torch._dynamo.reset()
        compiled = torch.compile(scaled, dynamic=False, fullgraph=True)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            for n in range(5):
                compiled(x, "a" * n)


def test_random_numbers_go_on_and_learning_rates_are_seen(mesh, graphs):
    model, other = (one.to("tessera") for one in same_start(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 1))))
    x = torch.randn(16, 8).to("tessera")
    out = []
    for m, f in ((model, torch.compile(model)), (other, other)):
        torch.manual_seed(5)
        out.append([f(x).sum().item() for _ in range(6)])
    assert out[0] == out[1] and len(set(out[0])) == 6


def test_inputs_that_are_written_and_values_that_are_read(mesh):
    def step(buffer, x):
        buffer.add_(x)
        if buffer.sum() > 4:            # Dynamo ends its graph here, and reads the value
            return buffer * 2
        return buffer.view(-1)[1:3]
    compiled, buffer = torch.compile(step), torch.zeros(2, 3, device="tessera")
    seen = buffer[0]
    assert compiled(buffer, torch.full((2, 3), 0.25, device="tessera")).tolist() == [0.25, 0.25]
    assert compiled(buffer, torch.full((2, 3), 0.75, device="tessera")).tolist() == [[2.0] * 3] * 2
    assert buffer.tolist() == [[1.0] * 3] * 2 and seen.tolist() == [1.0] * 3


def test_strides_of_fakes_that_no_tensor_has(mesh):
    """A map of a transposed tensor is dense here, and keeps its strides on the CPU: a view of it is a copy then."""
    def f(x):
        return x.transpose(0, 1).exp().reshape(-1) * 2
    x = torch.randn(3, 4, requires_grad=True)
    there = x.detach().to("tessera").requires_grad_()
    compiled = torch.compile(f)
    for _ in range(3):
        there.grad = x.grad = None
        compiled(there).square().sum().backward()
        f(x).square().sum().backward()
        torch.testing.assert_close(there.grad.cpu(), x.grad)


def test_parallel_models(session):
    mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
    model, other = same_start(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    x = torch.randn(8, 8)
    for one in (model, other):
        parallelize_module(one, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    batch = tt.distribute_tensor(x, mesh, [S(0), R])
    compiled = torch.compile(model)
    for _ in range(4):
        for m, f in ((model, compiled), (other, other)):
            m.zero_grad()
            f(batch).square().sum().backward()
        for one, wanted in zip(model.parameters(), other.parameters()):
            assert one.grad.placements == one.placements
            torch.testing.assert_close(one.grad.cpu(), wanted.grad.cpu())


def test_sharded_modules_and_captured_steps(session):
    mesh = session.init_device_mesh((4,), mesh_dim_names=("dp",))
    x = tt.distribute_tensor(torch.randn(8, 8), mesh, [S(0)])
    model, other = same_start(lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    for one in (model, other):
        for layer in one:
            if isinstance(layer, nn.Linear):
                tt.fully_shard(layer, mesh=mesh)
        tt.fully_shard(one, mesh=mesh)
    assert train(model, lambda x: torch.compile(model)(x).square().mean(), [(x,)] * 3) == train(other, lambda x: other(x).square().mean(), [(x,)] * 3)
    plain = nn.Linear(8, 8).to("tessera")
    inner = torch.compile(plain)
    captured = tt.capture(lambda x: inner(x).square().sum().detach())
    assert len({captured(x).item() for _ in range(5)}) == 1 and captured.replays >= 2


def test_cpu_programs_keep_their_backend():
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward
    f = torch.compile(lambda x: x * 2, backend=backend)
    assert f(torch.ones(2)).tolist() == [2.0, 2.0] and len(seen) == 1
    assert torch.compile(lambda x: x + 1, backend="tessera")(torch.ones(2)).tolist() == [2.0, 2.0]


def test_half_precision_by_autocast(mesh):
    model, other = (one.to("tessera") for one in same_start(lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))))
    x = torch.randn(4, 8).to("tessera")
    compiled = torch.compile(model)
    for _ in range(3):
        outs = []
        for m, f in ((model, compiled), (other, other)):
            m.zero_grad()
            with torch.autocast("tessera", dtype=torch.bfloat16):
                out = f(x)
            out.float().square().sum().backward()
            outs.append((out, [p.grad.cpu() for p in m.parameters()]))
        assert outs[0][0].dtype is torch.bfloat16 and torch.equal(outs[0][0].detach().cpu(), outs[1][0].detach().cpu())
        assert all(torch.equal(a, b) for a, b in zip(outs[0][1], outs[1][1]))


def test_the_backend_is_found_by_its_name(tmp_path):
    """Without an import of tessera: by the entry point of the package, as the wheel and tools/setup_torch say it."""
    root = pathlib.Path(__file__).resolve().parents[2]
    line = "[torch_dynamo_backends]\\ntessera = tessera.torch._compile:backend\\n"
    assert all(line in (root / one).read_text() for one in ("tools/packages/build_wheel.py", "tools/setup_torch"))
    folder = tmp_path / "other-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(line.replace("\\n", "\n"))
    script = "from torch._dynamo import list_backends, lookup_backend; assert 'tessera' in list_backends(); print(lookup_backend('tessera').__module__)"
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert shown.stdout.strip() == "tessera.torch._compile", shown.stderr


def test_errors_stand_at_the_user_s_line(mesh):
    compiled = torch.compile(lambda x, w: F.embedding(x, w) * 2)
    w = torch.ones(4, 2, device="tessera")
    for _ in range(3):
        compiled(torch.tensor([1, 3]).to("tessera"), w).wait()
    with pytest.raises(IndexError, match="index 7 is not from 0 to 3, at .*test_compile.py"):
        compiled(torch.tensor([1, 7]).to("tessera"), w).wait()
