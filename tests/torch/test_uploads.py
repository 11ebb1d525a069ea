"""Values of this process go to the workers that want them, once: 200 MiB in shards on four workers of 64 MiB, by all ways."""

import numpy as np
import pytest
import torch
from torch import nn

import tessera as ts
import tessera.torch as tt
from tessera.torch import _moving
from tessera.torch.parallel import ColwiseParallel, parallelize_module

ROWS, COLUMNS = 1600, 1 << 15
BYTES = ROWS * COLUMNS * 4
S, R, P = ts.Shard, ts.Replicate(), ts.Partial()


@pytest.fixture(scope="module")
def small():
    """Four workers of 64 MiB; tensors that say no mesh are in shards of their first dim."""
    with ts.local_cluster(workers=4, memory="64MiB") as cluster:
        session = cluster.connect()
        mesh = session.init_device_mesh((4,), mesh_dim_names=("dp",))
        with tt.default_placement(mesh, [S(0)]):
            yield session, mesh


@pytest.fixture(scope="module")
def values():
    return torch.arange(ROWS, dtype=torch.float32)[:, None].expand(ROWS, COLUMNS).contiguous()


class Holder(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)


def by_to(values, mesh, folder):
    return values.to("tessera")


def by_module_to(values, mesh, folder):
    return Holder(values).to("tessera").weight


def by_copy(values, mesh, folder):
    return torch.empty(ROWS, COLUMNS, device="tessera").copy_(values)


def by_copy_over_what_is_there(values, mesh, folder):
    return torch.ones(ROWS, COLUMNS, device="tessera").copy_(values)


def by_load_state_dict(values, mesh, folder):
    holder = Holder(torch.ones(ROWS, COLUMNS, device="tessera"))
    holder.load_state_dict({"weight": values})
    return holder.weight


def by_load_state_dict_on_meta(values, mesh, folder):
    with torch.device("meta"):
        holder = Holder(torch.empty(ROWS, COLUMNS))
    holder.to_empty(device="tessera").load_state_dict({"weight": values})
    return holder.weight


def by_fully_shard(values, mesh, folder):
    return tt.fully_shard(Holder(values), mesh=mesh).weight


def by_assigning_to_a_sharded_module(values, mesh, folder):
    with torch.device("meta"):
        holder = Holder(torch.empty(ROWS, COLUMNS))
    tt.fully_shard(holder, mesh=mesh)
    holder.load_state_dict({"weight": values}, assign=True)
    holder._fully_sharded.look_again()      # as a forward does
    return holder.weight


def by_torch_load(values, mesh, folder):
    torch.save(values, folder / "values.pt")
    return torch.load(folder / "values.pt", map_location="tessera", mmap=True)


def by_distribute_tensor(values, mesh, folder):
    return tt.distribute_tensor(values, mesh, [S(0)])


def by_parallelize_module(values, mesh, folder):
    layer = nn.Linear(COLUMNS, ROWS, bias=False, device="meta")
    layer.weight = nn.Parameter(values)
    return parallelize_module(layer, mesh, ColwiseParallel()).weight


@pytest.mark.parametrize("bring", [by_to, by_module_to, by_copy, by_copy_over_what_is_there, by_load_state_dict, by_load_state_dict_on_meta,
                                   by_fully_shard, by_assigning_to_a_sharded_module, by_torch_load, by_distribute_tensor,
                                   by_parallelize_module], ids=lambda one: one.__name__)
