"""Names that people try: completion, help, spellings of NumPy, torch and Dask, and typos."""

import ast
import inspect
import re
import types

import numpy as np
import pytest

import _tessera
import tessera as ts
from tessera import _help
from tessera._examples import EXAMPLES, OF_FUNCTIONS, OF_ROWS
from tessera._help import _parameters

S, R, P = ts.Shard, ts.Replicate, ts.Partial


def _public():
    for prefix, space in (("", ts), ("linalg.", ts.linalg), ("fft.", ts.fft)):
        for name in sorted(dir(space)):
            value = getattr(space, name)
            if isinstance(value, types.FunctionType) and not name.startswith("_"):
                yield prefix + name, value


FUNCTIONS = dict(_public())


def test_completion_shows_no_private_names(cluster, session, mesh4):
    x = ts.ones((2,), device_mesh=mesh4)
    plan = x.explain_redistribute([S(0)])
    for thing in (ts, ts.linalg, ts.fft, x, session, cluster, mesh4, plan, session.comm_debug(), ts.Shard(0)):
        private = [name for name in dir(thing) if name.startswith("_") and not name.startswith("__")]
        assert not private, (thing, private)
    assert {"redistribute", "shape", "sum"} <= set(dir(x)) and {"sum", "linalg", "Shard"} <= set(dir(ts))
    assert dir(ts.linalg) == sorted(ts.linalg.__all__) and "operator" not in dir(ts.fft)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_is_enough(name, session, mesh4):
    """Signature, what it does, each argument, an example, and errors; the example shows what it says."""
    function = FUNCTIONS[name]
    lines = function.__doc__.split("\n")
    assert re.match(r"\w+\(.*\)$", lines[0]) and lines[1] == "" and len(lines[2]) > 10
    told = "\n".join(lines[2:])
    for parameter in _parameters(lines[0]):
        assert parameter in inspect.signature(function).parameters and re.search(rf"\b{parameter}\b", told), parameter
    assert ">>> " in function.__doc__ and "\nErrors:\n" in function.__doc__
    if name not in EXAMPLES:
        return      # an example of its own, in its documentation
    expression, _, shown = EXAMPLES[name].partition(" => ")
    got = eval(expression, {"ts": ts, "np": np, "mesh": mesh4, "session": session})
    assert (repr(got) if got is not None else "") == shown


def test_every_example_is_of_a_function():
    for name, example in EXAMPLES.items():
        assert name in FUNCTIONS, name
        ast.parse(example.partition(" => ")[0])


def test_rows_say_their_examples_and_their_own_arguments():
    assert not set(OF_ROWS) & set(OF_FUNCTIONS), "an example stands in a row and in _examples.py"
    parameters = {row[1]: _parameters(row[4]) for row in _tessera.catalog() if "(" in row[4]}
    for name, own in _help._ARGUMENTS_OF_ROWS.items():
        assert set(own) <= set(parameters[name.rpartition(".")[2]]), (name, own)
        assert not set(own) & set(_help._ARGUMENTS), f"{name}: _help.py tells of an argument that the row tells of"
        for argument, text in own.items():
            assert f"\n{argument}: {text}\n" in FUNCTIONS[name].__doc__


@pytest.mark.parametrize("name, said", [
    ("cuda", "x.device_mesh"), ("cpu", "x.full_tensor()"), ("numpy", "x.full_tensor()"), ("to", "x.astype(dtype)"), ("detach", "no gradients"),
    ("compute", "x.full_tensor()"), ("add_", "x = x.add(...)"), ("permute", "ts.permute_dims"),
    ("inv", "ts.linalg.inv"), ("full_tesnor", "did you mean full_tensor?"), ("plcements", "did you mean placements?")])
def test_a_tensor_says_what_to_write(mesh4, name, said):
    x = ts.ones((2,), device_mesh=mesh4)
    assert not hasattr(x, name)
    with pytest.raises(AttributeError, match="^Tensor has no " + name) as raised:
        getattr(x, name)
    assert said in str(raised.value)


@pytest.mark.parametrize("name, said", [
    ("tensor", "ts.asarray(values)"), ("cat", "ts.concat"), ("full_tensor", "x.full_tensor(...)"),
    ("from_numpy", "ts.asarray(values)"), ("Sharrd", "did you mean Shard?"), ("zeross", "did you mean zeros?"), ("comm_debug", "session.comm_debug(...)"),
    ("inv", "ts.linalg.inv")])
def test_the_module_says_what_to_write(name, said):
    assert not hasattr(ts, name)
    with pytest.raises(AttributeError, match="^tessera has no " + name) as raised:
        getattr(ts, name)
    assert said in str(raised.value)


def test_what_is_advised_is_there(session, mesh4):
    """The tables name functions and methods that exist."""
    from tessera import _names
    x = ts.ones((2, 2), device_mesh=mesh4)
    for table in (_names._ELSEWHERE, _names._OF_TENSORS, _names._OF_SESSIONS):
        for name, advice in table.items():
            for word in re.findall(r"ts\.([\w.]+)", advice):
                found = ts
                for part in word.split("."):
                    found = getattr(found, part)
            for word in re.findall(r"\bx\.(\w+)", advice):
                assert hasattr(x, word), (name, advice)
            for word in re.findall(r"session\.(\w+)", advice):
                assert hasattr(session, word), (name, advice)
    for name in _names._OF_TENSORS:
        assert not hasattr(x, name), name
    for name in _names._OF_SESSIONS:
        assert not hasattr(session, name), name
    assert not [name for name in _names._ELSEWHERE if hasattr(ts, name)]


