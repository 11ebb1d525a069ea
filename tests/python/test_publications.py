"""Publications: a tenant's set of tensors under a name, which others attach where it lies."""

import json
import subprocess
import threading
import time

import numpy as np
import pytest

import tessera as ts
from test_restarts import Pool as RestartedPool
from test_sessions import wait_until
from test_tenants import BINARIES, TOKENS, Pool, token

TENANTS = '[[tenant]]\nname = "a"\nmemory.max = "1MiB"\n[[tenant]]\nname = "b"\n[[tenant]]\nname = "c"\n'


@pytest.fixture(scope="module")
def pool():
    made = Pool(TENANTS + TOKENS + token("c-token", "c"))
    yield made
    made.stop()


def numbers(session, count=1024, start=0):
    return session.distribute_tensor(np.arange(start, start + count, dtype=np.float32), session.default_mesh, [ts.Shard(0)])


def used(pool):
    seen = pool.tenants()
    return {name: seen[name]["used_bytes"] for name in ("a", "b")}


def test_a_reader_has_what_was_published_and_no_byte_moves(pool):
    with pool.connect("a-token") as a, pool.connect("b-token") as b:
        w = numbers(a)
        assert a.publish({"w": w, "twice": w + w}, "a/weights", readers=["b"]) == 1
        before = used(pool)
        with b.comm_debug() as comm:
            weights = b.attach("a/weights")
        assert comm.total_bytes == 0 and used(pool) == before and before["b"] == 0
        assert weights.name == "a/weights" and weights.version == 1 and list(weights) == ["twice", "w"]
        np.testing.assert_array_equal(weights["twice"].full_tensor(), 2 * np.arange(1024, dtype=np.float32))
        assert weights["w"].placements == w.placements and float((weights["w"] * 2).sum()) == 1023 * 1024
        mine, seen_by_reader = ([one for one in session.published()] for session in (a, b))
        assert mine == [{"name": "a/weights", "version": 1, "tensors": 2, "bytes": 4096, "readers": ["b"]}]
        assert seen_by_reader == [{**mine[0], "readers": []}], "who else reads it is not told"
        a.unpublish("a/weights")


def test_writes_go_elsewhere(pool):
    with pool.connect("a-token") as a, pool.connect("b-token") as b:
        w = numbers(a)
        a.publish({"w": w}, "a/still", readers=["*"])
        own = np.arange(1024, dtype=np.float32)
        read = b.attach("a/still")["w"]
        w += 1
        w[3] = 7
        changed = b.attach("a/still")["w"]
        changed *= 3
        np.testing.assert_array_equal(read.full_tensor(), own)
        np.testing.assert_array_equal(b.attach("a/still")["w"].full_tensor(), own)
        np.testing.assert_array_equal(changed.full_tensor(), own * 3)
        assert float(w[3]) == 7 and float(w[4]) == 5
        # The reader alone has it now, and it is still not written to.
        a.unpublish("a/still")
        a.sync()
        read += 1
        np.testing.assert_array_equal(read.full_tensor(), own + 1)


def test_it_outlives_its_session_and_readers_keep_the_former_version(pool):
    with pool.connect("b-token") as b:
        with pool.connect("a-token") as a:
            version = a.publish({"w": numbers(a)}, "a/kept", readers=["b"])
        first = b.attach("a/kept")
        with pool.connect("a-token") as a:
            assert a.publish({"w": numbers(a, start=5)}, "a/kept", readers=["b"]) == version + 1
        second = b.attach("a/kept")
        assert (first.version, second.version) == (version, version + 1)
        assert float(first["w"][0]) == 0 and float(second["w"][0]) == 5
        with pool.connect("a-token") as a:
            a.unpublish("a/kept")
        assert float(first["w"][1]) == 1 and float(second["w"][1]) == 6
        assert used(pool)["a"] > 0, "charged to its tenant until readers let go"
        del first, second
        wait_until(lambda: used(pool)["a"] == 0)


