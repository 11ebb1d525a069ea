"""The benchmarks run: each limit program measures and checks its values, and a figure reaches the table and the JSON."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMITS = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin")) / "tests/bench/limits/limits_bench"

pytestmark = pytest.mark.skipif(not LIMITS.exists(), reason="the benchmarks are not built (bazel build //tests/bench/...)")


def variants(*arguments):
    done = subprocess.run([LIMITS, *map(str, arguments), "--repetitions=2"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["variants"]


@pytest.mark.parametrize("mesh, source, destination", [("2", "0", "1"), ("3", "2", "0"), ("2,2", "0,1", "2,0"), ("2,3", "0,0", "-1,1"),
                                                       ("2", "-1", "0"), ("4", "0", "-1"), ("6", "1", "2")])
@pytest.mark.parametrize("extents", ["17,33,5", "8,1,6", "3,64,64"])
@pytest.mark.parametrize("element_bytes", [1, 8])
def test_plain_copies_of_any_shards(mesh, source, destination, extents, element_bytes):
    found = variants("redistribute", f"--extents={extents}", f"--mesh={mesh}", f"--source={source}",
                     f"--destination={destination}", f"--element-bytes={element_bytes}")
    assert sorted(map(len, found.values())) == [2, 2]


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("elements, processes", [(16384, 2), (48, 4), (1040, 3)])
def test_plain_collectives(kind, elements, processes):
    found = variants("collective", f"--kind={kind}", f"--elements={elements}", f"--processes={processes}")
    assert all(len(samples) == 2 and min(samples) > 0 for samples in found.values())


@pytest.mark.parametrize("split", ["rows", "columns", "inner"])
def test_plain_products(split):
    assert list(variants("product", "--m=70", "--n=50", "--k=90", f"--split={split}", "--processes=3")) == [split]


@pytest.mark.parametrize("kind", ["var", "softmax", "layer_norm", "cumsum"])
def test_plain_passes(kind):
    assert list(variants("pass", f"--kind={kind}", "--rows=7", "--columns=50", "--processes=3")) == [kind]


def test_a_figure_reaches_the_table_and_the_json(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "tests/bench/run.py", "--quick", "--only", "all_reduce_64KiB"], text=True,
                          capture_output=True, timeout=120, env={**os.environ, "TESSERA_BENCH_OUT": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "tessera.json").read_text())["figures"]["all_reduce_64KiB"]
    assert len(found["tessera"]["samples"]) in (10, 50)  # five times as many where it is short, as it is but on a busy machine
    assert found["references"]["limit"]["best_ratio"] > 1
    assert "all_reduce_64KiB" in done.stdout and "limit" in done.stdout


def test_unknown_figures_are_refused():
    done = subprocess.run([sys.executable, ROOT / "tests/bench/run.py", "--only", "no_such"], text=True, capture_output=True, timeout=120)
    assert done.returncode == 2 and "no_such" in done.stderr