def test_a_tensor_in_shards_is_uploaded_once(small, values, bring, tmp_path):
    session, mesh = small
    with session.comm_debug() as comm, torch.no_grad():
        x = bring(values, mesh, tmp_path)
        x.wait()
    assert comm.bytes_uploaded == [BYTES // 4] * 4 and sum(comm.bytes_received) == 0 and sum(comm.bytes_downloaded) == 0
    assert x.placements == (S(0),)
    assert x.detach()[:, 7].tolist() == list(range(ROWS))


def test_a_copy_that_fails_twice_says_so_where_the_tensor_is_read(small, monkeypatch):
    def refused(*args):
        raise ts.ResourceExhaustedError("upload: nothing is free")

    x = torch.ones(8, 4, device="tessera")
    with monkeypatch.context() as patch:
        patch.setattr(_moving, "upload", refused)
        with pytest.raises(ts.ResourceExhaustedError, match="nothing is free"):
            x.copy_(torch.zeros(8, 4))
    with pytest.raises(ts.FailedPreconditionError, match="copy_: this tensor has no value"):
        x.cpu()
    assert x.copy_(torch.zeros(8, 4)).sum().item() == 0


def test_small_tensors_and_constants_go_where_they_are_wanted(small):
    session, mesh = small
    mesh22 = session.init_device_mesh((2, 2), mesh_dim_names=("a", "b"))
    x = torch.randn(8, 6)
    for placements, counted in (([R, R], 4 * x.nbytes), ([S(0), R], 2 * x.nbytes), ([S(0), S(1)], x.nbytes), ([S(-1), R], 2 * x.nbytes)):
        with tt.default_placement(mesh22, placements), session.comm_debug() as comm:
            y = x.to("tessera")
            y.wait()
        assert sum(comm.bytes_uploaded) == counted, placements
        assert torch.equal(y.cpu(), x)
    with tt.default_placement(mesh, [S(0)]), session.comm_debug() as comm:
        torch.tril_indices(64, 64, device="tessera").wait()
    assert sum(comm.bytes_uploaded) == torch.tril_indices(64, 64).nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool])
def test_a_pending_sum_is_written_over_and_nothing_is_uploaded_as_one(small, dtype):
    session, mesh = small
    x = torch.arange(24).reshape(6, 4).to(dtype)
    if dtype != torch.bool:
        y = tt.from_local([x] * 4, mesh, [P])
        assert torch.equal(y.cpu(), 4 * x) and torch.equal(y.copy_(x).cpu(), x) and y.placements == (R,)
    with tt.default_placement(mesh, [P]):
        for make in (lambda: tt.distribute_tensor(x, mesh, [P]), lambda: x.to("tessera")):
            with pytest.raises(ts.InvalidArgumentError, match="nothing becomes Partial"):
                make()
    y = torch.empty(6, 4, dtype=dtype, device="tessera").copy_(x)
    assert y.placements == (S(0),) and torch.equal(y.cpu(), x)


def test_a_tensor_without_a_value_yet_is_zeros_where_it_is_read(small):
    session, mesh = small
    x = torch.empty(4, 2, device="tessera")
    view = x[1]
    assert torch.equal(x.cpu(), torch.zeros(4, 2)) and x.placements == (S(0),)
    view.add_(1)
    assert x.sum().item() == 2
    y = torch.empty_like(x, dtype=torch.float64).fill_(3)
    assert y.dtype == torch.float64 and y.sum().item() == 24 and y.placements == (S(0),)
    z = x.new_empty(2, 2)
    torch.add(torch.ones(2, 2, device="tessera"), 1, out=z)
    assert z.sum().item() == 8
    with session.profile() as profile:
        torch.randn(8, 4, device="tessera").wait()
    assert [op.name for op in profile.ops] == ["normal"]


def test_profiles_and_comm_blocks_count_both_ways(small):
    session, mesh = small
    array = np.arange(1 << 16, dtype=np.float32)
    with session.profile() as profile, session.comm_debug() as comm:
        x = ts.distribute_tensor(array, mesh, [ts.Shard(0)])
        assert (x.full_tensor() == array).all()
        y = ts.distribute_tensor(array[:8], mesh)
        assert y.full_tensor()[3] == 3      # small ones come in the answer
    assert comm.bytes_uploaded == [array.nbytes // 4 + 32] * 4
    assert sum(comm.bytes_downloaded) >= array.nbytes + 32 and comm.bytes_downloaded[1] >= array.nbytes // 4
    assert profile.bytes_uploaded == sum(comm.bytes_uploaded) and profile.bytes_downloaded == sum(comm.bytes_downloaded)
    assert "uploaded" in str(profile) and "downloaded" in str(profile) and "bytes_uploaded" in repr(comm)
