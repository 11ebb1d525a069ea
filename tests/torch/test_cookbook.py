"""The DTensor snippets of docs/cookbook.md run, on one rank, and have the results of Tessera's beside them."""

import pathlib
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import tensor as dtensor

import tessera as ts

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")
RECIPES = {part.partition("\n")[0]: dict(re.findall(r"```python (\w+)\n(.*?)```", part, re.DOTALL)) for part in re.split(r"(?m)^##+ ", PAGE)[1:]}
COMPARED = [title for title, blocks in RECIPES.items() if "dtensor" in blocks]


@pytest.fixture(scope="module")
def ranks():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dtensor.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pool():
    with ts.local_cluster(workers=4, memory="64MiB") as cluster:
        yield cluster.connect()


@pytest.mark.parametrize("title", COMPARED)
def test_a_recipe_has_the_result_of_dtensor(title, ranks, pool):
    a = np.random.default_rng(0).random((8, 6))
    names = {"np": np, "torch": torch, "a": a, "ranks": ranks, "world_size": 1, **{name: getattr(dtensor, name) for name in (
        "DTensor", "Partial", "Replicate", "Shard", "distribute_tensor", "init_device_mesh")}}
    exec(RECIPES[title]["dtensor"], names)
    ours = {"np": np, "ts": ts, "a": a, "session": pool, "mesh": pool.init_device_mesh((4,))}
    exec(RECIPES[title]["tessera"], ours)
    np.testing.assert_allclose(names["result"], ours["result"], rtol=1e-12)


def test_there_are_some():
    assert len(COMPARED) >= 7
