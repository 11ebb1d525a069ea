"""Notebooks from their sources: docs/notebooks/NAME.py has cells between lines `# %%` (and `# %% [markdown]`), in which
`# %magic` is a magic; NAME.ipynb beside it is the same with outputs. tools/notebooks writes it. Before a cell `# %% ... [restart]`
the kernel is restarted; such a notebook finds a cluster that stays at TESSERA_ADDRESS."""

import contextlib
import os
import pathlib
import re
import sys
import tempfile

import nbclient
import nbformat

RESTART = "restart"
FOLDER = pathlib.Path(__file__).resolve().parents[1] / "docs" / "notebooks"


def sources():
    return sorted(FOLDER.glob("*.py"))


def notebook_of(source: pathlib.Path):
    """The notebook, without outputs."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for number, part in enumerate(re.split(r"(?m)^# %%", source.read_text(encoding="utf-8"))[1:]):
        kind, _, body = part.partition("\n")
        body = body.strip()
        if "[markdown]" in kind:
            cell = nbformat.v4.new_markdown_cell(re.sub(r"(?m)^# ?", "", body))
        else:
            cell = nbformat.v4.new_code_cell(re.sub(r"(?m)^# (%\w)", r"\1", body))
        cell["id"] = f"cell-{number}"
        if "[restart]" in kind:
            cell.metadata["tags"] = [RESTART]
        notebook.cells.append(cell)
    return notebook


class _Client(nbclient.NotebookClient):
    """Restarts the kernel before cells that say so: a new process, which has nothing of the former one."""

    async def async_execute_cell(self, cell, cell_index, **options):
        if RESTART in cell.metadata.get("tags", ()):
            await self.km.restart_kernel(now=True)
            await self.kc.wait_for_ready(timeout=60)
            self.code_cells_executed = 0
        return await super().async_execute_cell(cell, cell_index, **options)

    execute_cell = nbclient.util.run_sync(async_execute_cell)


@contextlib.contextmanager
def _surroundings(notebook):
    """The kernel's environment: with a cluster that outlives it where it is restarted."""
    if not any(RESTART in cell.metadata.get("tags", ()) for cell in notebook.cells):
        yield dict(os.environ)
        return
    import tessera as ts
    with tempfile.TemporaryDirectory() as state, ts.local_cluster(2, "256MiB", files=tempfile.gettempdir(),
                                                                  coordinator_flags=["--session-lease", "60"]) as cluster:
        yield {**os.environ, "TESSERA_ADDRESS": cluster.address, "XDG_STATE_HOME": state}


def run(notebook, timeout: float = 300):
    """Executes it in a kernel of its own; an error in a cell is raised."""
    with _surroundings(notebook) as environment:
        _Client(notebook, timeout=timeout, kernel_name="python3", record_timing=False, coalesce_streams=True,
                resources={"metadata": {"path": str(FOLDER)}}).execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata.pop("language_info", None)
    return notebook


def main(names) -> None:
    for source in sources():
        if not names or source.stem in names:
            notebook = run(notebook_of(source))
            target = source.with_suffix(".ipynb")
            nbformat.write(notebook, target)
            print(f"{target.relative_to(FOLDER.parents[1])}: {target.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
