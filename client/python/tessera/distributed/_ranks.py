"""Ranks of torch.distributed: its process groups with backend="tessera" join here, on memory of their own (torch/ranks.py)."""

from __future__ import annotations

import atexit
import os
import time

import _tessera

from .. import _session
from .._errors import TesseraError
from ._rendezvous import Meeting, new_key
from ._world import own_worker

KEY = "tessera/meeting"
LAST_RANKS_S = 10.0     # that rank 0, whose process has the cluster, waits for the others at its end

_sessions: dict = {}    # by address: of this process
_clusters: list = []    # that this process began


class TorchGroup:
    """A group that this process has joined; `table` and `group` are the addresses that torch/ranks_table.h names."""

    def __init__(self, joined, session):
        self._joined, self.session = joined, session
        self.table, self.group = joined.table, joined.group

    def leave(self) -> None:
        self._joined.leave()


def _session_at(address: str):
    known = _sessions.get(address)
    if known is None or not known._open:
        known = _sessions[address] = _session.connect(address)
    return known


def _own_address(size: int) -> str:
    """The coordinator that the environment names, or that of a cluster with a worker for each rank, which begins here."""
    address = os.environ.get("TESSERA_ADDRESS", "")
    if address:
        return address
    if not _clusters:
        _clusters.append(_session.local_cluster(max(size, int(os.environ.get("WORLD_SIZE", size)))))
        atexit.register(_end_cluster)
    return _clusters[0].address


def _end_cluster() -> None:
    """Ends when the other ranks have gone, or in some seconds."""
    cluster = _clusters.pop()
    try:
        session, deadline = _session_at(cluster.address), time.monotonic() + LAST_RANKS_S
        while session.status()["session_count"] > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        session.close()
    except TesseraError:
        pass                        # it has ended
    cluster.stop()


def join_for_torch(store, group_id: str, rank: int, size: int, global_ranks, timeout_s: float) -> TorchGroup:
    """Joins the process group that torch makes: its store tells all of them the coordinator's address and a key that no other
    group has."""
    if rank == 0:
        meeting = Meeting(_own_address(size), f"torch/{new_key()}/{group_id}")
        store.set(KEY, meeting.text())
    else:
        meeting = Meeting.of(bytes(store.get(KEY)).decode())
    session = _session_at(meeting.address)
    worker = own_worker(session, global_ranks[rank] if global_ranks else rank)
    return TorchGroup(_tessera.join_group(session, meeting.key, size, rank, worker, timeout_s), session)
