"""Sessions and clusters: the Python methods of the extension's classes."""

from __future__ import annotations

import math
import numbers
import os
import sys
import warnings
import weakref

import numpy as np

import _tessera
from . import _context, _mesh
from ._attach import attach
from ._dtypes import array_of, buffer_of, code_of
from ._errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from ._remembered_sessions import find, forget, remember
from ._mesh import DeviceMesh
from ._progress import bar_of

_CLIENT = "python %d.%d.%d" % sys.version_info[:3] + f" tessera {_tessera.version}"
_CONFIG = "~/.config/tessera/config.json"


def parse_bytes(value, op: str) -> int:
    """1 << 30, "1GiB", "512 MiB" or "2GB" as a number of bytes."""
    if isinstance(value, str):
        try:
            return _tessera.parse_bytes(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{op}: memory: {error}") from None
    (number,) = _mesh.integers(value, "memory", op)
    if number <= 0:
        raise InvalidArgumentError(f"{op}: memory is {number} bytes")
    return number


def seconds(value, op: str, what: str = "timeout") -> float:
    """A number of seconds, which may be infinite."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.nan
    if not number >= 0:
        raise InvalidArgumentError(f"{op}: {what} is {value!r}; it must be a number of seconds that is not negative")
    return number


def _address_of(address, token):
    """The address and token to use. The address: the argument, TESSERA_ADDRESS, then the config file. The token: the
    argument, what the address carries (then ""), TESSERA_TOKEN, then the config file."""
    address, configured = address or os.environ.get("TESSERA_ADDRESS"), ""
    if not address:
        address, configured = _configured()
    address = str(address)
    if not token and not _tessera.parse_address("connect", address)[1]:
        token = os.environ.get("TESSERA_TOKEN") or configured
    return address, token or ""


def _configured():
    """The address and token of the config file."""
    try:
        with open(os.path.expanduser(_CONFIG), encoding="utf-8") as file:
            import json
            config = json.load(file)
    except FileNotFoundError:
        raise InvalidArgumentError(
            f"connect: no address: give one, or set TESSERA_ADDRESS, or write it to {_CONFIG}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"connect: {_CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or not config.get("address"):
        raise InvalidArgumentError(f"connect: {_CONFIG} has no \"address\"")
    return config["address"], str(config.get("token", ""))


def _configured_value(name: str) -> str:
    """A value of the config file; "" where there is none."""
    try:
        with open(os.path.expanduser(_CONFIG), encoding="utf-8") as file:
            import json
            return str(json.load(file).get(name, ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _stall_timeout() -> float:
    text = os.environ.get("TESSERA_STALL_TIMEOUT", "60")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise InvalidArgumentError(f"connect: TESSERA_STALL_TIMEOUT is {text!r}; it must be a number of seconds that is not negative")
    return value


def connect(address=None, *, token=None, resume=None, timeout=10, lease=None, stall_timeout=None, name="", ca=None, host_id="",
            door=None):
    """Opens a session. Blocks until the coordinator answers, at most `timeout` seconds.

    >>> session = ts.connect("unix:/run/tessera.sock#token=...")
    >>> session = ts.connect("tls://cluster.example:7421", token="...", name="training")
    >>> session = ts.connect("tls://cluster.example:7421", token="...", resume="training")   # tomorrow, in a new process
    >>> w = session["w"]

    A connection that breaks is made again for as long as the session's lease runs, without an op lost or run twice.
    `host_id` is that of the workers on this host, where they were told one (`tessera-worker --host-id`): their memory is mapped then.
    `door` is a worker's address, "tls://localhost:7440", by way of which the bytes of all workers go: where their own addresses are
    not for this host (TESSERA_DOOR).
    Names are not unique: `resume` by a name takes the session that this user opened last under it.
    """
    if address is None and token is None and resume is not None and hasattr(resume, "address"):
        address, token = resume.address, resume._token
    address, token = _address_of(address, token)
    if resume is not None:
        resume, former_name = find(getattr(resume, "resume_text", resume), address.partition("#")[0])
        name = name or former_name      # it keeps its name: who comes back a second time asks by it
    if not isinstance(name, str):
        raise InvalidArgumentError(f"connect: name is {name!r}; it must be a str")
    if stall_timeout is None:
        stall_timeout = _stall_timeout()
    session = _tessera.Session._connect(address, token, name, resume or "", seconds(timeout, "connect"),
                                        -1.0 if lease is None else seconds(lease, "connect", "lease"),
                                        seconds(stall_timeout, "connect", "stall_timeout"), _CLIENT,
                                        os.fspath(ca or os.environ.get("TESSERA_CA") or _configured_value("ca")), host_id,
                                        door or os.environ.get("TESSERA_DOOR", ""))
    # The explicit token wins over one in the address.
    adopt(session, session._address, token or _tessera.parse_address("connect", address)[1], name)
    remember(session)
    return session


class _Policy(str):
    """A session's policy as it is; called with another one it becomes that."""

    def __new__(cls, session, policy: str):
        self = super().__new__(cls, policy)
        self._session = session
        return self

    def __call__(self, policy: str) -> None:
        self._session.implicit_redistribution = policy


def adopt(session, address: str, token: str, name: str = ""):
    session.address = address
    session.name = name
    session._token = token
    session._default_mesh = None    # once asked for: the extension's Mesh, and of which membership it is
    session._own_mesh = None        # of a rank: that of its worker
    session._closed = False         # by its user
    _context.register(session)
    return session


def session_of(tensor):
    """The Session of a tensor."""
    session = _context.session_of_key(tensor._session_key)
    return session if session is not None else adopt(tensor._session, tensor._session._address, "")


class CommDebug:
    """The bytes that workers moved for the ops and transfers of the block, as they counted them; filled in when the block ends.

    >>> with session.comm_debug() as comm:
    ...     x = ts.distribute_tensor(array, mesh, [ts.Shard(0)])
    ...     y = x.redistribute(placements=[ts.Shard(1)])
    >>> comm.bytes_received, comm.bytes_uploaded
    """

    def __init__(self, session):
        self._session = session
        self.bytes_received: list[int] | None = None   # by worker
        self.bytes_sent: list[int] | None = None
        self.bytes_uploaded: list[int] | None = None    # copied into a worker's shards from the client or a file
        self.bytes_downloaded: list[int] | None = None  # copied from a worker's shards to the client or a file
        self.collective_counts: dict[str, int] = {}    # by step name

    def __enter__(self):
        self._number = self._session._comm_begin()
        return self

    def __exit__(self, kind, value, traceback):
        try:
            (self.bytes_received, self.bytes_sent, self.bytes_uploaded, self.bytes_downloaded, self.collective_counts,
             _) = self._session._comm_end(self._number)
        except Exception:
            if kind is None:
                raise

    @property
    def total_bytes(self) -> int:
        """Between workers."""
        return sum(self.bytes_received or [])

    def __repr__(self):
        if self.bytes_received is None:
            return "CommDebug(open)"
        transfers = "".join(f"bytes_{name}={bytes_}, " for name, bytes_ in (("uploaded", self.bytes_uploaded), ("downloaded", self.bytes_downloaded))
                            if any(bytes_ or ()))
        return f"CommDebug(bytes_received={self.bytes_received}, {transfers}collective_counts={self.collective_counts})"


@attach(_tessera.Session)
class _SessionMethods:
    def init_device_mesh(self, *args, mesh_dim_names=None, workers=None) -> DeviceMesh:
        """init_device_mesh([device_type,] mesh_shape, *, mesh_dim_names=None, workers=None)"""
        return _mesh.init_device_mesh(self, args, mesh_dim_names, workers)

    @property
    def default_mesh(self) -> DeviceMesh:
        """One dim over the workers that are there; of a rank (tessera.distributed) its own worker. A new object each time: one that
        the session kept would keep the session."""
        if self._own_mesh is not None:
            return DeviceMesh._wrap(self, self._own_mesh)
        version = self._membership_version
        if self._default_mesh is None or self._default_mesh[1] != version:
            self._default_mesh = self._default_mesh_now(), version
        return DeviceMesh._wrap(self, self._default_mesh[0])

    def distribute_tensor(self, tensor, device_mesh=None, placements=None, *, src_data_rank=0):
        """Uploads an array (NumPy, DLPack, memmap); placements default to Replicate.

        Up to 4 MiB it copies and returns at once; above, it returns when the source has been read.
        """
        return distribute(self, tensor, device_mesh, placements, src_data_rank)

    def comm_debug(self) -> CommDebug:
        """Counts the bytes that workers move for the ops issued in the block, and those of uploads and downloads."""
        return CommDebug(self)

    def tensors(self) -> list:
        """The tensors that this session has on the cluster.

        Those that it had when it was resumed stay until it is closed, or drops them.
        """
        return [self._tensor(one["handle"], one["spec"], one["name"]) for one in self._status()["tensors"]]

    def drop(self, *tensors) -> None:
        """Lets go of tensors that a resumed session keeps: like any other, each is freed when its last handle is gone."""
        for tensor in tensors:
            if not isinstance(tensor, _tessera.Tensor) or tensor._session_key != self._key:
                raise InvalidArgumentError(f"drop: {tensor!r} is no tensor of {self!r}")
            self._let_go(tensor)

    def kill_worker(self, worker: int, reason: str = "") -> None:
        """Ends a worker's process, as an admin may: tensors that have no copy on other workers fail with the reason.

        >>> ts.connect(cluster.admin_address).kill_worker(3, "its GPU hangs")"""
        number, = _mesh.integers(worker, "worker", "kill_worker")
        if not isinstance(reason, str):
            raise InvalidArgumentError(f"kill_worker: reason is {reason!r}; it must be a str")
        self._kill_worker(number, reason)

    def status(self) -> dict:
        """Workers, this session and its tensors, as the coordinator knows them. An admin's session sees all sessions."""
        return self._status()

    def workers(self) -> list[dict]:
        """The workers that are there at this moment, by number: those that came after the session began, too. Meshes that exist
        stay as they are; a new one may have any of these.

        >>> mesh = session.init_device_mesh((len(session.workers()),))
        """
        return sorted((worker for worker in self._status()["workers"] if worker["state"] == "alive"), key=lambda worker: worker["index"])

    def unpublish(self, name: str) -> None:
        """Takes a publication of this session's tenant back; an admin's session takes any back. Sessions that have
        attached it keep the tensors, and the tenant is charged for them until the last one lets go."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f"unpublish: name is {name!r}; it must be a str")
        _tessera.unpublish(self, name)

    def published(self) -> list:
        """The publications that this session's tenant may attach, and of an admin's session all, as dicts of name, version,
        tensors (how many), bytes (on each worker, at most) and readers (of its own tenant's ones)."""
        return _tessera.published(self)

    @property
    def implicit_redistribution(self):
        """This session's policy outside `with ts.implicit_redistribution`: "allow", "warn" or "forbid".

        >>> session.implicit_redistribution = "forbid"     # or session.implicit_redistribution("forbid")
        """
        return _Policy(self, _context.POLICIES[self._implicit_policy()])

    @implicit_redistribution.setter
    def implicit_redistribution(self, policy: str) -> None:
        self._set_implicit_policy(_context.policy_number(policy))

    def sync(self) -> None:
        """Waits until all that this session holds has run; raises a failure that wasn't told before."""
        self._sync()

    def close(self) -> None:
        """Drops everything the session has. Closing twice is fine."""
        self._closed = True
        forget(self)
        self._close()

    def detach(self) -> None:
        """Leaves the session as it is, for `ts.connect(resume=...)`: what was asked for runs on, and its tensors stay for
        the session's lease. Without a lease that is like close()."""
        if self._lease_s <= 0:
            return self.close()
        self._closed = True
        self._detach()

    def __getitem__(self, name):
        """The tensor of that name (`x.name = "w"`), of this process or of one that had the session before."""
        if not isinstance(name, str):
            raise InvalidArgumentError(f"session: a tensor's name is a str, not {name!r}")
        return self._find(name)

    def __enter__(self):
        self._check()
        _context.push_session(self)
        return self

    def __exit__(self, *exc):
        _context.pop_session(self)
        self.close()

    def __repr__(self):
        return f"Session({self.id} at {self.address}, {self.worker_count} workers{'' if self._open else ', closed'})"


def mesh_for(device_mesh, op: str, session=None) -> DeviceMesh:
    """The mesh that was given, else the `with mesh:` one, else the session's default."""
    if device_mesh is None:
        mesh = _mesh.current_mesh()
        if mesh is not None and (session is None or mesh._session is session):
            return mesh
        return (session or _context.current_session()).default_mesh
    if not isinstance(device_mesh, DeviceMesh):
        raise InvalidArgumentError(f"{op}: device_mesh is {device_mesh!r}, not a DeviceMesh")
    if session is not None and device_mesh._session is not session:
        device_mesh._session._check()
        check_cluster(op, device_mesh, session)
    return device_mesh


def check_cluster(op: str, device_mesh: DeviceMesh, session) -> None:
    """A mesh is of the workers of a cluster, whose sessions all may use it; those of others may not."""
    other = device_mesh._session
    if other is session or other.address == session.address:
        return
    paths = [os.path.realpath(_tessera.parse_address(op, one.address)[0]) for one in (other, session)]
    if paths[0] != paths[1]:
        raise InvalidArgumentError(f"{op}: {device_mesh} is of the cluster at {other.address}, not of that at {session.address}")


def distribute(session, tensor, device_mesh, placements, src_data_rank=0):
    op = "distribute_tensor"
    if src_data_rank not in (0, None):
        raise UnimplementedError(f"{op}: src_data_rank is {src_data_rank}; the one client is rank 0")
    if isinstance(tensor, _tessera.Tensor):
        return tensor.redistribute(device_mesh, placements)
    mesh = mesh_for(device_mesh, op, session)
    session = session or mesh._session
    placements = mesh._placed(placements, op)
    return distribute_array(session, array_of(tensor, op), mesh._raw, placements)


def distribute_array(session, array, raw_mesh, placements: list):
    """The tensor of an array's values, with these placements: each worker takes its shards from this process."""
    with bar_of("upload", array.nbytes):
        return session._distribute(buffer_of(array), code_of(array.dtype, "distribute_tensor"), raw_mesh, placements)


class Cluster:
    """A coordinator and N CPU workers on this host, as child processes.

    It ends with the `with` block; else when neither it, nor an open session of it, nor a tensor is left.
    """

    def __init__(self, raw):
        self._raw = raw
        self._sessions = weakref.WeakSet()
        self._stopped = False
        _context.register_cluster(self)

    @property
    def address(self) -> str:
        """The text that another process gives to ts.connect. It carries the token."""
        return self._raw.address

    @property
    def admin_address(self) -> str:
        """The address with the admin's token: its sessions see everybody's, and may close them."""
        return self._raw.admin_address

    @property
    def worker_pids(self) -> list[int]:
        return list(self._raw.worker_pids)

    @property
    def coordinator_pid(self) -> int:
        return self._raw.coordinator_pid

    def log_tail(self, worker: int = -1) -> str:
        """The end of what the coordinator (-1) or a worker wrote to its log."""
        return self._raw._log_tail(worker)

    def connect(self, **options):
        """A new session; options are those of ts.connect."""
        if self._stopped:
            raise FailedPreconditionError("cluster: it is stopped")
        session = connect(self.address, **options)
        session._keep_until_closed(self)    # tensors outlive this object, and need the processes
        self._sessions.add(session)
        return session

    def stop(self) -> None:
        """Ends the processes. Closing twice is fine. One that a signal ended, also before, is named by a RuntimeWarning."""
        if self._stopped:
            return
        self._stopped = True
        for session in list(self._sessions):
            try:
                session.close()
            except Exception:  # the cluster may be dead already
                pass
        self._raw._stop()
        for worker, reason in self._raw._take_ended():
            if reason.startswith("killed by signal"):
                who = "the coordinator" if worker < 0 else f"worker {worker}"
                warnings.warn(f"local_cluster: {who} was {reason}", RuntimeWarning, stacklevel=2)

    close = stop

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def __repr__(self):
        base = self.address.partition("#")[0]
        return f"Cluster({len(self.worker_pids)} workers at {base}{', stopped' if self._stopped else ''})"


def local_cluster(workers=None, memory=None, device="cpu", *, transport=None, address=None, timeout=60,
                  coordinator_flags=(), worker_flags=(), files=None, spill=None) -> Cluster:
    """Starts a coordinator and workers on this host; memory is per worker: by default 1 GiB, and of a GPU an equal share
    of what is free, less a reserve. device is "cpu" or "cuda". files: folders whose
    files the workers load and save ("folder:ro": load); the current one if it is not given. spill: a folder on a local disk to which
    tensors that nobody used lately go when others want their memory, and from which they come back; without one they stay.

    >>> with ts.local_cluster(workers=4, memory="1GiB") as cluster:
    ...     session = cluster.connect()
    """
    op = "local_cluster"
    if device not in ("cpu", "cuda"):
        raise InvalidArgumentError(f"{op}: device is {device!r}, it must be \"cpu\" or \"cuda\"")
    (count,) = _mesh.integers(os.cpu_count() or 1 if workers is None else workers, "workers", op)
    if not 1 <= count <= 1024:
        raise InvalidArgumentError(f"{op}: workers is {count}, it must be in [1, 1024]")
    path = ""
    if address is not None:
        path, _ = _tessera.parse_address(op, str(address))
        if not path.startswith("/"):
            raise InvalidArgumentError(f"{op}: address is {address!r}; a cluster on this host listens on unix:/path")
    transport = transport or os.environ.get("TESSERA_TRANSPORT", "shm")
    roots = [os.getcwd()] if files is None else [files] if isinstance(files, (str, os.PathLike)) else files
    raw = _tessera.LocalCluster._start(count, 0 if memory is None else parse_bytes(memory, op), device, str(transport), path, seconds(timeout, op),
                                       list(coordinator_flags), [os.fspath(folder) for folder in roots], sys.executable or "",
                                       [*([f"--spill={os.fspath(spill)}"] if spill is not None else []), *worker_flags])
    return Cluster(raw)


Cluster.__module__ = CommDebug.__module__ = "tessera"
