"""The page docs/torch.md and the examples run."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "torch.md").read_text(encoding="utf-8")
    file = tmp_path / "page.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), encoding="utf-8")
    out = run(file)
    assert "tessera.Tensor(f32[] @ mesh(dp:2,tp:2)" in out and "aten._fft_r2c.default: has no row in Tessera" in out


def test_a_character_gpt_learns():
    out = run(ROOT / "examples" / "train_characters.py", "--steps", "60")
    last = float(re.search(r"60 steps: loss [\d.]+ to ([\d.]+);", out)[1])
    assert last < 3.3, out
