"""Notebooks from their sources: docs/notebooks/NAME.py has cells between lines `# %%` (and `# %% [markdown]`), in which
`# %magic` is a magic; NAME.ipynb beside it is the same with outputs. tools/notebooks writes it."""

import pathlib
import re
import sys

import nbclient
import nbformat

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
        notebook.cells.append(cell)
    return notebook


def run(notebook, timeout: float = 300):
    """Executes it in a kernel of its own; an error in a cell is raised."""
    nbclient.NotebookClient(notebook, timeout=timeout, kernel_name="python3", record_timing=False, coalesce_streams=True,
                            resources={"metadata": {"path": str(FOLDER)}}).execute()
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
