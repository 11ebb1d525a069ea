"""Workers with a GPU: what is started, what is refused, and what they compute. On the emulated driver, or on the machine's own
(TESSERA_TEST_GPU=real), where several workers share one GPU."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import in_time
import tessera as ts
from conftest import EMULATED_DRIVER, REAL_GPU, TRANSPORT, use_emulated_driver
from test_processes import Up, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

WORKER = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin")) / "server/worker/tessera-worker"
BUILT_WITHOUT = "no emulated driver: the CUDA toolkit (nvcc) was not there when this was built"
needs_gpu = pytest.mark.skipif(not REAL_GPU and not (EMULATED_DRIVER / "libcuda.so.1").exists(), reason=BUILT_WITHOUT)


def needs_emulator(reason):
    """For tests whose driver does what no real one does when it is told to; `reason` says what."""
    if REAL_GPU:
        return pytest.mark.skip(reason=reason)
    return pytest.mark.skipif(not (EMULATED_DRIVER / "libcuda.so.1").exists(), reason=BUILT_WITHOUT)


fails_on_demand = needs_emulator("calls of a real driver don't fail on demand")


@pytest.fixture
def no_driver(monkeypatch):
    if REAL_GPU:
        pytest.skip("a real driver is found without LD_LIBRARY_PATH, too")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")


@pytest.fixture
def gpu(monkeypatch):
    if TRANSPORT != "shm":
        pytest.skip("these clusters have transports of their own, whatever the others' is")
    use_emulated_driver(monkeypatch.setenv)


def needs_library(library, variable):
    """On a real GPU, which may be there without NVIDIA's libraries."""
    opened = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    if REAL_GPU and subprocess.run([sys.executable, "-c", opened, os.environ.get(variable, library)], capture_output=True).returncode:
        pytest.skip(f"no {library} ({variable}=PATH)")


def needs_transport(transport):
    if "nccl" in transport:
        needs_library("libnccl.so.2", "TESSERA_NCCL")


def start_beside(up, index, transport=None, stderr=subprocess.DEVNULL, **environment):
    """A worker with a GPU in the cluster of `up`."""
    join = re.sub(r"--index=\d+", f"--index={index}", up.join.partition(": ")[2].replace("--device=cpu", "--device=cuda"))
    if transport:
        join = re.sub(r"--transport=\S+", f"--transport={transport}", join)
    return subprocess.Popen(["sh", "-c", f"exec env {join}"], stderr=stderr, text=True, env={**os.environ, **environment})


