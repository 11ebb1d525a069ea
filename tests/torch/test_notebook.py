"""The notebook of the digits runs as a reader runs it: in a kernel of this Python, by nbclient."""

import pathlib
import re

import nbformat
from nbclient import NotebookClient

FILE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "digits.ipynb"


def outputs(notebook, kind):
    """All of that MIME type, or of streams the text."""
    found = []
    for cell in notebook.cells:
        for one in cell.get("outputs", ()):
            if kind == "text" and one.output_type == "stream":
                found.append(one.text)
            elif kind in one.get("data", {}):
                found.append(one["data"][kind])
    return found


def test_the_notebook_trains_and_shows_its_curve_and_every_parameters_shards():
    notebook = nbformat.read(FILE, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(FILE.parent)}}).execute()
    text = "\n".join(outputs(notebook, "text"))
    losses = [float(one) for one in re.search(r"losses: ([\d. ]+)", text)[1].split()]
    assert len(losses) == 12 and losses[0] > 1 and losses[-1] < 0.2, text
    assert int(re.search(r"replays: (\d+)", text)[1]) >= 12 * 15 - 4
    assert int(re.search(r"(\d+) of 357 read right", text)[1]) >= 336, text      # 94 %
    (curve,) = outputs(notebook, "image/svg+xml")
    assert len(re.search(r'polyline points="([^"]+)"', curve)[1].split()) == 12
    pictures = [one for one in outputs(notebook, "text/html") if one.startswith("<h4>")]
    assert [re.match(r"<h4>(.*?)</h4>", one)[1] for one in pictures] == [f"{i}.{part}" for i in (0, 2, 4) for part in ("weight", "bias")]
    assert all("<svg" in one and "S(0)" in one for one in pictures)
