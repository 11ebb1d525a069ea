"""Process groups of ranks: N processes, or threads, that each have a session. torch.distributed's names and arguments."""

from __future__ import annotations

import datetime
import math
import operator
import os
import time
import urllib.parse

import _tessera

from .. import _context, _session
from .._errors import ArgumentError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from .._mesh import DeviceMesh
from ._groups import ProcessGroup
from ._rendezvous import Meeting, by_file, by_port, new_key

DEFAULT_TIMEOUT_S = 1800.0      # torch's, of backends other than NCCL


class GroupMember:
    NON_GROUP_MEMBER = -100     # what new_group gives a rank that isn't in it


class RankGroup(ProcessGroup):
    """Ranks of the world, each a process with a session; `ranks` are their numbers in the world."""

    __slots__ = ("_joined", "session", "mesh", "timeout_s", "worker", "_rank")

    def __init__(self, ranks, joined, session, timeout_s: float):
        super().__init__(ranks)
        self._joined, self.session, self.timeout_s, self._rank = joined, session, timeout_s, joined.rank
        self.worker = joined.members[joined.rank][0]
        self.mesh = DeviceMesh._wrap(session, session._mesh([1], [], [self.worker], ""))

    def rank(self) -> int:
        return self._rank

    @property
    def name(self) -> str:
        return self._joined.key

    def __repr__(self):
        return f"<group {self.name!r}: rank {self._rank} of {self.size()}>"


class _World:
    """The state that init_process_group makes."""

    def __init__(self, group: RankGroup, key: str):
        self.group, self.key = group, key
        self.groups = [group]
        self.counts: dict = {}      # how many groups were made of which ranks
        self.closes = []            # what ends with it: a session, a cluster


_world: _World | None = None


def seconds_of(op: str, timeout, default: float = DEFAULT_TIMEOUT_S) -> float:
    """A number of seconds, or a timedelta; more than 0."""
    if timeout is None:
        return default
    value = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise InvalidArgumentError(f"{op}: timeout is {timeout!r}; it is a number of seconds above 0, or a timedelta")
    return float(value)


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    """Whether init_process_group has made this process a rank."""
    return _world is not None


def _the_world(op: str) -> _World:
    if _world is None:
        raise FailedPreconditionError(f"{op}: this process is no rank; call init_process_group first")
    return _world


def group_of(op: str, group) -> RankGroup:
    """The group that was given, or the world; of which this process is a member."""
    world = _the_world(op)
    if group is None:
        return world.group
    if group == GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgumentError(f"{op}: this rank is not in the group")
    if not isinstance(group, RankGroup):
        raise ArgumentError(f"{op}: group is {group!r}; it is what new_group gave")
    if group not in world.groups:
        raise FailedPreconditionError(f"{op}: {group} was destroyed")
    return group


def rank_of(op: str, name: str, world_rank, group_rank, group: RankGroup) -> int:
    """The rank in the group, which was given as the world's, or as the group's."""
    if world_rank is not None and group_rank is not None:
        raise InvalidArgumentError(f"{op}: say {name}, or group_{name}")
    if group_rank is not None:
        if not 0 <= operator.index(group_rank) < group.size():
            raise InvalidArgumentError(f"{op}: group_{name} is {group_rank}; the group has ranks 0 to {group.size() - 1}")
        return operator.index(group_rank)
    if world_rank is None:
        return 0
    if world_rank not in group.ranks:
        raise InvalidArgumentError(f"{op}: {name} is {world_rank}; the group has the ranks {list(group.ranks)} of the world")
    return group.ranks.index(world_rank)


def _from_environment(name: str, given: int) -> int:
    if given >= 0:
        return given
    text = os.environ.get(name)
    if text is None:
        raise InvalidArgumentError(f"init_process_group: {name.lower()} isn't given, and the environment has no {name}; a launcher "
                                   "(tessera run, torchrun) sets it")
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"init_process_group: {name} in the environment is {text!r}, which is no number") from None


