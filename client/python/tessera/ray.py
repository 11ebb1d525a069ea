"""Pools on a Ray cluster, and tensors of Ray's objects.

>>> import ray, tessera.ray
>>> ray.init(address="auto")
>>> with tessera.ray.start(workers=8, resources={"CPU": 4}, memory="16GiB") as pool:
...     session = pool.session()
...     x = tessera.ray.from_ray(refs, session.init_device_mesh((8,)), [ts.Shard(0)])

Ray places the pool and starts its processes again; none of Tessera's own does. Everything ends with the job that made it.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref

import numpy as np
import ray

import _tessera
from . import _mesh
from ._dtypes import buffer_of, code_of
from ._errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from ._from_local import from_local
from ._placements import Replicate, Shard
from ._programs import program
from ._session import connect, mesh_for, parse_bytes, seconds

__all__ = ["RayPool", "from_ray", "start", "to_ray"]

_OP = "tessera.ray.start"
_POLL_S = 0.05
_END_S = 15
_DIRECT_BYTES = 1 << 20     # docs/limits.md: from_ray_direct


def _end_with_parent():
    """In a child, before it becomes its program: it is told to end when the actor's process is gone, however that ended."""
    import ctypes
    import signal
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)     # PR_SET_PDEATHSIG


def _free_ports() -> int:
    """A port of which the next one is free, too."""
    import socket
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("", 0))
            port = one.getsockname()[1]
            try:
                next_one.bind(("", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class _Process:
    """A program that is an actor's, and its log."""

    def __init__(self, words, environment, log):
        import subprocess
        self.log = log
        with open(log, "ab") as out:
            self.process = subprocess.Popen(words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            preexec_fn=_end_with_parent)

    def end(self):
        import subprocess
        self.process.terminate()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        with open(self.log, errors="replace") as file:
            return file.read()[-2000:]


class _Coordinator:
    """The actor of the pool's coordinator."""

    def __init__(self, programs):
        self.folder = tempfile.mkdtemp(prefix="tessera-ray-")
        host = ray.util.get_node_ip_address()
        words = [programs["tessera"], "up", "--here", "--workers=0", f"--listen=tls://{host}:{_free_ports()}", f"--folder={self.folder}/tls",
                 f"--write-address={self.folder}/address.json"]
        self.process = _Process(words, {"TESSERA_BIN_DIR": programs["folder"]} if programs["folder"] else {}, f"{self.folder}/log.txt")

    def address(self):
        """Where the pool is, once it listens; a str where its coordinator has ended: why."""
        import json
        while not os.path.exists(f"{self.folder}/address.json"):
            if self.process.process.poll() is not None:
                return self.process.tail()
            time.sleep(_POLL_S)
        with open(f"{self.folder}/address.json", encoding="utf-8") as file:
            address = json.load(file)
        with open(address["ca"], encoding="utf-8") as file:
            address["ca"] = file.read()
        return address

    def log_tail(self) -> str:
        return self.process.tail()

    def end(self):
        import shutil
        self.process.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Worker:
    """The actor of one worker. Ray makes it again where its process has ended; its worker has the number that it had."""

    def __init__(self, programs, join, index, flags):
        self.folder = tempfile.mkdtemp(prefix="tessera-ray-")
        self.session = None
        # Workers of one node of Ray map each other's memory.
        words = [programs["tessera"], "keep", "--", programs["tessera-worker"], f"--join={join['address']}", f"--ca-pin={join['ca_pin']}",
                 f"--index={index}", f"--host-id={self.node()}", f"--socket-dir={self.folder}", *flags]
        self.process = _Process(words, {"TESSERA_JOIN_TOKEN": join["token"]}, f"{self.folder}/log.txt")

    def pid(self) -> int:
        """That of `tessera keep`, whose child is the worker."""
        return self.process.process.pid

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def describe(self, refs) -> list:
        """dtype and extents of blocks that lie on this node."""
        return [(block.dtype.str, block.shape) for block in _blocks(refs)]

    def send(self, door, upload, parts) -> None:
        """Brings the worker its shard, of blocks that this node has or that Ray brings here: (position, first row, ref or extents)."""
        if self.session is None:
            ca = f"{self.folder}/client-ca.crt"
            with open(ca, "w", encoding="utf-8") as file:
                file.write(door["ca"])
            self.session = connect(door["address"], token=door["token"], ca=ca, host_id=self.node(), name="tessera.ray.from_ray")
        ticket, secret, code, dtype, shape, mesh, placements = upload
        refs = [ref for _, _, ref in parts if isinstance(ref, ray.ObjectRef)]
        blocks = iter(_blocks(refs))
        arrays = [(position, first, buffer_of(next(blocks) if isinstance(ref, ray.ObjectRef) else np.empty(ref, dtype))) for position, first, ref in parts]
        _tessera.send_parts(self.session, ticket, secret, code, shape, _tessera.Mesh.make(*mesh), placements, arrays)

    def log_tail(self) -> str:
        return self.process.tail()

    def end(self):
        import shutil
        if self.session is not None:
            self.session.close()
        self.process.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def _blocks(refs) -> list:
    return [np.asarray(block) for block in ray.get(refs)]


class RayPool:
    """A pool that Ray has placed; start() makes it. It ends with the `with` block, with stop(), or with the job."""

    def __init__(self, workers, resources, memory, strategy, timeout, files, worker_flags):
        self._resources, self._strategy, self._timeout = resources, strategy, timeout
        self._programs = {name: program(name, _OP) for name in ("tessera", "tessera-worker", "tessera-coordinator")}
        self._programs["folder"] = os.environ.get("TESSERA_BIN_DIR", "")
        self._flags = [f"--threads={max(1, int(resources.get('CPU', 1)))}", *(f"--files={os.fspath(one)}" for one in files), *map(str, worker_flags)]
        if resources.get("GPU"):
            self._flags.append("--device=cuda")
        if memory is not None:
            bytes_ = parse_bytes(memory, _OP)
            self._resources = {**resources, "memory": bytes_}
            self._flags.append(f"--memory={bytes_}")
        self._groups, self._workers, self._stopped = [], [], False
        self._coordinator = ray.remote(_Coordinator).options(num_cpus=0, max_concurrency=2).remote(self._programs)
        self._folder = tempfile.TemporaryDirectory(prefix="tessera-ray-client-")
        try:
            place = self._place(workers)
            try:
                self._address = ray.get(self._coordinator.address.remote(), timeout=timeout)
            except ray.exceptions.GetTimeoutError:
                raise DeadlineExceededError(f"{_OP}: the coordinator does not listen after {timeout} s: {self.log_tail()}") from None
            if isinstance(self._address, str):
                raise UnavailableError(f"{_OP}: the coordinator has ended: {self._address}")
            self._ca = os.path.join(self._folder.name, "ca.crt")
            with open(self._ca, "w", encoding="utf-8") as file:
                file.write(self._address["ca"])
            self._start(place, workers)
        except BaseException:
            self.stop()
            raise

    def _place(self, count):
        """A placement group for more workers."""
        from ray.util.placement_group import placement_group
        group = placement_group([dict(self._resources) for _ in range(count)], strategy=self._strategy)
        self._groups.append((group, count))
        if not group.wait(self._timeout):
            raise ResourceExhaustedError(f"{_OP}: Ray has found no place for {count} workers of {self._resources} in {self._timeout} s; it has "
                                         f"{ {name: amount for name, amount in ray.available_resources().items() if not name.startswith('node:')} }")
        return group

    def _start(self, group, count):
        """Workers in the places of a group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        actor = ray.remote(_Worker)
        for bundle in range(count):
            options = {"num_cpus": self._resources.get("CPU", 0), "num_gpus": self._resources.get("GPU", 0), "max_restarts": -1, "max_concurrency": 4,
                       "resources": {name: amount for name, amount in self._resources.items() if name not in ("CPU", "GPU", "memory")},
                       "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)}
            if "memory" in self._resources:
                options["memory"] = self._resources["memory"]
            self._workers.append(actor.options(**options).remote(self._programs, self._address["join"], len(self._workers), self._flags))

    def session(self, *, workers=None, timeout=None, **options):
        """A session, when so many workers (all) have joined; options are those of ts.connect."""
        self._check()
        limit = self._timeout if timeout is None else seconds(timeout, "session")
        options.setdefault("host_id", ray.get_runtime_context().get_node_id())
        session = connect(self._address["address"], token=self._address["token"], ca=self._ca, **options)
        session._ray_pool = weakref.ref(self)
        deadline, wanted = time.monotonic() + limit, workers or len(self._workers)
        while (there := len(session.workers())) < wanted:
            if time.monotonic() > deadline:
                session.close()
                raise DeadlineExceededError(f"{_OP}: {there} of {wanted} workers have joined in {limit} s: {self.log_tail()}")
            time.sleep(_POLL_S)
        return session

    def scale(self, workers: int) -> None:
        """Has so many workers. More join as they start; of fewer the newest end, with what they hold."""
        self._check()
        wanted, = _mesh.integers(workers, "workers", "scale")
        if wanted < 1:
            raise InvalidArgumentError(f"{_OP}: scale({wanted}): a pool has 1 worker or more; stop() ends it")
        if wanted > len(self._workers):
            more = wanted - len(self._workers)
            self._start(self._place(more), more)
        while len(self._workers) > wanted:
            self._end(self._workers.pop())
        self._give_back(wanted)

    def _end(self, actor):
        try:
            ray.get(actor.end.remote(), timeout=_END_S + 5)
        except Exception:  # noqa: BLE001: its process may be gone already
            pass
        ray.kill(actor, no_restart=True)

    def _give_back(self, wanted):
        """Groups whose workers have all ended."""
        from ray.util.placement_group import remove_placement_group
        while self._groups and sum(count for _, count in self._groups[:-1]) >= wanted:
            remove_placement_group(self._groups.pop()[0])

    def _take(self, refs, mesh, placements, op):
        """The tensor of blocks that each worker's actor brings to its worker; None where they are better read here."""
        workers = mesh._raw.workers
        if max(workers) >= len(self._workers):
            return None
        actors = [self._workers[worker] for worker in workers]
        ray.wait(refs, num_returns=len(refs), fetch_local=False)
        nodes = dict(zip(ray.get([actor.node.remote() for actor in actors]), actors))
        at = ray.experimental.get_object_locations(refs)
        places = [next((node for node in at.get(ref, {}).get("node_ids", ()) if node in nodes), None) for ref in refs]
        near = {place: [number for number, one in enumerate(places) if one == place] for place in set(places)}
        asked = {place: nodes.get(place, actors[0]).describe.remote([refs[number] for number in numbers]) for place, numbers in near.items()}
        specs = {}
        for place, numbers in near.items():
            specs.update(zip(numbers, ray.get(asked[place])))
        specs = [(np.dtype(dtype), shape) for dtype, shape in (specs[number] for number in range(len(refs)))]
        dtype, shape, ends = _joined(specs, op)
        if dtype.itemsize * int(np.prod(shape)) < _DIRECT_BYTES:
            return None
        code, on_workers, session = code_of(dtype, op), mesh._placed(placements, op), mesh._session
        tensor, ticket, secret = _tessera.open_upload(session, code, shape, mesh._raw, on_workers)
        upload = (ticket, secret, code, dtype.str, shape, (list(mesh._raw.shape), list(mesh._raw.names), list(workers)), on_workers)
        door = {**self._address, "join": None}
        try:
            sends = [actor.send.remote(door, upload, [(position, first, refs[number] if number is not None else (0, *shape[1:]))
                                                      for first, number in _covering(ends, rows) or [(rows[0], None)]])
                     for position, (actor, (rows, *_)) in enumerate(zip(actors, _tessera.boxes(code, shape, mesh._raw, on_workers)))]
            ray.get(sends)
        except BaseException as error:
            _tessera.give_up_upload(session, tensor, ticket, f"{op}: {type(error).__name__}: {error}")
            raise
        return tensor

    def log_tail(self, worker: int = -1) -> str:
        """The end of what a worker, or the coordinator (-1), wrote to its log."""
        actor = self._coordinator if worker < 0 else self._workers[worker]
        try:
            return ray.get(actor.log_tail.remote(), timeout=5)
        except Exception as error:  # noqa: BLE001
            return f"no log: {error}"

    def stop(self) -> None:
        """Ends all of it. Closing twice is fine."""
        if self._stopped:
            return
        self._stopped = True
        if ray.is_initialized():
            while self._workers:
                self._end(self._workers.pop())
            self._end(self._coordinator)
            self._give_back(0)
        self._folder.cleanup()

    close = stop

    def _check(self):
        if self._stopped:
            raise FailedPreconditionError(f"{_OP}: the pool is stopped")

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def __repr__(self):
        return f"RayPool({len(self._workers)} workers at {self._address['address']}{', stopped' if self._stopped else ''})"


def start(workers=1, *, resources=None, memory=None, strategy="SPREAD", timeout=120, files=(), worker_flags=()) -> RayPool:
    """Places a coordinator and workers on the Ray cluster of this job, each worker with these resources ({"CPU": 1}).

    memory is of each worker, and taken from Ray's; 1 GiB if it is not given, and of a GPU what is free. strategy is that of a
    placement group: "SPREAD" over nodes, "STRICT_SPREAD", "PACK".
    """
    if not ray.is_initialized():
        raise FailedPreconditionError(f"{_OP}: there is no Ray here: ray.init(address=\"auto\") comes first")
    count, = _mesh.integers(workers, "workers", _OP)
    if count < 1:
        raise InvalidArgumentError(f"{_OP}: workers is {count}, it must be 1 or more")
    wanted = {"CPU": 1} if resources is None else dict(resources)
    if not wanted or any(not isinstance(amount, (int, float)) or amount <= 0 for amount in wanted.values()):
        raise InvalidArgumentError(f"{_OP}: resources is {resources!r}; it is a dict of amounts above 0, {{\"CPU\": 4}}")
    return RayPool(count, wanted, memory, strategy, seconds(timeout, _OP), list(files), worker_flags)


def from_ray(refs, device_mesh=None, placements=None):
    """A tensor of blocks: NumPy arrays that are objects of Ray, one behind the other along dim 0.

    In a session of a RayPool the actor of each worker brings it its shard from the object store of its own node; what lies on other
    nodes alone comes there by Ray, once. Elsewhere, and where all blocks are small, this process reads them, and brings them to the workers.
    """
    op = "from_ray"
    refs = list(refs)
    if not refs:
        raise InvalidArgumentError(f"{op}: there are no blocks")
    mesh = mesh_for(device_mesh, op)
    pool = getattr(mesh._session, "_ray_pool", lambda: None)()
    if pool is not None and not pool._stopped and (tensor := pool._take(refs, mesh, placements, op)) is not None:
        return tensor
    blocks = _blocks(refs)
    dtype, shape, ends = _joined([(block.dtype, block.shape) for block in blocks], op)
    boxes = iter(_tessera.boxes(code_of(dtype, op), shape, mesh._raw, mesh._placed(placements, op)))
    return from_local(None, lambda position: _box_of(blocks, ends, next(boxes)), mesh, placements, shape)


def _joined(specs, op):
    """The dtype and the extents of all blocks together, and the row behind each of them."""
    first_dtype, first_shape = specs[0]
    for number, (dtype, shape) in enumerate(specs):
        if len(shape) < 1 or len(shape) != len(first_shape) or shape[1:] != first_shape[1:] or dtype != first_dtype:
            raise InvalidArgumentError(f"{op}: block {number} is {dtype}{list(shape)}, block 0 is {first_dtype}{list(first_shape)}; blocks have one "
                                       "dtype, and the same extents but for dim 0")
    ends = np.cumsum([shape[0] for _, shape in specs])
    return first_dtype, (int(ends[-1]), *first_shape[1:]), ends


def _covering(ends, rows) -> list:
    """The blocks that have some of the rows: (first row, number)."""
    start, stop = rows
    begins = [0, *(int(end) for end in ends[:-1])]
    return [(begin, number) for number, (begin, end) in enumerate(zip(begins, ends)) if min(stop, end) > max(start, begin)]


def _box_of(blocks, ends, box):
    """The elements of a box; of one block alone they are no copy."""
    (start, stop), *others = (tuple(range_) for range_ in box)
    parts = [blocks[number][max(0, start - first):stop - first] for first, number in _covering(ends, (start, stop))]
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else blocks[0][:0]
    return np.ascontiguousarray(whole[(slice(None), *(slice(*range_) for range_ in others))])


def to_ray(tensor) -> list:
    """The tensor as objects of Ray, a block for each of its workers' shards along dim 0; from_ray takes them again."""
    if tensor.ndim < 1:
        raise InvalidArgumentError("to_ray: the tensor has no dim to cut into blocks")
    raw = tensor.device_mesh
    sharded = tensor.redistribute(placements=[Shard(0), *(Replicate() for _ in raw.shape[1:])])
    return [ray.put(sharded.to_local((number, *(0 for _ in raw.shape[1:])))) for number in range(raw.shape[0])]
