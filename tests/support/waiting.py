"""Waiting for what another thread or process does, as long as a slow machine needs."""

import time


def wait_until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