def _meet(init_method, rank: int, size: int, deadline: float, closes: list) -> Meeting:
    """Where the coordinator is, and the key of this run."""
    address = os.environ.get("TESSERA_ADDRESS", "")
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    url = urllib.parse.urlsplit(init_method or "env://")
    if url.scheme == "tessera":
        rest = init_method[len("tessera://"):]
        address = rest if ":" in rest else f"unix:{rest}"
        return Meeting(address, run or "world")
    if url.scheme == "env" and address and (run or "MASTER_PORT" not in os.environ):
        return Meeting(address, run or "world")
    if url.scheme not in ("env", "tcp", "file"):
        raise InvalidArgumentError(f"init_process_group: init_method is {init_method!r}; it is env://, tcp://HOST:PORT, file:///PATH or "
                                   "tessera://ADDRESS")
    meeting = None
    if rank == 0:
        if not address:
            cluster = _session.local_cluster(size)
            closes.append(cluster.stop)
            address = cluster.address
        meeting = Meeting(address, new_key())
    if url.scheme == "file":
        return by_file(url.netloc + url.path, meeting, deadline)
    host, port = url.hostname, url.port
    if url.scheme == "env":
        host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), os.environ.get("MASTER_PORT")
        if port is None:
            raise InvalidArgumentError("init_process_group: the environment has neither TESSERA_ADDRESS nor MASTER_PORT; a launcher "
                                       "(tessera run, torchrun) sets them")
    if not host or not port:
        raise InvalidArgumentError(f"init_process_group: init_method is {init_method!r}; it says tcp://HOST:PORT")
    return by_port(host, int(port), meeting, size - 1, deadline)


def own_worker(session, rank: int, given=None) -> int:
    """The number of a rank's worker: the one that was given, or that of its place among those that are there."""
    if given is not None:
        return operator.index(given)
    workers = list(session.default_mesh.workers)
    if rank >= len(workers):
        raise InvalidArgumentError(f"init_process_group: rank {rank} needs a worker of its own, and the cluster has {len(workers)}")
    return workers[rank]


def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, group_name="",
                       pg_options=None, device_id=None, *, session=None):
    """Makes this process a rank: one of world_size processes whose collectives go through one coordinator. Blocks until all are there.

    init_method: "env://" (a launcher's variables: RANK, WORLD_SIZE, and TESSERA_ADDRESS, or MASTER_ADDR and MASTER_PORT, where rank 0
    starts a cluster on this host), "tcp://HOST:PORT", "file:///PATH", or "tessera://ADDRESS" of a coordinator.
    session: one that this process has; device_id: the number of the rank's worker, where that isn't its rank.
    timeout: of this call, and of each collective that says none; 30 minutes where it isn't given."""
    global _world
    op = "init_process_group"
    if _world is not None:
        raise FailedPreconditionError(f"{op}: this process is {_world.group}; destroy_process_group() comes first")
    if backend not in (None, "", "tessera", "cpu:tessera"):
        raise InvalidArgumentError(f"{op}: backend is {backend!r}; here it is \"tessera\" (torch.distributed has others)")
    if store is not None or pg_options is not None:
        raise UnimplementedError(f"{op}: takes no store and no pg_options; torch.distributed's with backend=\"tessera\" does")
    limit = seconds_of(op, timeout)
    rank, size = _from_environment("RANK", rank), _from_environment("WORLD_SIZE", world_size)
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"{op}: rank {rank} of {size} ranks, which are numbered from 0")
    deadline, closes = time.monotonic() + limit, []
    try:
        if session is None:
            meeting = _meet(init_method, rank, size, deadline, closes)
            session = _session.connect(meeting.address)
            closes.append(session.close)
        else:
            meeting = Meeting(session.address, os.environ.get("TORCHELASTIC_RUN_ID", "") or "world")
        key = "/".join(filter(None, (meeting.key, os.environ.get("TORCHELASTIC_RESTART_COUNT", ""), group_name)))
        joined = _tessera.join_group(session, key, size, rank, own_worker(session, rank, device_id),
                                     max(0.001, deadline - time.monotonic()))
    except BaseException:
        for close in reversed(closes):
            close()
        raise
    _world = _World(RankGroup(range(size), joined, session, limit), key)
    _world.closes = closes
    session._own_mesh = _world.group.mesh._raw


def destroy_process_group(group=None) -> None:
    """This rank leaves a group, or the world and all groups; a session or a cluster that init_process_group began ends with it.

    Raises, when that is done, what was wrong with a message of this rank that its receiver could not take, where no call has told it."""
    global _world
    if group == GroupMember.NON_GROUP_MEMBER:
        return
    world = _the_world("destroy_process_group")
    if group is not None and group is not world.group:
        group_of("destroy_process_group", group)
        world.groups.remove(group)
        group._joined.leave()
        return
    _world, complaint = None, None
    for one in reversed(world.groups):
        try:
            one._joined.leave()
        except InvalidArgumentError as error:
            complaint = complaint or error
    if world.group.session._open:
        world.group.session._own_mesh = None
    for close in reversed(world.closes):
        close()
    if complaint is not None:
        raise complaint


def flight_record(group=None, last=64) -> dict:
    """The last calls of every rank of a group, in the order in which they began, for a program that hangs.

    "calls": each with "call" (its number in the group; 0 of a message), "what", "arrived" (by rank, how many seconds ago it came; None:
    it has not), "matched" (how many seconds ago it was issued, or a message met its receive; or None) and "failure". "members": by rank, "process", "state" (here, away
    while its connection is gone, or gone), "why", and how many "calls" it has made."""
    return group_of("flight_record", group)._joined.flight(operator.index(last))


