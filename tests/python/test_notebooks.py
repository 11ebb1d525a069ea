"""In a notebook: the extension, and the notebooks of docs/notebooks, which run."""

import subprocess
import sys

import pytest

SHELL = """
from IPython.core.interactiveshell import InteractiveShell
import IPython.display, tessera as ts
shell = InteractiveShell.instance()
shown = []
shell.display_pub.publish = lambda data, **options: shown.append(data)
def run(line):
    result = shell.run_cell(line)
    return type(result.error_in_exec).__name__ if result.error_in_exec else "ok"
"""


def shell(program):
    pytest.importorskip("IPython")
    out = subprocess.run([sys.executable, "-c", SHELL + program], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout.strip().split("\n")[-1]


def test_the_extension_starts_a_cluster_and_shows_it():
    assert shell("""
said = [run("%load_ext tessera"), run("x = ts.ones((4, 4)).wait()" if "ts" in shell.user_ns else "import tessera as ts; x = ts.ones((4, 4)).wait()")]
assert all(name in shell.user_ns for name in ("cluster", "session")), shell.user_ns.keys()
assert any("Cluster of" in data.get("text/html", "") for data in shown), shown
count = len(shown)
said.append(run("%tessera status"))
assert any("f64[4,4]" in data.get("text/html", "") for data in shown[count:])
cluster = shell.user_ns["cluster"]
said += [run("%tessera start 2 64MiB"), run("%tessera sttus"), run("%tessera start many")]
assert cluster._stopped and len(shell.user_ns["cluster"].worker_pids) == 2
second = shell.user_ns["cluster"]
said += [run("%tessera stop"), run("%tessera status"), run("%unload_ext tessera")]
assert second._stopped and "cluster" not in shell.user_ns
print(said)
""") == "['ok', 'ok', 'ok', 'ok', 'InvalidArgumentError', 'InvalidArgumentError', 'ok', 'ok', 'ok']"


def test_the_extension_leaves_what_is_open_and_what_is_named(cluster):
    assert shell(f"""
mine = ts.connect({cluster.address!r})
shell.user_ns["session"] = "mine"
run("%load_ext tessera")
assert shell.user_ns["session"] == "mine" and "cluster" not in shell.user_ns and ts._context.open_sessions() == [mine]
print(any("Session " in data.get("text/html", "") for data in shown))
""") == "True"
