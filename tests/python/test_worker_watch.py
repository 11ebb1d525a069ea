"""session.on_worker: a callback when a worker comes or goes."""

import pytest

import tessera as ts
from test_sessions import wait_until


def test_a_worker_that_goes_is_told_once_and_no_more_after_stop():
    with ts.local_cluster(workers=2, memory="16MiB") as cluster:
        with cluster.connect() as session, ts.connect(cluster.admin_address) as admin:
            told, ignored = [], []
            watch = session.on_worker(lambda change: told.append((change.change, change.worker["index"])))
            other = session.on_worker(ignored.append)
            other.stop()
            admin.kill_worker(1, "a test")
            wait_until(lambda: told)
            assert told == [("went", 1)] and ignored == []
            watch.stop()
        with pytest.raises(ts.InvalidArgumentError, match="on_worker: callback is 7"):
            session.on_worker(7)
