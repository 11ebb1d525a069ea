"""The snippets of docs/cookbook.md run, and those of a recipe have one result. (DTensor's: tests/torch/test_cookbook.py.)"""

import pathlib
import re

import numpy as np
import pytest

import tessera as ts

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "cookbook.md").read_text(encoding="utf-8")


def recipes(page):
    """By title: {language: source}."""
    out = {}
    for part in re.split(r"(?m)^##+ ", page)[1:]:
        blocks = dict(re.findall(r"```python (\w+)\n(.*?)```", part, re.DOTALL))
        if blocks:
            out[part.partition("\n")[0]] = blocks
    return out


RECIPES = recipes(PAGE)


def test_every_recipe_has_a_snippet_for_tessera():
    assert len(RECIPES) >= 18 and all("tessera" in blocks for blocks in RECIPES.values())
    assert {name for blocks in RECIPES.values() for name in blocks} == {"numpy", "dask", "dtensor", "tessera"}


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_runs(title, session, tmp_path):
    results = {}
    for language, source in RECIPES[title].items():
        if language == "dtensor":
            continue
        names = {"np": np, "a": np.random.default_rng(0).random((8, 6)), "session": session}
        if language == "dask":
            names["da"] = pytest.importorskip("dask.array")
        if language == "tessera":
            names |= {"ts": ts, "mesh": session.init_device_mesh((4,))}
        exec(compile(source.replace("/tmp/", f"{tmp_path}/"), f"{title}, {language}", "exec"), names)
        results[language] = names["result"]
    for language, result in results.items():
        assert not isinstance(result, np.ndarray) or result.size
        np.testing.assert_allclose(result, results["tessera"], rtol=1e-12, err_msg=language)
