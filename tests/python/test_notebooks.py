"""In a notebook: the extension, and the notebooks of docs/notebooks, which run."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "docs" / "notebooks").glob("*.py"))

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


def test_a_cell_whose_tensor_is_not_there_yet_is_drawn_again():
    assert shell("""
import os, signal, time
shell.kernel = object()
updates = []
def publish(data, **options):
    (updates if options.get("update") else shown).append(data)
shell.display_pub.publish = publish
with ts.local_cluster(workers=2, memory="64MiB") as cluster, cluster.connect() as session:
    x = ts.ones((4, 4)).wait()
    shell.user_ns.update(ts=ts, x=x)
    run("x")
    assert "values" in shown[-1]["text/html"] and "Tensor(f64[4,4]" in shown[-1]["text/plain"], shown
    os.kill(cluster.worker_pids[1], signal.SIGSTOP)
    run("y = x.redistribute([ts.Shard(0)]) + 1")
    run("y")
    assert "still being computed" in shown[-1]["text/html"], shown[-1]
    os.kill(cluster.worker_pids[1], signal.SIGCONT)
    until = time.monotonic() + 30
    while not updates and time.monotonic() < until:
        time.sleep(0.05)
    assert len(updates) == 1 and "values" in updates[0]["text/html"] and "computed" not in updates[0]["text/html"], updates
print("drawn again")
""").endswith("drawn again")


@pytest.fixture
def notebooks():
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_runs(notebooks, source):
    """In a kernel of its own; each checks its results. The one with outputs beside it has the same cells, and shows as much."""
    import nbformat
    rendered = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    fresh = notebooks.notebook_of(source)
    assert [cell.source for cell in rendered.cells] == [cell.source for cell in fresh.cells], "run tools/notebooks"
    notebooks.run(fresh)

    def kinds(notebook):
        return [[sorted(output.get("data", {"text": 0})) for output in cell.get("outputs", ())] for cell in notebook.cells]

    assert kinds(fresh) == kinds(rendered)
    assert not any("still being computed" in str(cell.get("outputs")) for cell in rendered.cells)
    assert source.with_suffix(".ipynb").stat().st_size < 300_000


def test_the_kernel_is_restarted_where_a_notebook_says_so(notebooks):
    import nbformat
    cells = [nbformat.v4.new_code_cell("import os, tessera; kept = 1; print(os.getpid())"), nbformat.v4.new_markdown_cell("again"),
             nbformat.v4.new_code_cell("import os; print(os.getpid(), 'kept' in dir(), os.environ['TESSERA_ADDRESS'][:5])")]
    cells[1].metadata["tags"] = [notebooks.RESTART]
    notebook = notebooks.run(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "p"}}))
    (first,), (second, kept, address) = (cell.outputs[0].text.split() for cell in (notebook.cells[0], notebook.cells[2]))
    assert first != second and kept == "False" and address == "unix:"


def test_there_are_notebooks(notebooks):
    assert [source.stem for source in SOURCES] == ["come_back", "digits", "first_steps", "regression", "where_the_bytes_go"] and notebooks.sources() == SOURCES