def test_an_attach_in_the_middle_of_an_unpublish_has_all_or_nothing(pool):
    """Two readers attach while the publisher publishes and takes back, as fast as each can."""
    ended, seen, faults = threading.Event(), {"attached": 0, "absent": 0}, []

    def read(number):
        with pool.connect("b-token") as b:
            while not ended.is_set():
                try:
                    weights = b.attach("a/fleeting")
                except ts.NotFoundError as error:
                    seen["absent"] += 1
                    if 'no publication "a/fleeting" is there' not in str(error):
                        faults.append(str(error))
                    continue
                except ts.TesseraError as error:
                    faults.append(str(error))
                    continue
                seen["attached"] += 1
                first = float(weights["w"][0])
                w, twice = weights["w"].full_tensor(), (weights["twice"] * 1).full_tensor()
                if not (np.array_equal(w, first + np.arange(1024, dtype=np.float32)) and np.array_equal(twice, 2 * w)):
                    faults.append(f"reader {number}: version {weights.version}: {w[:2]} {twice[:2]}")

    readers = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    with pool.connect("a-token") as a:
        for reader in readers:
            reader.start()
        try:
            deadline, version = time.monotonic() + 60, 0
            while not faults and (version < 40 or min(seen.values()) < 20):
                assert time.monotonic() < deadline, seen
                w = numbers(a, start=version % 1000)
                version = a.publish({"w": w, "twice": w + w}, "a/fleeting", readers=["b"])
                a.unpublish("a/fleeting")
        finally:
            ended.set()
            for reader in readers:
                reader.join()
        assert not faults, faults[:3]
        with pytest.raises(ts.NotFoundError):
            a.unpublish("a/fleeting")
        del w
    wait_until(lambda: used(pool) == {"a": 0, "b": 0})


def test_foreign_names_answer_as_absent_ones(pool):
    with pool.connect("a-token") as a, pool.connect("c-token") as c:
        a.publish({"w": numbers(a)}, "a/secret", readers=["b"])
        mine = numbers(c)
        for name in ("a/secret", "a/nothing"):
            for call, error, said in ((lambda: c.attach(name), ts.NotFoundError, f'attach: no publication "{name}" is there for tenant "c" to read'),
                                      (lambda: c.unpublish(name), ts.NotFoundError, f'unpublish: no publication "{name}" is there for tenant "c" to take back'),
                                      (lambda: c.publish({"w": mine}, name), ts.PermissionDeniedError,
                                       f'publish: "{name}" is a name of tenant "a"; this session is of tenant "c", whose names begin with "c/"')):
                with pytest.raises(error) as why:
                    call()
                assert str(why.value) == said
        assert c.published() == []
        with pool.connect("root") as admin:
            assert [one["name"] for one in admin.published()] == ["a/secret"]
            with pytest.raises(ts.NotFoundError):
                admin.attach("a/secret")
        shown = pool.tessera("published", "--json", token="c-token")
        assert json.loads(shown.stdout) == {"published": []}
        assert "a/secret" in pool.tessera("published").stdout
        assert pool.tessera("unpublish", "a/secret", token="c-token").returncode == 1
        assert pool.tessera("unpublish", "a/secret").returncode == 0
        assert a.published() == []


def test_what_is_wrong_is_said(pool):
    with pool.connect("a-token") as a, pool.connect("b-token") as b:
        w = numbers(a)
        for tensors, name, readers, said in (
                ({"w": w}, "weights", [], '"weights" is no name of a publication, which is TENANT/NAME'), ({}, "a/w", [], "0 tensors"),
                ({"": w}, "a/w", [], "the name of a tensor is empty"), ({"w": 3}, "a/w", [], "'w' is 3, which is no Tensor"), ([w], "a/w", [], "a mapping of names to tensors"),
                ({"w": w}, "a/w", "b", "it is a list of tenants"), ({"w": w}, "a/w", ["x" * 2000], "max_name_bytes is 1024"), ({"w": w}, 5, [], "name is 5"),
                ({"w": w}, "a/w", ["x"] * 300, "300 readers; max_publication_readers is 256"), ({"w": numbers(b)}, "a/w", [], "is of another session"),
                ({str(i): w for i in range(1025)}, "a/w", [], "1025 tensors"), ({"w": w}, "a/\0", [], "has a byte 0")):
            with pytest.raises(ts.InvalidArgumentError, match="publish: ") as why:
                a.publish(tensors, name, readers)
            assert said in str(why.value)
        too_large = ts.ones((1 << 20,), device_mesh=a.default_mesh)
        with pytest.raises(ts.ResourceExhaustedError, match="memory.max is 1048576"):
            a.publish({"w": w, "large": too_large}, "a/w")
        a.publish({"w": w}, "a/w", readers=["b"])
        with pytest.raises(ts.FailedPreconditionError, match=r"publish what an op makes of it, as w \* 1"):
            b.publish(dict(b.attach("a/w")), "b/w")
        assert b.publish({"w": b.attach("a/w")["w"] * 1}, "b/w") == 1, "the first of this tenant"
        # Its publications are named where a tenant's memory is full.
        with pytest.raises(ts.ResourceExhaustedError, match="its publications have 2048 bytes"):
            ts.ones((1 << 20,), device_mesh=a.default_mesh).wait()
        a.unpublish("a/w")
        b.unpublish("b/w")


