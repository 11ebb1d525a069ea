"""ShardedLoader: a DataLoader's batches on the mesh, one ahead, and torch's samplers beside it."""

import collections

import pytest
import torch
from models import R, S
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import tessera as ts
import tessera.torch as tt


def numbers(count=22):
    return TensorDataset(torch.arange(float(count)).reshape(count, 1).repeat(1, 3), torch.arange(count))


def test_batches_are_those_of_the_loader_in_shards(mesh):
    loader = DataLoader(numbers(), batch_size=8)
    sharded = tt.ShardedLoader(loader)
    assert len(sharded) == len(loader) == 3
    seen = 0
    for (x, y), (a, b) in zip(sharded, loader):
        assert x.placements == y.placements == (S(0),)
        assert torch.equal(x.full_tensor(), a) and torch.equal(y.full_tensor(), b)
        assert torch.equal(x.to_local((1,)), a.chunk(4)[1])
        seen += len(b)
    assert seen == 22       # the last batch has fewer, and uneven shards


def test_one_dim_of_several_and_placements_of_ones_own(mesh22):
    (x, _), = tt.ShardedLoader(DataLoader(numbers(8), batch_size=8), mesh22["dp"])
    assert x.placements == (S(0), R)
    (x, y), = tt.ShardedLoader(DataLoader(numbers(8), batch_size=8), mesh22, [S(0), S(1)])
    assert x.placements == (S(0), S(1)) and y.placements == (S(0), R)     # labels have one dim


def test_what_a_batch_is_made_of_stays(mesh):
    Pair = collections.namedtuple("Pair", "x name")

    class Named(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return {"pair": Pair(torch.full((2,), float(i)), f"n{i}"), "list": [i, torch.tensor(i)]}
    (batch,) = tt.ShardedLoader(DataLoader(Named(), batch_size=8))
    assert isinstance(batch["pair"], Pair) and batch["pair"].name == tuple(f"n{i}" for i in range(8))
    assert batch["pair"].x.placements == (S(0),) and batch["list"][0].full_tensor().tolist() == list(range(8))


def test_the_next_batch_is_asked_for_before_this_one_is_given(mesh):
    asked = []

    class Watched(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            asked.append(i)
            return torch.ones(4)
    ahead = []
    for i, _ in enumerate(tt.ShardedLoader(DataLoader(Watched(), batch_size=1))):
        ahead.append(len(asked) - i)
    assert ahead == [2, 2, 2, 1]


def test_torchs_sampler_gives_each_rank_its_rows(mesh):
    data = numbers(24)
    loaders = [DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=4, rank=rank, seed=3)) for rank in range(4)]
    sharded = tt.ShardedLoader(loaders, mesh)
    orders = []
    for epoch in range(2):
        sharded.set_epoch(epoch)
        order = []
        for (x, y), *parts in zip(sharded, *loaders):
            for rank, part in enumerate(parts):
                assert torch.equal(y.to_local((rank,)), part[1]) and torch.equal(x.to_local((rank,)), part[0])
            order += y.full_tensor().tolist()
        assert sorted(order) == list(range(24))
        orders.append(order)
    assert orders[0] != orders[1]


def test_a_captured_step_takes_its_batches(mesh):
    total = tt.distribute_tensor(torch.zeros(3), mesh)

    @tt.capture
    def step(x, y):
        total.add_(x.sum(0))
    for _ in range(3):
        for batch in tt.ShardedLoader(DataLoader(numbers(24), batch_size=8)):
            step(*batch)
    assert total.cpu().tolist() == [3 * sum(range(24))] * 3 and step.replays == 7


def test_what_does_not_fit_is_refused(mesh22):
    loader = DataLoader(numbers())
    for f, match in ((lambda: tt.ShardedLoader([1, 2], mesh22["dp"]), "takes a DataLoader"),
                     (lambda: tt.ShardedLoader(loader, mesh22), "has 2 dims; say placements="),
                     (lambda: tt.ShardedLoader(loader, mesh22, [S(0)]), "placements"),
                     (lambda: tt.ShardedLoader(loader, "dp"), "not a DeviceMesh")):
        with pytest.raises(ts.InvalidArgumentError, match=match):
            f()
