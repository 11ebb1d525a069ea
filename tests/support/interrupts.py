"""Ctrl-C at a random moment of a loop, again and again."""

import os
import signal
import threading
import time


def interrupted(step, after: float) -> float:
    """Calls `step` until a SIGINT that is sent so many seconds from now is raised; the seconds that took."""
    sent, caught = [], threading.Event()

    def send():
        if caught.wait(after):
            return
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sender.start()
        while True:
            step()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    finally:
        caught.set()
        sender.join()
        signal.signal(signal.SIGINT, before)
