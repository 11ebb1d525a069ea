"""torch.distributed's backend `tessera`: collectives of ranks, N processes that each hold tensors in their own memory.

>>> import torch, torch.distributed as dist
>>> dist.init_process_group("tessera")          # in every rank, as `tessera run` or torchrun starts them
>>> x = torch.ones(3) * dist.get_rank()
>>> dist.all_reduce(x)

Every group of torch's is a process group of the cluster. The coordinator compares the calls of its ranks: where they differ,
all of them get an error that says how; where a rank ends, all that wait for it get its name. TESSERA_ADDRESS names the cluster;
where nothing does, rank 0 starts one on its host. Not for tensors of the device `tessera`, whose collectives run on the workers
(tessera.torch.parallel). An import of this module leaves torch's devices as they are: programs that ask torch for its accelerator find none
of Tessera's.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib

import torch
import torch.distributed as dist

from .distributed._ranks import join_for_torch, rank_to_reconfigure
from .torch_device import RANKS, found_path

NAME = "tessera"
DEVICES = ["cpu", "cuda", "xpu"]    # of a group that names none; others by init_process_group("cpu:tessera,NAME:tessera")


def _compiled():
    path = str(found_path(pathlib.Path(torch.__file__).parent, RANKS, torch.__version__, "tessera"))
    name = RANKS.removesuffix(".so")
    spec = importlib.util.spec_from_file_location(name, path, loader=importlib.machinery.ExtensionFileLoader(name, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_make_backend = _compiled().make_backend


def create(dist_backend_opts, pg_options=None, name=NAME):
    """The backend of one group, in one rank. `pg_options` may be a dist.Backend's Options, of which the time-out counts. `name` is in
    the titles of its calls in a profile."""
    opts = dist_backend_opts
    timeout, ranks = opts.timeout, list(opts.global_ranks_in_group)
    if getattr(opts, "enable_reconfigure", False):  # torch 2.11 has no groups whose members change
        return _make_backend(rank_to_reconfigure(opts.group_rank, opts.group_size, ranks), timeout, name)
    # The backend calls `leave` at its end, and keeps the rank until then.
    rank = join_for_torch(opts.store, opts.group_id, opts.group_rank, opts.group_size, ranks, timeout.total_seconds())
    return _make_backend(rank, timeout, name)


def register() -> None:
    """Makes the name known to init_process_group and new_group. An import of this module does it, and so does torch itself, by
    the entry point torch.distributed.backends of an installed tessera."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


register()