def test_sessions_clusters_and_meshes_know_typos(cluster, session, mesh4):
    for thing, name, said in ((session, "distribut_tensor", "did you mean distribute_tensor?"), (session, "scatter", "session.distribute_tensor"),
                              (session, "tensor", "did you mean tensors?"), (cluster, "conect", "did you mean connect?"), (mesh4, "shap", "did you mean shape?"),
                              (ts.linalg, "invv", "did you mean inv?")):
        with pytest.raises(AttributeError, match=re.escape(said)):
            getattr(thing, name)


@pytest.mark.parametrize("call, said", [
    (lambda x: ts.sum(x, axs=0), "sum: unexpected arguments axs; did you mean axis=?"),
    (lambda x: ts.sum(x, dim=0), "the array API calls it axis="),
    (lambda x: x.sum(keepdim=True), "the array API calls it keepdims="),
    (lambda x: ts.argmax(x, axs=0), "did you mean axis=?"),
    (lambda x: ts.randn(size=(3,)), "write randn(..., shape=(3,))"),
    (lambda x: ts.zeros((3,), placement=[R()]), "did you mean placements=?"),
    (lambda x: ts.full((3,), 1, mesh=None), "did you mean device_mesh=?"),
    (lambda x: x.redistribute(placement=[S(0)]), "Tensor.redistribute() got an unexpected keyword argument 'placement'; did you mean placements=?"),
    (lambda x: x.session.distribute_tensor(np.ones(3), mesh=None), "did you mean device_mesh=?"),
    (lambda x: x.wait(timout=1), "did you mean timeout=?"),
    (lambda x: ts.local_cluster(n_workers=2), "did you mean workers=?"),
    (lambda x: ts.Shard(0, size=[1]), "did you mean sizes=?"),
    (lambda x: ts.concat([x], dim=0), "did you mean axis=?")])
def test_a_keyword_that_is_meant_is_named(mesh4, call, said):
    with pytest.raises(TypeError, match=re.escape(said)):
        call(ts.ones((2,), device_mesh=mesh4))


def test_spellings_that_are_clear_work(session, mesh4, mesh22):
    x = session.distribute_tensor(np.arange(6.0), mesh4)
    assert ts.reshape(x, 2, 3).tolist() == ts.reshape(x, (2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    alone = session.distribute_tensor(np.arange(3.0), session.init_device_mesh((1,)))
    assert alone.to_local().tolist() == [0, 1, 2]
    with pytest.raises(ts.InvalidArgumentError, match=re.escape("Write x.to_local((0, 0)) for the one at that position")):
        session.distribute_tensor(np.ones(3), mesh22).to_local()


def test_numpy_functions_take_tensors(session, mesh4, rng):
    a = rng.random(5)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    for function in (np.exp, np.sin, np.arctan, np.abs, np.negative, np.rint, np.isnan):
        got = function(x)
        assert isinstance(got, ts.Tensor)
        np.testing.assert_allclose(got.full_tensor(), function(a), rtol=1e-14)
    for function in (np.add, np.arctan2, np.power, np.maximum, np.true_divide, np.less):
        for args in ((x, a), (a, x), (x, x), (x, 2.0), (np.float64(2), x)):
            got = function(*args)
            assert isinstance(got, ts.Tensor)
            np.testing.assert_allclose(got.full_tensor(), function(*(a if one is x else one for one in args)), rtol=1e-14)
    assert (a - x).tolist() == [0] * 5 and (a < x).tolist() == [False] * 5 and (np.eye(5) @ x).tolist() == x.tolist()
    for call, said in ((lambda: np.add.at(x, [0], 1), "np.add.at does not take f64[5]"), (lambda: np.isnat(x), "np.isnat does not take"),
                       (lambda: np.exp(x, out=np.zeros(5)), "can't take f64[5]")):
        with pytest.raises(TypeError, match=re.escape(said)):
            call()


def test_in_place_ops_beside_lists_and_arrays_work_or_say_so(session, mesh4):
    x = session.distribute_tensor(np.arange(3.0), mesh4)
    array = np.ones(3)
    with pytest.raises(TypeError, match=re.escape("add: a NumPy array can't take f64[3] @ mesh(4) [R] in place; write array += x.full_tensor()")):
        array += x
    array += x.full_tensor()
    assert array.tolist() == [1, 2, 3]
    rows = [0]
    rows += x       # as NumPy has it: the list is an operand
    assert rows.tolist() == [0, 1, 2]
    y = +x
    y += array
    assert y.tolist() == [1, 3, 5] and x.tolist() == [0, 1, 2]
    y += [1, 2, 3]
    assert y.tolist() == [2, 5, 8] and ([1, 2, 3] + x).tolist() == [1, 3, 5]
    with pytest.raises(TypeError, match="Tensor"):
        y += ["a", "b", "c"]
