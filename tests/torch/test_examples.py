"""The page docs/torch.md and the examples run."""

import ast
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "examples" / "pages").glob("*/*.py"))


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    file = tmp_path / "page.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), encoding="utf-8")
    out = run(file)
    assert "tessera.Tensor(f32[] @ mesh(dp:2,tp:2)" in out and "aten.hash_tensor.default: has no row in Tessera" in out


def test_a_character_gpt_learns():
    out = run(ROOT / "examples" / "train_characters.py", "--steps", "60")
    last = float(re.search(r"60 steps: loss [\d.]+ to ([\d.]+);", out)[1])
    assert last < 3.3, out


def test_digits_are_read_with_everything_in_shards():
    out = run(ROOT / "examples" / "digits_fsdp.py", "--epochs", "6")
    losses = [float(one) for one in re.findall(r"epoch \d+: loss ([\d.]+)", out)]
    assert len(losses) == 6 and losses[0] > 0.8 and losses[-1] < 0.1, out
    right, alone = (int(re.search(pattern, out)[1]) for pattern in (r"epoch 6: .*, (\d+) of 357", r"torch alone reads (\d+) of 357"))
    assert right == alone and right >= 343, out     # 96 %


@pytest.mark.parametrize("file", PAGES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_section_of_a_page_runs(file):
    """Each checks its own result."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    assert re.search(r"^Page: .+\nSection: .+$", ast.get_docstring(tree), re.MULTILINE)
    runpy.run_path(str(file), run_name="__main__")


def test_every_page_is_listed():
    listed = dict(re.findall(r"\| `(\w+)` \| (.+) \|", (ROOT / "examples" / "pages" / "README.md").read_text(encoding="utf-8")))
    assert {file.parent.name for file in PAGES} == set(listed)
    for file in PAGES:
        assert f"Page: {listed[file.parent.name]}\n" in file.read_text(encoding="utf-8"), file