def get_rank(group=None) -> int:
    """This process's rank in the group, or in the world; -1 where it is not in it."""
    return -1 if group == GroupMember.NON_GROUP_MEMBER else group_of("get_rank", group).rank()


def get_world_size(group=None) -> int:
    """How many ranks the group, or the world, has; -1 where this process is not in it."""
    return -1 if group == GroupMember.NON_GROUP_MEMBER else group_of("get_world_size", group).size()


def get_backend(group=None) -> str:
    group_of("get_backend", group)
    return "tessera"


def get_mesh() -> DeviceMesh:
    """The mesh of this rank's worker, where its values lie: the default one of its session."""
    return _the_world("get_mesh").group.mesh


def get_process_group_ranks(group=None) -> list[int]:
    return list(group_of("get_process_group_ranks", group).ranks)


def get_group_rank(group, global_rank: int) -> int:
    return rank_of("get_group_rank", "rank", global_rank, None, group_of("get_group_rank", group))


def get_global_rank(group, group_rank: int) -> int:
    known = group_of("get_global_rank", group)
    return known.ranks[rank_of("get_global_rank", "rank", None, group_rank, known)]


def new_group(ranks=None, timeout=None, backend=None, pg_options=None, use_local_synchronization=False, group_desc=None,
              device_id=None):
    """The group of these positions of a mesh, by number in row-major order; of a rank, a group of these ranks of the world, which
    blocks until they have joined it (None: all of them), and gives GroupMember.NON_GROUP_MEMBER to the others."""
    if is_initialized():
        return new_rank_group(ranks, timeout, use_local_synchronization, group_desc)
    try:
        numbers = [operator.index(rank) for rank in ranks]
    except TypeError:
        raise ArgumentError(f"new_group: ranks is {ranks!r}; it is a list of positions, such as [0, 2]") from None
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0:
        raise InvalidArgumentError(f"new_group: ranks is {numbers}; it is one or more different positions from 0")
    return ProcessGroup(numbers)


def new_rank_group(ranks, timeout, use_local_synchronization: bool, group_desc):
    """A group of some ranks of the world. All of the world call it, in one order, unless use_local_synchronization; the members join."""
    op, world = "new_group", _the_world("new_group")
    numbers = sorted(range(world.group.size()) if ranks is None else map(operator.index, ranks))
    if not numbers or len(set(numbers)) != len(numbers) or numbers[0] < 0 or numbers[-1] >= world.group.size():
        raise InvalidArgumentError(f"{op}: ranks is {numbers}; it is one or more different ranks of 0 to {world.group.size() - 1}")
    limit = seconds_of(op, timeout, world.group.timeout_s)
    counted = tuple(numbers) if use_local_synchronization else None
    number = world.counts[counted] = world.counts.get(counted, 0) + 1
    if world.group.rank() not in numbers:
        return GroupMember.NON_GROUP_MEMBER
    name = group_desc or f"{'-'.join(map(str, numbers)) if len(numbers) <= 16 else len(numbers)}"
    joined = _tessera.join_group(world.group.session, f"{world.key}/{'local' if counted else 'group'}{number}:{name}", len(numbers),
                                 numbers.index(world.group.rank()), world.group.worker, limit)
    group = RankGroup(numbers, joined, world.group.session, limit)
    world.groups.append(group)
    return group


def new_subgroups(group_size=None, group=None, timeout=None, backend=None, pg_options=None, group_desc=None):
    """The world in groups of group_size ranks in their order: (the one of this rank, all of them)."""
    size = get_world_size()
    count = operator.index(group_size) if group_size is not None else int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if count <= 0 or count > size or size % count:
        raise InvalidArgumentError(f"new_subgroups: group_size is {count}, and the world has {size} ranks")
    return new_subgroups_by_enumeration([list(range(start, start + count)) for start in range(0, size, count)], timeout, backend,
                                        pg_options, group_desc)


def new_subgroups_by_enumeration(ranks_per_subgroup_list, timeout=None, backend=None, pg_options=None, group_desc=None):
    """A group for each list of ranks, which have none in common: (the one of this rank, all of them)."""
    seen: set = set()
    for ranks in ranks_per_subgroup_list:
        twice = seen.intersection(ranks)
        if twice:
            raise InvalidArgumentError(f"new_subgroups_by_enumeration: rank {min(twice)} is in two groups")
        seen.update(ranks)
    groups, own = [], None
    for ranks in ranks_per_subgroup_list:
        group = new_rank_group(ranks, timeout, False, group_desc)
        groups.append(group)
        if get_rank() in ranks:
            own = group
    return own, groups