def test_names_of_any_script_and_module_functions(pool):
    with pool.connect("a-token") as a:
        with pytest.raises(ts.NotFoundError):
            ts.attach("a/nothing")
        name = 'a/gewichte "neu"\n重み'
        assert ts.publish({"ключ": numbers(a)}, name, readers=["*"]) >= 1
        assert list(ts.attach(name)) == ["ключ"] and [one["name"] for one in a.published()] == [name]
        assert json.loads(pool.tessera("published", "--json").stdout)["published"][0]["name"] == name
        assert "\n重" not in pool.tessera("published").stdout
        a.unpublish(name)


def test_a_killed_worker_is_named_and_a_journal_replays():
    pool = Pool(TENANTS + TOKENS)
    try:
        with pool.connect("a-token") as a, pool.connect("b-token") as b, pool.connect("root") as admin:
            w = numbers(a)
            a.publish({"rows": w, "copies": w.redistribute(placements=[ts.Replicate()])}, "a/both", readers=["b"])
            a.publish({"copies": w.redistribute(placements=[ts.Replicate()])}, "a/copies", readers=["b"])
            both = b.attach("a/both")
            admin.kill_worker(1, "its fan broke")
            with pytest.raises(ts.UnavailableError, match='attach: "rows" of "a/both" is lost: worker 1 was lost'):
                wait_until(lambda: b.attach("a/both") is None)
            with pytest.raises(ts.UnavailableError, match="worker 1 was lost"):
                both["rows"].wait()
            for copies in (both["copies"], b.attach("a/copies")["copies"]):
                np.testing.assert_array_equal(copies.full_tensor(), np.arange(1024, dtype=np.float32))
    finally:
        pool.stop()
    replayed = subprocess.run([BINARIES / "server/coordinator/tessera-coordinator", f"--replay={pool.folder}/journal"],
                              capture_output=True, text=True, timeout=60)
    assert (pool.folder / "journal.digest").read_text().strip() in replayed.stdout


def test_without_a_tenants_file_names_are_of_default(cluster):
    with cluster.connect() as one, cluster.connect() as other:
        w = ts.ones((64,), device_mesh=one.default_mesh)
        with pytest.raises(ts.PermissionDeniedError, match='whose names begin with "default/"'):
            one.publish({"w": w}, "vision/w")
        one.publish({"w": w}, "default/w")
        assert float(other.attach("default/w")["w"].sum()) == 64
        other.unpublish("default/w")


def test_a_publication_survives_its_session_and_its_coordinator(tmp_path):
    tmp_path.chmod(0o700)
    pool = RestartedPool(tmp_path)
    try:
        with pool.connect() as publisher:
            publisher.publish({"w": numbers(publisher)}, "default/w")
        with pool.connect(lease=60) as reader:
            before = reader.attach("default/w")
            pool.restart()
            after = reader.attach("default/w")
            assert (before.version, after.version) == (1, 1) and reader.published()[0]["tensors"] == 1
            for w in (before["w"], after["w"]):
                np.testing.assert_array_equal(w.full_tensor(), np.arange(1024, dtype=np.float32))
            reader.unpublish("default/w")
    finally:
        pool.stop()
