"""Headers of files, as strangers write them: whatever they say, a tensor that lies in its file comes out, or an error that
names the file."""

import json
import struct
import types

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import _files
from tessera import decoder as beside

S = ts.Shard
MANY = settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NUMBERS = st.one_of(st.integers(-3, 300), st.sampled_from([2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -2**63, 10**30]))


def file_of(content: bytes, said=None):
    """An open file, without a worker."""
    file = _files._File.__new__(_files._File)
    file.path, file.op, file.bytes, file.modified_ns, file.head = "x.file", "load", len(content), 0, content
    file.files = types.SimpleNamespace(look=lambda path, offset, count: (len(content), 0, content[offset:offset + count]),
                                      describe=lambda path: (len(content), 0, said))
    file.session = types.SimpleNamespace(default_mesh=types.SimpleNamespace(workers=[0]))
    return file


def found_in(reader, file) -> dict:
    """By name, what it says is in the file; or nothing, where it is refused."""
    try:
        found = reader(file)
    except ts.InvalidArgumentError as error:
        assert "x.file" in str(error) and len(str(error)) < 2000
        return {}
    return found if isinstance(found, dict) else {"": found}


def check_inside(file, tensor) -> None:
    """All of its elements are bytes of the file."""
    assert all(n >= 0 for n in tensor.shape) and len(tensor.shape) == len(tensor._strides)
    if tensor.size:
        reach = [(n - 1) * s for n, s in zip(tensor.shape, tensor._strides)]
        first, last = tensor._offset + sum(r for r in reach if r < 0), tensor._offset + sum(r for r in reach if r > 0)
        assert 0 <= first and last + tensor.dtype.itemsize <= file.bytes


def npy(header: bytes, version=(1, 0), length=None) -> bytes:
    length = len(header) if length is None else length
    return b"\x93NUMPY" + bytes(version) + (struct.pack("<H", length & 0xFFFF) if version == (1, 0) else struct.pack("<I", length & 0xFFFFFFFF)) + header


def safetensors(header: bytes, length=None, behind=64) -> bytes:
    return ((len(header) if length is None else length) & (2**64 - 1)).to_bytes(8, "little") + header + bytes(behind)