def test_the_worker_is_linked_with_no_library_of_cuda():
    linked = subprocess.run(["ldd", WORKER], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in linked
    for name in ("libcuda", "libcudart", "libcublas", "libnvrtc", "libnccl", "libnvidia"):
        assert name not in linked


def test_a_worker_without_a_driver_says_so_and_ends(no_driver):
    ended = subprocess.run([WORKER, "--coordinator", "unix:/nowhere", "--device", "cuda"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "libcuda.so.1" in ended.stderr


@in_time.tried_again
def test_a_cluster_without_a_driver_says_so_at_once(no_driver):
    with in_time.Limit(5), pytest.raises(ts.UnavailableError, match=r"libcuda\.so\.1"):
        ts.local_cluster(workers=1, memory="16MiB", device="cuda")


def test_a_gpu_is_not_named_for_a_worker_without_one():
    ended = subprocess.run([WORKER, "--coordinator", "unix:/nowhere", "--gpu", "0"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and "--gpu 0 is for workers with a GPU: --device cuda" in ended.stderr


@needs_emulator("counts GPUs as the emulated driver has them")
def test_a_gpu_that_is_not_there_is_named(gpu):
    ended = subprocess.run([WORKER, "--coordinator", "unix:/nowhere", "--device", "cuda", "--gpu", "99"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "cuda: no GPU 99: the driver counts 1, from 0 on" in ended.stderr


@needs_emulator("another library in place of the machine's")
@pytest.mark.parametrize("variable, library, said", [
    ("TESSERA_CUBLASLT", "/etc/passwd", "products are computed by the image's own kernels: no cuBLASLt: /etc/passwd: invalid ELF header"),
    ("TESSERA_CUBLASLT", "libm.so.6", "products are computed by the image's own kernels: no cuBLASLt: libm.so.6 has no cublasLtCreate"),
    ("TESSERA_CUDNN", "libm.so.6", "are computed by the image's own kernels: cuDNN has no cudnnGetVersion"),
    ("TESSERA_CUFFT", "libm.so.6", "Fourier transforms are computed on the host: cuFFT has no cufftCreate"),
    ("TESSERA_NVRTC", "/etc/passwd", "is computed on the host: maps: no NVRTC: /etc/passwd: invalid ELF header"),
    ("TESSERA_NVRTC", "libm.so.6", "is computed on the host: maps: no NVRTC: libm.so.6 has no nvrtcVersion")])
def test_a_library_that_is_another_thing_is_named_and_done_without(gpu, monkeypatch, new_cluster, variable, library, said):
    monkeypatch.setenv(variable, library)
    monkeypatch.setenv("TESSERA_COMMON_MAPS", "none")
    monkeypatch.setenv("TESSERA_CUDNN_LEAST", "0")
    cluster = new_cluster(workers=1, memory="16MiB", device="cuda")
    session = cluster.connect()
    a = np.arange(64.0).reshape(8, 8)
    x = session.distribute_tensor(a, session.init_device_mesh("cuda", (1,)))
    np.testing.assert_array_equal((x @ x).full_tensor(), a @ a)
    np.testing.assert_array_equal((x * 2 + 1).full_tensor(), a * 2 + 1)
    images = ts.astype(x, np.float32).reshape((1, 1, 8, 8))
    np.testing.assert_array_equal(ts.conv2d(images, images).full_tensor(), [[[[np.sum(a * a)]]]])
    np.testing.assert_allclose(ts.fft.fft(x).full_tensor(), np.fft.fft(a), atol=1e-9)
    assert said in cluster.log_tail(0)


def test_another_device_is_refused_by_name():
    with pytest.raises(ts.InvalidArgumentError, match="tpu"):
        ts.local_cluster(workers=1, memory="16MiB", device="tpu")


@needs_gpu
def test_the_figures_of_a_gpu_are_all_measured(gpu):
    """On the emulated driver, of small sizes: its times say nothing, but each is there."""
    needs_library("libcublasLt.so.13", "TESSERA_CUBLASLT")
    done = subprocess.run([WORKER.parents[2] / "tests/bench/gpu_bench", "--quick"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["figures"]
    assert list(figures) == ["matmul_bf16_32", "matmul_f32_16", "matmul_tf32_16", "linear_f32_16", "linear_tf32_16",
                             "chain_of_6_maps", "sum", "softmax", "layer_norm", "var_of_rows", "sum_of_rows", "sum_of_columns", "max",
                             "argmax_of_rows", "argmax_of_columns", "cumulative_sum_of_rows", "cumulative_sum_of_a_vector",
                             "gather_of_rows", "scatter_add_of_rows", "scatter_add_of_all_rows", "sort_of_a_vector", "argsort_of_a_vector", "topk_of_a_vector", "upload", "download",
                             "strided_copy_by_the_device", "transposing_copy_by_the_device", "tiny_op_of_the_device",
                             "tiny_op_of_the_device_host_time", "attention_bf16", "attention_bf16_causal", "attention_backward_bf16", "attention_backward_bf16_of_a_result",
                             "attention_backward_bf16_of_shared_keys", "conv_bf16", "conv_f32",
                             "conv_backward_x_bf16", "conv_backward_weight_bf16", "fft_of_a_vector", "fft_of_rows", "linalg_cholesky", "linalg_solve", "linalg_qr", "linalg_eigh",
                             "linalg_svd", "linalg_lu"]
    for name, figure in figures.items():
        assert 0 < figure["seconds"] <= figure["median_seconds"], (name, figure)
        assert isinstance(figure["reached"], bool) and f"{name} " in done.stderr
        has_no_limit = name.startswith(("tiny_op", "linalg"))
        assert ("goal_seconds" in figure) == has_no_limit and ("limit_seconds" in figure) != has_no_limit


@needs_gpu
def test_products_in_tf32_round_their_factors_and_no_others_do(gpu, new_cluster):
    needs_library("libcublasLt.so.13", "TESSERA_CUBLASLT")
    session = new_cluster(workers=2, memory="32MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (2,))
    factor, n = np.float32(1 + 2.0**-12), 256       # TF32 has 10 bits; a library may take all bits of a product that is tiny
    x, y = (session.distribute_tensor(np.full((n, n), value, np.float32), mesh, [ts.Shard(0)]) for value in (factor, 1))
    assert np.all((x @ y).full_tensor() == n * factor)
    assert np.all(ts.matmul(x, y, precision="tf32").full_tensor() == n)
    assert np.all(ts.einsum("mk,nk->mn", x, y, precision="tf32").full_tensor() == n)


def attention(q, k, v, is_causal):
    scores = np.einsum("...ld,...sd->...ls", q, k) / np.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("...ls,...sv->...lv", weights / weights.sum(-1, keepdims=True), v)


@needs_gpu
@pytest.mark.parametrize("is_there", [True, False])
def test_attentions_and_convolutions_are_cudnns_where_it_is(gpu, monkeypatch, new_cluster, rng, is_there):
    """Heads and rows are sharded, and images: each worker has calls of its own. The worker says where it does without."""
    if is_there:
        needs_library("libcudnn.so.9", "TESSERA_CUDNN")
    else:
        monkeypatch.setenv("TESSERA_CUDNN", "/nowhere/libcudnn.so.9")
    monkeypatch.setenv("TESSERA_CUDNN_LEAST", "0")
    cluster = new_cluster(workers=2, memory="32MiB", device="cuda")
    session = cluster.connect()
    mesh = session.init_device_mesh("cuda", (2,))
    arrays = [rng.standard_normal((2, 4, 48, 16)).astype(np.float16) for _ in range(3)]
    for placement in (ts.Shard(1), ts.Shard(2)):
        q, k, v = (session.distribute_tensor(a, mesh, [placement]) for a in arrays)
        for is_causal in (False, True):
            got = ts.scaled_dot_product_attention(q, k, v, is_causal=is_causal).full_tensor()
            np.testing.assert_allclose(got, attention(*(a.astype(np.float64) for a in arrays), is_causal), atol=2**-8)
    x, w = rng.standard_normal((4, 3, 8, 9)).astype(np.float32), rng.standard_normal((5, 3, 3, 3)).astype(np.float32)
    images = session.distribute_tensor(x, mesh, [ts.Shard(0)])
    by = session.distribute_tensor(w, mesh, [ts.Replicate()])
    padded = np.lib.stride_tricks.sliding_window_view(np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3))
    got = ts.conv2d(images, by, padding=1).full_tensor()
    np.testing.assert_allclose(got, np.einsum("nchwij,ocij->nohw", padded, w.astype(np.float64)), atol=1e-4)
    said = "attentions and convolutions are computed by the image's own kernels: no libcudnn.so.9: /nowhere/libcudnn.so.9"
    assert all((said in cluster.log_tail(worker)) != is_there for worker in range(2))


@needs_gpu
@pytest.mark.parametrize("is_there", [True, False])
def test_transforms_are_cuffts_where_it_is(gpu, monkeypatch, new_cluster, rng, is_there):
    """Lines are sharded, and columns: each worker has plans of its own. The worker says where its host computes."""
    if is_there:
        needs_library("libcufft.so.12", "TESSERA_CUFFT")
    else:
        monkeypatch.setenv("TESSERA_CUFFT", "/nowhere/libcufft.so.12")
    cluster = new_cluster(workers=2, memory="32MiB", device="cuda")
    session = cluster.connect()
    mesh = session.init_device_mesh("cuda", (2,))
    a = rng.standard_normal((6, 10, 8)).astype(np.float32)
    x = session.distribute_tensor(a, mesh, [ts.Shard(0)])
    for axis in range(3):
        np.testing.assert_allclose(ts.fft.fft(x, axis=axis).full_tensor(), np.fft.fft(a, axis=axis), atol=1e-4)
        half = ts.fft.rfft(x, axis=axis, norm="ortho")
        np.testing.assert_allclose(half.full_tensor(), np.fft.rfft(a, axis=axis, norm="ortho"), atol=1e-4)
        np.testing.assert_allclose(ts.fft.irfft(half, axis=axis, norm="ortho").full_tensor(), a, atol=1e-4)
    np.testing.assert_allclose(ts.fft.fftn(x).full_tensor(), np.fft.fftn(a), atol=1e-3)
    steps = ts.explain(lambda x: ts.fft.fft(x, axis=2), x).steps
    assert [step.endswith(", by cuFFT where it is, else on the host") for step in steps] == ["fourier" in step for step in steps]
    said = "Fourier transforms are computed on the host: no libcufft.so.12: /nowhere/libcufft.so.12"
    assert all((said in cluster.log_tail(worker)) != is_there for worker in range(2))


@needs_gpu
@pytest.mark.parametrize("is_there", [True, False])
def test_functions_of_matrices_are_cusolvers_where_it_is(gpu, monkeypatch, new_cluster, rng, is_there):
    """Matrices of a batch are sharded. The worker says where its host computes."""
    if is_there:
        needs_library("libcusolver.so.12", "TESSERA_CUSOLVER")
        needs_library("libcublas.so.13", "TESSERA_CUBLAS")
    else:
        monkeypatch.setenv("TESSERA_CUSOLVER", "/nowhere/libcusolver.so.12")
    monkeypatch.setenv("TESSERA_CUSOLVER_LEAST", "0")
    cluster = new_cluster(workers=2, memory="32MiB", device="cuda")
    session = cluster.connect()
    mesh = session.init_device_mesh("cuda", (2,))
    a = rng.standard_normal((4, 6, 6))
    a = a @ a.swapaxes(1, 2) + np.eye(6)
    b = rng.standard_normal((4, 6, 3))
    x, y = (session.distribute_tensor(array, mesh, [ts.Shard(0)]) for array in (a, b))
    np.testing.assert_allclose(ts.linalg.cholesky(x).full_tensor(), np.linalg.cholesky(a), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ts.linalg.solve(x, y).full_tensor(), np.linalg.solve(a, b), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ts.linalg.inv(x).full_tensor(), np.linalg.inv(a), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(ts.linalg.eigvalsh(x).full_tensor(), np.linalg.eigvalsh(a), rtol=1e-9, atol=1e-9)
    q, r = (part.full_tensor() for part in ts.linalg.qr(y))
    np.testing.assert_allclose(q @ r, b, atol=1e-9)
    with pytest.raises(ts.LinAlgError, match="cholesky: not positive definite"):
        ts.linalg.cholesky(x * -1).wait()
    with pytest.raises(ts.LinAlgError, match="solve: singular matrix"):
        ts.linalg.solve(x * 0, y).wait()
    said = "functions of matrices are computed on the host: no libcusolver.so.12: /nowhere/libcusolver.so.12"
    assert all((said in cluster.log_tail(worker)) != is_there for worker in range(2))


@needs_emulator("an NVRTC that compiles nothing")
def test_a_layer_is_one_call_with_its_bias(gpu, monkeypatch, new_cluster, rng):
    """A map of its own the worker would have its host compute, and say so: it has an NVRTC that compiles nothing."""
    monkeypatch.setenv("TESSERA_NVRTC", str(EMULATED_DRIVER / "libnvrtc_that_fails.so"))
    monkeypatch.setenv("TESSERA_COMMON_MAPS", "none")
    x, w, b = (rng.integers(-9, 9, size).astype(np.float32) for size in ((6, 10), (8, 10), (8,)))
    for left in reversed(range(3)):
        cluster = new_cluster(workers=1, memory="16MiB", device="cuda")
        session = cluster.connect()
        mesh = session.init_device_mesh("cuda", (1,))
        own = [session.distribute_tensor(values, mesh, [ts.Replicate()]).wait() for values in (x, w, b)]
        np.testing.assert_array_equal(ts.linear(*own).full_tensor(), x @ w.T + b)
        if "is computed on the host" not in cluster.log_tail(0):
            break
        # The product may be under way before the worker has what follows it.
        assert left > 0, cluster.log_tail(0)
    product = ts.matmul(own[0], own[1].T)           # somebody may read it
    np.testing.assert_array_equal((product + own[2]).full_tensor(), x @ w.T + b)
    assert "is computed on the host" in cluster.log_tail(0)
    np.testing.assert_array_equal(product.full_tensor(), x @ w.T)


@needs_gpu
@pytest.mark.parametrize("size", [(35, 22), (900, 700)])
def test_shards_move_between_gpus_in_messages(gpu, new_cluster, rng, size):
    session = new_cluster(workers=3, memory="32MiB", device="cuda", transport="ucx").connect()
    mesh = session.init_device_mesh("cuda", (3,))
    values = rng.random(size, dtype=np.float32)
    rows = session.distribute_tensor(values, mesh, [ts.Shard(0)])
    plan = rows.explain_redistribute([ts.Shard(1)])
    with session.comm_debug() as comm:
        columns = rows.redistribute(placements=[ts.Shard(1)])
    np.testing.assert_array_equal(columns.full_tensor(), values)
    assert comm.bytes_received == plan.bytes_received and sum(comm.bytes_received) > 0
    np.testing.assert_array_equal(columns.redistribute(placements=[ts.Replicate()]).to_local(2), values)
    few = rows[:, :4]
    total = (few.T @ few).redistribute(placements=[ts.Replicate()])
    np.testing.assert_allclose(total.full_tensor(), values[:, :4].T @ values[:, :4], rtol=1e-4)


@needs_gpu
@pytest.mark.parametrize("transport", ["shm+ucx", "shm+tls", "tls"])
def test_gpus_of_several_hosts_work_together(gpu, rng, transport):
    values = rng.integers(-9, 9, (50, 30)).astype(np.float32)
    with two_hosts.Cluster(two_hosts.named_hosts(2), workers=(2, 1), memory="16MiB", transport=transport,
                           worker_options=["--device", "cuda"]) as cluster, ts.connect(cluster.address) as session:
        x = session.distribute_tensor(values, session.init_device_mesh("cuda", (3,)), [ts.Shard(0)])
        plan = x.explain_redistribute([ts.Shard(1)])
        with session.comm_debug() as comm:
            y = x.redistribute([ts.Shard(1)]).wait()
        assert comm.bytes_received == plan.bytes_received
        np.testing.assert_array_equal(y.full_tensor(), values)
        np.testing.assert_array_equal((y @ y.T).redistribute([ts.Replicate()]).to_local(2), values @ values.T)


@needs_gpu
def test_a_mesh_says_what_its_workers_are(gpu, new_cluster):
    session = new_cluster(workers=2, memory="16MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (2,))
    assert mesh.device_type == "cuda"
    assert session.default_mesh.device_type == "cuda"
    with pytest.raises(ts.InvalidArgumentError, match="has 0 cpu workers"):
        session.init_device_mesh("cpu", (2,))


@needs_emulator("a real GPU has the memory that it has")
def test_workers_without_a_word_of_memory_share_their_gpu(gpu, monkeypatch):
    monkeypatch.setenv("TESSERA_EMULATOR_MEMORY", str(1 << 30))
    with ts.local_cluster(workers=2, device="cuda") as cluster, cluster.connect() as session:
        # An eighth of 512 MiB stays free.
        assert [worker["memory_bytes"] for worker in session.status()["workers"]] == [448 << 20] * 2
        values = np.arange(1000.0)
        x = session.distribute_tensor(values, session.default_mesh, [ts.Shard(0)])
        np.testing.assert_array_equal((x + x).full_tensor(), values * 2)


@needs_gpu
def test_shards_move_between_gpus_and_what_moves_is_what_was_planned(gpu, new_cluster):
    session = new_cluster(workers=3, memory="16MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (3,))
    values = np.arange(35 * 22, dtype=np.float32).reshape(35, 22)
    rows = session.distribute_tensor(values, mesh, [ts.Shard(0)])
    plan = rows.explain_redistribute([ts.Shard(1)])
    with session.comm_debug() as comm:
        columns = rows.redistribute(placements=[ts.Shard(1)])
    np.testing.assert_array_equal(columns.full_tensor(), values)
    assert comm.bytes_received == plan.bytes_received and sum(comm.bytes_received) > 0
    with session.comm_debug() as comm:
        whole = columns.redistribute(placements=[ts.Replicate()])
    np.testing.assert_array_equal(whole.to_local(2), values)


@needs_gpu
def test_workers_of_both_kinds_are_in_one_cluster_and_never_in_one_mesh(gpu):
    with Up("--workers", "1") as up, ts.connect(up.address) as session:
        other = start_beside(up, 1)
        try:
            wait_until(lambda: [worker["device"] for worker in session.status()["workers"]] == ["cpu", "cuda"])
            wait_until(lambda: session.worker_count == 2)
            for kind, worker in (("cpu", 0), ("cuda", 1)):
                mesh = session.init_device_mesh(kind, (1,))
                assert (mesh.workers, mesh.device_type) == ((worker,), kind)
                x = session.distribute_tensor(np.arange(6.0), mesh)
                np.testing.assert_array_equal(x.full_tensor(), np.arange(6.0))
            with pytest.raises(ts.InvalidArgumentError, match=r"mesh\(2\) has 2 positions, the cluster has 1 cpu workers"):
                session.init_device_mesh((2,))
            with pytest.raises(ts.InvalidArgumentError, match="worker 0 of .* is cpu and worker 1 is cuda; a mesh has workers of one kind"):
                session.init_device_mesh((2,), workers=(0, 1))
            with pytest.raises(ts.InvalidArgumentError, match='device type is "cpu", the workers of .* are cuda'):
                session.init_device_mesh("cpu", (1,), workers=(1,))
            with pytest.raises(ts.InvalidArgumentError, match="from one kind of device to another in messages, and worker 0 has none"):
                x.to_device(session.init_device_mesh("cpu", (1,))).wait()
        finally:
            other.terminate()
            assert other.wait(60) == 0


@needs_gpu
@pytest.mark.parametrize("size", [(35, 22), (900, 700)])
def test_shards_move_between_gpus_by_nccl_and_the_plan_says_so(gpu, new_cluster, rng, size):
    needs_transport("nccl")
    session = new_cluster(workers=3, memory="32MiB", device="cuda", transport="nccl").connect()
    mesh = session.init_device_mesh("cuda", (3,))
    values = rng.random(size, dtype=np.float32)
    rows = session.distribute_tensor(values, mesh, [ts.Shard(0)])
    for placement in (ts.Shard(1), ts.Replicate()):
        plan = rows.explain_redistribute([placement])
        is_call = placement == ts.Replicate() and size[0] % 3 == 0
        assert [step.split(", ")[-1] for step in plan.steps] == ["by NCCL's AllGather" if is_call else "by NCCL"]
        with session.comm_debug() as comm:
            moved = rows.redistribute([placement]).wait()
        assert comm.bytes_received == plan.bytes_received
        np.testing.assert_array_equal(moved.full_tensor(), values)
    assert not any("NCCL" in step for step in ts.explain(lambda x: x * 2, rows).steps)


@needs_gpu
def test_sums_of_integers_are_calls_of_nccl_and_those_of_floats_are_not(gpu, new_cluster, rng):
    needs_transport("nccl")
    session = new_cluster(workers=3, memory="64MiB", device="cuda", transport="nccl").connect()
    mesh = session.init_device_mesh("cuda", (3,))
    values = rng.integers(-(2**62), 2**62, (3, 120_000))
    for dtype, calls in ((np.int64, ["ReduceScatter", "AllGather"]), (np.float64, [None, "AllGather"])):
        terms = session.distribute_tensor(values.astype(dtype), mesh, [ts.Shard(0)])
        pending = terms.sum(axis=0)
        assert pending.placements == (ts.Partial(),)
        plan = pending.explain_redistribute([ts.Replicate()])
        assert [step.split(", ")[-1] for step in plan.steps] == ["by NCCL" + (f"'s {call}" if call else "") for call in calls]
        with session.comm_debug() as comm:
            total = pending.redistribute([ts.Replicate()]).wait()
        assert comm.bytes_received == plan.bytes_received
        want = values.astype(dtype)
        np.testing.assert_array_equal(total.full_tensor(), want[0] + want[1] + want[2])


@needs_gpu
@pytest.mark.parametrize("transport", ["ucx", "nccl"])
def test_bytes_go_between_meshes_of_both_kinds_in_messages(gpu, rng, transport):
    needs_transport(transport)
    with Up("--workers", "2", "--transport", "ucx") as up, ts.connect(up.address) as session:
        others = [start_beside(up, index, transport) for index in (2, 3)]
        try:
            wait_until(lambda: session.worker_count == 4)
            host, gpus = session.init_device_mesh("cpu", (2,)), session.init_device_mesh("cuda", (2,))
            values = rng.random((300, 70))
            x = session.distribute_tensor(values, host, [ts.Shard(0)])
            plan = x.explain_redistribute(device_mesh=gpus, placements=[ts.Shard(1)])
            with session.comm_debug() as comm:
                there = x.redistribute(gpus, [ts.Shard(1)])
            np.testing.assert_array_equal(there.full_tensor(), values)
            assert there.device_mesh.device_type == "cuda"
            assert sum(comm.bytes_received) == sum(plan.bytes_received) == values.nbytes
            back = (there * 2).redistribute(host, [ts.Replicate()])
            np.testing.assert_array_equal(back.to_local(1), values * 2)
            assert [step.endswith(", by NCCL") for step in there.explain_redistribute([ts.Shard(0)]).steps] == [transport == "nccl"]
            np.testing.assert_array_equal(there.redistribute([ts.Shard(0)]).full_tensor(), values)
            pending = there.sum(axis=1)
            assert pending.placements == (ts.Partial(),)
            np.testing.assert_allclose(pending.redistribute(host, [ts.Shard(0)]).full_tensor(), values.sum(axis=1), rtol=1e-13)
            with pytest.raises(ts.InvalidArgumentError, match="add: .*mesh"):
                (x + there).wait()
        finally:
            for other in others:
                other.terminate()
            assert [other.wait(60) for other in others] == [0, 0]


@needs_gpu
def test_workers_of_both_kinds_on_one_host_map_their_own_kind_and_send_to_the_other(gpu, rng):
    values = rng.random((300, 70))
    with two_hosts.Cluster(two_hosts.named_hosts(1), workers=(2,), memory="16MiB") as cluster, ts.connect(cluster.address) as session:
        command = [WORKER, "--coordinator", cluster.address.partition("#")[0], "--memory", "16MiB", "--transport", "shm+ucx",
                   "--trusted-network", "--net-devices", "lo", "--socket-dir", cluster.folder, "--host-id", "host 0", "--device", "cuda"]
        others = [subprocess.Popen([*command, "--index", str(index)], stderr=subprocess.DEVNULL,
                                   env={**os.environ, "TESSERA_JOIN_TOKEN": cluster.join_token}) for index in (2, 3)]
        try:
            wait_until(lambda: session.worker_count == 4)
            host, gpus = session.init_device_mesh("cpu", (2,)), session.init_device_mesh("cuda", (2,))
            x = session.distribute_tensor(values, host, [ts.Shard(0)])
            there = x.redistribute(gpus, [ts.Replicate()])
            np.testing.assert_array_equal(there.to_local(1), values)
            split = x.redistribute(gpus, [ts.Shard(1)]) * 2
            moved = split.redistribute([ts.Shard(0)])
            np.testing.assert_array_equal(moved.redistribute(host, [ts.Shard(1)]).full_tensor(), values * 2)
        finally:
            for other in others:
                other.terminate()
            assert [other.wait(60) for other in others] == [0, 0]


@fails_on_demand
@pytest.mark.parametrize("failure, said", [("cuMemCreate:1:2", r"workspace: 33554432 bytes wanted, \d+ of \d+ free on the GPU"),
                                           ("cuMemCreate:2:2", r"arena: 16777216 bytes wanted, \d+ of \d+ free on the GPU"),
                                           ("cuInit:1:803", r"cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH \(803\) \(libcuda\.so\.1\)"),
                                           ("cuDevicePrimaryCtxRetain:1:100", r"cuDevicePrimaryCtxRetain: CUDA_ERROR_NO_DEVICE \(100\)"),
                                           ("cuLibraryLoadData:1:209", r"CUDA_ERROR_NO_BINARY_FOR_GPU \(209\), of the kernels"),
                                           ("cuFuncLoad:3:2", r"cuFuncLoad: CUDA_ERROR_OUT_OF_MEMORY \(2\)"),
                                           ("cuLibraryLoadData:3:222", r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION \(222\), of the kernels "
                                                                       r"\"\w+\": they are of CUDA \d+\.\d, and the driver is for CUDA 12\.4"),
                                           ("cuStreamCreate:2:2", r"cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY \(2\)"),
                                           ("cuMemHostAlloc:1:2", r"cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY \(2\)"),
                                           ("cuMemHostRegister:1:2", r"cuMemHostRegister of the own counters: CUDA_ERROR_OUT_OF_MEMORY")])
def test_a_worker_that_cant_start_says_which_call_failed(gpu, monkeypatch, failure, said):
    monkeypatch.setenv("TESSERA_EMULATOR_FAIL", failure)
    monkeypatch.setenv("TESSERA_EMULATOR_VERSION", "12040")
    with pytest.raises(ts.TesseraError, match=said):
        ts.local_cluster(workers=1, memory="16MiB", device="cuda")


@needs_emulator("calls of a real NCCL don't fail on demand")
def test_a_worker_that_cant_have_nccl_says_so_as_it_starts(gpu, monkeypatch):
    monkeypatch.setenv("TESSERA_NCCL_FAIL", "ncclCommInitRankConfig:1")
    with pytest.raises(ts.TesseraError, match="ncclCommInitRankConfig"):
        ts.local_cluster(workers=1, memory="16MiB", device="cuda", transport="nccl")


def test_a_driver_that_is_too_old_is_named_with_what_it_lacks(monkeypatch):
    if not (EMULATED_DRIVER / "old_driver/libcuda.so.1").exists():
        pytest.skip("no driver to test with was built")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(EMULATED_DRIVER / "old_driver"))
    with pytest.raises(ts.UnavailableError, match=r"libcuda\.so\.1 has no cuLibraryLoadData: a driver for CUDA 12\.4|without the CUDA toolkit"):
        ts.local_cluster(workers=1, memory="16MiB", device="cuda")


@fails_on_demand
@pytest.mark.parametrize("failure, said", [("cuStreamQuery:1:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),  # asked when nothing seems to move
                                           ("cuLaunchKernel:3:719", "CUDA_ERROR_LAUNCH_FAILED (719)"),
                                           ("cuMemcpyAsync:2:700", "CUDA_ERROR_ILLEGAL_ADDRESS (700)"),
                                           ("cuStreamBatchMemOp:2:719", "CUDA_ERROR_LAUNCH_FAILED (719)")])
def test_a_gpu_that_is_lost_takes_its_worker_along_and_nobody_else(gpu, failure, said):
    with Up("--workers", "1") as up, ts.connect(up.address) as session:
        other = start_beside(up, 1, stderr=subprocess.PIPE, TESSERA_EMULATOR_FAIL=failure)
        wait_until(lambda: session.worker_count == 2)
        mesh = session.init_device_mesh("cuda", (1,))
        with pytest.raises(ts.UnavailableError, match="worker 1"):
            for _ in range(20):
                a = session.distribute_tensor(np.ones((160, 160), np.float32), mesh)
                # The sort is of those kernels that take their time on the emulated driver.
                float((ts.linalg.inv(a[:9, :9] + 9 * ts.eye(9, device_mesh=mesh)) @ a[:9] @ a).sum() + ts.sort(a.flatten()).sum())
        assert other.wait(60) == 1
        assert f"the GPU is lost: {said}" in other.stderr.read()
        assert float(ts.ones((4,), device_mesh=session.init_device_mesh("cpu", (1,))).sum()) == 4


@needs_gpu
@pytest.mark.parametrize("transport", ["shm", "ucx", "nccl"])
def test_a_gpu_worker_that_is_killed_in_the_middle_of_a_phase_holds_up_nobody(gpu, new_cluster, transport):
    needs_transport(transport)
    session = new_cluster(workers=3, memory="16MiB", device="cuda", transport=transport).connect()
    values = np.arange(90.0 * 60).reshape(90, 60)
    x = session.distribute_tensor(values, session.init_device_mesh("cuda", (3,)), [ts.Shard(0)]).wait()
    rest = session.init_device_mesh("cuda", (2,), workers=(0, 1))
    y = session.distribute_tensor(values, rest, [ts.Shard(0)]).wait()
    worker = session.status()["workers"][2]["pid"]
    os.kill(worker, signal.SIGSTOP)                                         # the others stand in this phase, on their GPUs
    moved = [x.redistribute([ts.Shard(1)]) for _ in range(3)]
    behind = y.redistribute([ts.Shard(1)])
    time.sleep(0.3)
    os.kill(worker, signal.SIGKILL)
    for each in moved:
        with pytest.raises(ts.UnavailableError, match=r"worker 2(:| was lost)"):     # its peers or the coordinator may see it first
            each.wait(60)
    np.testing.assert_array_equal((behind * 2).full_tensor(), values * 2)
    np.testing.assert_array_equal((y + 1).redistribute([ts.Replicate()]).to_local(1), values + 1)


@fails_on_demand
def test_a_failed_launch_is_an_error_of_that_op_alone(gpu, monkeypatch, new_cluster):
    monkeypatch.setenv("TESSERA_EMULATOR_FAIL", "cuLaunchKernel:2:1")
    session = new_cluster(workers=1, memory="16MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (1,))
    outcomes = []
    for _ in range(3):
        try:
            outcomes.append(float(ts.ones((4, 3), device_mesh=mesh).sum()))
        except ts.TesseraError as error:
            outcomes.append(str(error))
    assert sum(outcome == 12 for outcome in outcomes) == 2
    assert any("cuLaunchKernel" in str(outcome) and "CUDA_ERROR_INVALID_VALUE (1)" in str(outcome) for outcome in outcomes)


@needs_gpu
def test_maps_reductions_and_products_are_those_of_cpu_workers(gpu, new_cluster, rng):
    session = new_cluster(workers=2, memory="16MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (2,))
    a, b = rng.integers(-9, 9, (12, 10)).astype(np.float32), rng.integers(-9, 9, (10, 6)).astype(np.float32)
    x = session.distribute_tensor(a, mesh, [ts.Shard(0)])
    y = session.distribute_tensor(b, mesh, [ts.Replicate()])
    np.testing.assert_array_equal((x * 2 + 1).full_tensor(), a * 2 + 1)
    np.testing.assert_array_equal((x @ y).full_tensor(), a @ b)
    assert float(x.sum() + 10) == a.sum() + 10
    np.testing.assert_array_equal(x.max(axis=0).full_tensor(), a.max(axis=0))


@needs_gpu
def test_what_has_no_kernel_for_a_gpu_is_computed_by_its_host(gpu, new_cluster, rng):
    session = new_cluster(workers=2, memory="16MiB", device="cuda").connect()
    mesh = session.init_device_mesh("cuda", (2,))
    a = rng.random((6, 5, 5)) + 5 * np.eye(5)
    x = session.distribute_tensor(a, mesh, [ts.Shard(0)])
    np.testing.assert_allclose((ts.linalg.inv(x * 2) + 1).full_tensor(), np.linalg.inv(a * 2) + 1, rtol=1e-12)
    np.testing.assert_allclose(ts.fft.fft(x, axis=1).full_tensor(), np.fft.fft(a, axis=1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ts.exp(x * 1j).full_tensor(), np.exp(a * 1j), rtol=1e-12)
    for function, who in ((ts.linalg.inv, ", by cuSOLVER where it is, else on the host"), (ts.linalg.eigvals, ", on the host")):
        steps = ts.explain(lambda x, function=function: function(x * 2), x).steps
        assert [step.endswith(who) for step in steps] == ["linalg" in step for step in steps]
        assert any("linalg" in step for step in steps)
    with pytest.raises(ts.LinAlgError, match="cholesky: not positive definite"):
        ts.linalg.cholesky(x * -1).wait()
    assert float(x.sum()) == pytest.approx(a.sum())


@needs_emulator("a real NVRTC compiles")
def test_maps_that_nvrtc_doesnt_compile_are_computed_by_the_host(gpu, rng):
    with Up("--workers", "1") as up, ts.connect(up.address) as session:
        worker = start_beside(up, 1, stderr=subprocess.PIPE, TESSERA_NVRTC=str(EMULATED_DRIVER / "libnvrtc_that_fails.so"),
                              TESSERA_COMMON_MAPS="none")
        wait_until(lambda: session.worker_count == 2)
        a = rng.random((7, 3))
        x = session.distribute_tensor(a, session.init_device_mesh("cuda", (1,)))
        np.testing.assert_array_equal((x * 2 + 1).full_tensor(), a * 2 + 1)
        np.testing.assert_array_equal((x * x).max(axis=0).full_tensor(), (a * a).max(axis=0))
        worker.terminate()
        assert worker.wait(60) == 0
        said = worker.stderr.read()
        assert said.count("is computed on the host: maps: NVRTC 0.0: NVRTC_ERROR_COMPILATION this NVRTC compiles nothing") == 1


@needs_gpu
def test_norms_are_row_programs_with_the_bits_of_cpu_workers(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rng = np.random.default_rng(11)
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((600, 300), (300,), (300,)))

    def results(device):
        with ts.local_cluster(workers=2, memory="32MiB", device=device) as cluster:
            session = cluster.connect()
            mesh = session.init_device_mesh(device, (2,))
            rows = session.distribute_tensor(x, mesh, [ts.Shard(0)])
            of_columns = [session.distribute_tensor(each, mesh, [ts.Replicate()]) for each in (weight, bias)]
            return [y.full_tensor() for y in (ts.layer_norm(rows, *of_columns), ts.var(rows, axis=1), ts.rms_norm(rows, of_columns[0]))]

    on_gpus = results("cuda")
    for ours, theirs in zip(on_gpus, results("cpu"), strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
    np.testing.assert_allclose(on_gpus[1], x.var(axis=1), rtol=1e-4)
    assert list(tmp_path.glob("tessera/maps/rows_*"))
