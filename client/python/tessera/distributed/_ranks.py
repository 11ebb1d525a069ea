"""Ranks of torch.distributed: its process groups with backend="tessera" join here, on memory of their own (torch_ranks.py)."""

from __future__ import annotations

import atexit
import datetime
import hashlib
import json
import os
import time
import warnings

import _tessera

from .. import _session
from .._errors import InvalidArgumentError, TesseraError
from ._device_libraries import LIBRARIES
from ._rendezvous import Meeting, new_key
from ._world import own_worker

KEY = "tessera/meeting"
LAST_RANKS_S = 10.0     # that rank 0, whose process has the cluster, waits for the others at its end

_sessions: dict = {}    # by address: of this process
_clusters: list = []    # that this process began


class TorchRank:
    """This process as a rank of one of torch's groups; `table` and `group` are the addresses that torch/ranks_table.h names.

    One that waits for reconfigure() is in no group: its `group` is 0."""

    def __init__(self, address: str, rank: int, size: int, world_rank: int, store=None):
        self.address, self.rank, self.size, self._world_rank = address, rank, size, world_rank
        self._joined, self._id, self._worker = None, new_key(), world_rank
        self._store, self._timeout_s = store, 0.0       # torch's, for libraries of devices

    def join(self, key: str, worker: int, timeout_s: float) -> "TorchRank":
        """Blocks until all ranks are there."""
        self._joined = _tessera.join_group(_session_at(self.address), key, self.size, self.rank, worker, timeout_s)
        self._worker, self._timeout_s = worker, timeout_s
        return self

    def name_of_device(self, device) -> str | None:
        """A name that no other device has; "" where it has no library; None where none is known for devices of its kind."""
        library = LIBRARIES.get(device.type)
        return library.name_of(device) if library else None

    def library(self, device, names):
        """torch's backend by which the group's ranks, whose devices have these names, move and reduce tensors on them; None where two ranks
        share a device, or one has no library."""
        if self._store is None or "" in names or len(set(names)) < len(names):
            return None
        from torch.distributed import PrefixStore
        store = PrefixStore(f"tessera/{self._joined.key}/{device.type}", self._store)
        return LIBRARIES[device.type].make(store, self.rank, self.size, datetime.timedelta(seconds=self._timeout_s))

    @property
    def table(self) -> int:
        return self._joined.table if self._joined else 0

    @property
    def group(self) -> int:
        return self._joined.group if self._joined else 0

    def leave(self) -> None:
        """Its calls that are under way end with an error. Warns of a message that its receiver could not take, where no call has told."""
        joined, self._joined = self._joined, None
        if not joined:
            return
        try:
            joined.leave()
        except InvalidArgumentError as complaint:
            warnings.warn(str(complaint), RuntimeWarning, stacklevel=2)

    def split(self, name: str, rank: int, ranks, world_rank: int, timeout_s: float) -> "TorchRank":
        """In a group of some ranks of this one, which all call it with the same name."""
        part = TorchRank(self.address, rank, len(ranks), world_rank, self._store)
        return part.join(f"{self._joined.key}/{name}/{'-'.join(map(str, ranks))}", self._worker, timeout_s)

    def handle(self) -> str:
        """The facts with which others make a group with this process: where its coordinator is, its worker, and a number that no other has."""
        if not self.address and self.rank == 0:
            self.address = _own_address(self.size)
        return json.dumps({"rank": f"{self._world_rank:08}", "id": self._id, "address": self.address, "worker": self._worker})

    def reconfigure(self, uuid: int, handles, is_ordered: bool, timeout_s: float) -> "TorchRank":
        """In the group of the processes that gave these handles, which all call it with the same ones. The group before goes on until it
        is left."""
        op, own = "reconfigure", self.handle()
        handles = list(handles) if is_ordered else sorted(handles)      # by their ranks: those come first
        if len(set(handles)) != len(handles):
            raise InvalidArgumentError(f"{op}: two of the {len(handles)} handles are the same")
        if own not in handles:
            raise InvalidArgumentError(f"{op}: the handle of this rank is not among the {len(handles)} that were given")
        try:
            known = [json.loads(handle) for handle in handles]
            workers, addresses = [one["worker"] for one in known], [one["address"] for one in known if one["address"]]
        except (ValueError, TypeError, KeyError):
            raise InvalidArgumentError(f"{op}: one of the handles is none that get_reconfigure_handle gave") from None
        if not addresses:
            raise InvalidArgumentError(f"{op}: TESSERA_ADDRESS names no cluster, and no rank of the group was rank 0, which starts one")
        rank = handles.index(own)
        joining = TorchRank(addresses[0], rank, len(handles), self._world_rank, self._store)
        if len(set(workers)) != len(workers):       # of processes that were the same rank of groups of their own
            workers = [own_worker(_session_at(addresses[0]), number) for number in range(len(handles))]
        members = hashlib.sha256("\n".join(handles).encode()).hexdigest()[:32]
        return joining.join(f"torch/{members}/{uuid}", workers[rank], timeout_s)


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


def join_for_torch(store, group_id: str, rank: int, size: int, global_ranks, timeout_s: float) -> TorchRank:
    """Joins the process group that torch makes: its store tells all of them the coordinator's address and a key that no other
    group has."""
    if rank == 0:
        meeting = Meeting(_own_address(size), f"torch/{new_key()}/{group_id}")
        store.set(KEY, meeting.text())
    else:
        meeting = Meeting.of(bytes(store.get(KEY)).decode())
    world_rank = global_ranks[rank] if global_ranks else rank
    session = _session_at(meeting.address)
    return TorchRank(meeting.address, rank, size, world_rank, store).join(meeting.key, own_worker(session, world_rank), timeout_s)


def rank_to_reconfigure(rank: int, size: int, global_ranks) -> TorchRank:
    """A rank that is in no group yet."""
    return TorchRank(os.environ.get("TESSERA_ADDRESS", ""), rank, size, global_ranks[rank] if global_ranks else rank)