WHOLE_NPY = npy(b"{'descr': '<f8', 'fortran_order': True, 'shape': (3, 2), }                  \n") + bytes(48)
WHOLE_SAFETENSORS = safetensors(json.dumps({"__metadata__": {"a": "b"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                                            "b": {"dtype": "I64", "shape": [5], "data_offsets": [24, 64]}}).encode())


@st.composite
def changed(draw, whole: bytes):
    """Cut, with bytes changed, put in and left out."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        what = draw(st.sampled_from(["cut", "byte", "in", "out"]))
        if what == "cut":
            del content[at:]
        elif what == "out":
            del content[at:at + draw(st.integers(1, 9))]
        elif what == "in":
            content[at:at] = draw(st.one_of(st.binary(max_size=9), st.sampled_from([b"99999999999999999999", b"(((", b"[[[", b"-", b"{", b'"x":', b"None"])))
        elif content:
            content[at] = draw(st.integers(0, 255))
    return bytes(content)


@MANY
@given(changed(WHOLE_NPY))
def test_a_npy_file_that_was_changed(content):
    file = file_of(content)
    for tensor in found_in(_files._npy, file).values():
        check_inside(file, tensor)


@MANY
@given(st.one_of(st.sampled_from(["<f8", ">i4", "|b1", "|u1", "<c16", "<f2", "<U3", "|O", "<M8[s]", "<f16", "", "x", "<f99"]),
                 st.text(max_size=4)), st.lists(NUMBERS, max_size=40), st.booleans(), st.sampled_from([(1, 0), (2, 0), (3, 0), (4, 0), (0, 0)]),
       st.one_of(st.none(), NUMBERS))
def test_a_npy_header_of_any_words(descr, shape, fortran, version, length):
    header = repr({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}).encode("utf-8", "replace")
    file = file_of(npy(header, version, length) + bytes(100))
    for tensor in found_in(_files._npy, file).values():
        check_inside(file, tensor)


@MANY
@given(changed(WHOLE_SAFETENSORS))
def test_a_safetensors_file_that_was_changed(content):
    file = file_of(content)
    for tensor in found_in(_files._safetensors, file).values():
        check_inside(file, tensor)


ANYTHING = st.recursive(st.one_of(st.none(), st.booleans(), NUMBERS, st.floats(), st.text(max_size=5)),
                        lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(st.text(max_size=3), below, max_size=3)), max_leaves=6)


@MANY
@given(st.dictionaries(st.text(max_size=3), st.fixed_dictionaries(
    {}, optional={"dtype": st.one_of(st.sampled_from(["F32", "BOOL", "C64", "F8_E4M3"]), ANYTHING), "shape": st.one_of(st.lists(NUMBERS, max_size=40), ANYTHING),
                  "data_offsets": st.one_of(st.lists(NUMBERS, min_size=2, max_size=2), ANYTHING)}), max_size=3), st.one_of(st.none(), NUMBERS))
def test_a_safetensors_header_of_any_words(header, length):
    file = file_of(safetensors(json.dumps(header).encode(), length))
    for tensor in found_in(_files._safetensors, file).values():
        check_inside(file, tensor)


@pytest.mark.parametrize("reader, content", [(_files._npy, WHOLE_NPY), (_files._safetensors, WHOLE_SAFETENSORS)])
def test_whole_ones_are_read_and_every_cut_is_refused(reader, content):
    assert found_in(reader, file_of(content))
    for size in range(len(content)):
        assert not found_in(reader, file_of(content[:size]))


@MANY
@given(st.one_of(ANYTHING, st.dictionaries(st.text(max_size=3), st.fixed_dictionaries(
    {}, optional={"dtype": st.one_of(st.sampled_from(["<f8", ">i4", "|b1", "|O", "V3"]), ANYTHING), "shape": st.one_of(st.lists(NUMBERS, max_size=40), ANYTHING),
                  "offset": st.one_of(NUMBERS, ANYTHING), "refused": ANYTHING, "member": ANYTHING}), max_size=3)), st.integers(0, 30))
def test_whatever_a_decoder_says(said, cut):
    """Any answer about the file is taken or refused by name; workers check it again when they read."""
    text = json.dumps(said).encode()
    found_in(_files._decoded, file_of(bytes(100), text[:len(text) - cut] if cut > 20 else text))


@MANY
@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from([1, 2, 8, 16]), NUMBERS, st.lists(NUMBERS, max_size=5), st.lists(NUMBERS, max_size=5))
def test_a_part_of_a_decoded_tensor_lies_in_it_or_is_refused(shape, item, offset, extents, strides):
    try:
        items = beside.slices_of(shape, item, offset, extents, strides)
    except beside.Refusal:
        return
    assert len(items) == len(shape)
    for n, (first, size, step) in zip(shape, items):
        if size > 0:
            assert 0 <= first < n and 0 <= first + (size - 1) * step < n


# ---- what libraries parse: the process beside the worker may end of it, and nothing else does -----------

@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with ts.local_cluster(1, memory="64MiB", files=folder) as cluster, cluster.connect():
        yield folder


@pytest.mark.parametrize("name", ["x.h5", "packed.h5", "x.parquet", "x.zarr"])
def test_what_libraries_read_may_be_anything(served, name):
    array = np.arange(60.0).reshape(30, 2)
    if name.endswith(".h5"):
        h5py = pytest.importorskip("h5py")
        with h5py.File(served / name, "w") as file:
            file.create_dataset("x", data=array, chunks=(7, 2) if name == "packed.h5" else None, compression="gzip" if name == "packed.h5" else None)
    else:
        pytest.importorskip({"x.parquet": "pyarrow", "x.zarr": "zarr"}[name])
        ts.save(served / name, {"x": ts.asarray(array)})
    victim = served / name if name != "x.zarr" else served / name / "x" / "zarr.json"
    whole = victim.read_bytes()
    np.testing.assert_array_equal(ts.load(name)["x"].full_tensor(), array)
    random, refused = np.random.default_rng(7), 0
    for _ in range(60):
        content = bytearray(whole)
        for at in random.integers(0, len(whole), size=random.integers(1, 20)):
            content[at] = random.integers(0, 256)
        victim.write_bytes(content[:random.integers(0, len(whole))] if random.random() < 0.2 else content)
        try:
            for tensor in ts.load(name).values():
                tensor.wait()
        except ts.TesseraError as error:
            refused += 1
            assert name in str(error)
    assert refused > 10
    victim.write_bytes(whole)
    np.testing.assert_array_equal(ts.load(name)["x"].full_tensor(), array)
