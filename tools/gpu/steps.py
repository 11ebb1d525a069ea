"""The steps of tools/gpu_test: what each runs, how long it may take, and what of the machine it needs."""

from __future__ import annotations

from typing import NamedTuple

# Bazel's outputs that are packed, under the same names.
PROGRAMS = (
    "client/cli/tessera",
    "server/coordinator/tessera-coordinator",
    "server/worker/tessera-worker",
    "tests/bench/gpu_bench",
    "tests/conformance/cuda_driver/driver_test",
    "tests/conformance/cuda_driver/products_test",
    "tests/conformance/device/cuda_device_test",
    "tests/conformance/device/cuda_dnn_test",
    "tests/conformance/device/cuda_host_steps_test",
    "tests/conformance/device/cuda_products_test",
    "tests/conformance/device/cuda_rows_test",
    "tests/conformance/device/cuda_solvers_test",
    "tests/conformance/device/cuda_transforms_test",
    "tests/conformance/device/kernels_on_device_test",
    "tests/conformance/device/matrices_on_device_test",
    "tests/conformance/device/products_on_device_test",
    "tests/conformance/transport/nccl_ranks_test",
)


# Seconds that the start of a cluster, or of a program's devices, may take beside a step's own time: contexts take seconds each where
# other processes make some, 10 to 25 s for four workers.
START_SECONDS = 30


class Step(NamedTuple):
    name: str                       # for --only
    title: str
    program: str                    # of PROGRAMS; "pytest" runs files of tests/python
    arguments: tuple[str, ...] = ()
    seconds: int = 120              # its work; more is a failure
    starts: int = 1                 # of clusters or devices, each with START_SECONDS of its own
    needs: str = ""                 # a library or a tool of the machine (machine.py): without it the step is left out
    environment: tuple[tuple[str, str], ...] = ()
    prints: bool = False            # what it says on stderr belongs to the results


    @property
    def most_seconds(self) -> int:
        return self.seconds + self.starts * START_SECONDS


def tests_of(name: str, title: str, file: str, seconds: int, starts: int) -> Step:
    """A file of tests/python with GPU workers. They share the one GPU, and none takes more than 256 MiB of it."""
    return Step(name, title, "pytest", (f"tests/python/{file}",), seconds, starts, environment=(("TESSERA_TEST_DEVICE", "cuda"),))


# Their cases are the CPU's, and take no GPU.
NOT_OF_THE_KERNELS = "-*Threads*:ReduceTerms*:StreamReduction.*"
DEVICE_TESTS = "tests/conformance/device"

# Two devices, each stream of which has a queue of its own.
WITH_QUEUES = (("CUDA_DEVICE_MAX_CONNECTIONS", "32"),)

# First what everything else would hang with.
STEPS = (
    Step("parked", "streams that stand still", f"{DEVICE_TESTS}/cuda_device_test",
         ("--gtest_filter=CudaDevice.AStreamOfMany*:CudaDevice.StreamsWait*:*AWaitHolds*",), 30, environment=WITH_QUEUES),
    Step("driver", "driver conformance", "tests/conformance/cuda_driver/driver_test"),
    Step("cublaslt", "cuBLASLt conformance", "tests/conformance/cuda_driver/products_test", needs="cuBLASLt"),
    Step("products", "products", f"{DEVICE_TESTS}/cuda_products_test", ("--gtest_filter=*Without*:*OfStreams*:CudaBiases.*-*Doesnt*:*AFailure*",)),
    Step("layouts", "products of every layout", f"{DEVICE_TESTS}/products_on_device_test",
         ("--gtest_filter=MatmulKernel.Agrees*:MatmulKernel.Empty*",), 240),
    Step("rows", "row programs", f"{DEVICE_TESTS}/cuda_rows_test", ("--gtest_filter=CudaRows.*:-*WithoutNvrtc*",), 60),
    # Each plan has the same bits each time, also where another process computes beside it.
    Step("dnn", "attentions and convolutions by cuDNN", f"{DEVICE_TESTS}/cuda_dnn_test", (), 120, needs="cuDNN", prints=True),
    Step("cufft", "Fourier transforms by cuFFT", f"{DEVICE_TESTS}/cuda_transforms_test", (), 60, needs="cuFFT", prints=True),
    Step("cusolver", "functions of matrices by cuSOLVER", f"{DEVICE_TESTS}/cuda_solvers_test", (), 60, needs="cuSOLVER", prints=True),
    Step("device", "device conformance", f"{DEVICE_TESTS}/cuda_device_test", ("--gtest_filter=*:-CudaDeviceHazards.*",)),
    Step("host_steps", "steps on the host", f"{DEVICE_TESTS}/cuda_host_steps_test", ("--gtest_filter=*:-Nvrtc/*Fails",)),
    Step("kernels", "kernels", f"{DEVICE_TESTS}/kernels_on_device_test", (f"--gtest_filter={NOT_OF_THE_KERNELS}",), 300),
    Step("matrices", "matrices and transforms", f"{DEVICE_TESTS}/matrices_on_device_test",
         ("--gtest_filter=Linalg.*:Fourier.*:-*Threads*",), 240),
    Step("doctor", "a cluster with a GPU worker", "client/cli/tessera", ("doctor", "--device", "cuda"), 60),
    # Ranks are processes that share the GPU, each a host of its own to NCCL: what it moves goes by sockets.
    Step("nccl2", "NCCL with 2 ranks", "tests/conformance/transport/nccl_ranks_test", ("--gtest_filter=*OnOneGpu/2",), needs="NCCL"),
    Step("nccl4", "NCCL with 4 ranks", "tests/conformance/transport/nccl_ranks_test", ("--gtest_filter=*OnOneGpu/4",), needs="NCCL"),
    tests_of("workers", "clusters of GPU workers", "test_gpu_workers.py", 180, starts=8),
    tests_of("redistribute", "redistribute", "test_redistribute_options.py", 150, starts=2),
    tests_of("meshes", "meshes", "test_meshes.py", 90, starts=2),
    tests_of("faults", "faults", "test_faults.py", 150, starts=10),
    tests_of("fft", "transforms", "test_fft.py", 90, starts=1),
    Step("figures", "figures, beside what the GPU does when it is asked directly", "tests/bench/gpu_bench", (), 180, needs="cuBLASLt", prints=True),
    Step("races", "compute-sanitizer: races", f"{DEVICE_TESTS}/kernels_on_device_test",
         ("--gtest_filter=ArgReduceKernel.*:ReduceKernel.N*",), 120, needs="compute-sanitizer --tool racecheck"),
    Step("memory", "compute-sanitizer: memory", f"{DEVICE_TESTS}/kernels_on_device_test",
         (f"--gtest_filter={NOT_OF_THE_KERNELS}:*Bits*:*Naive*",), 240, needs="compute-sanitizer --tool memcheck"),
)


def named(names: list[str]) -> list[Step]:
    """These steps, in the order in which they run; ValueError names what is no step."""
    unknown = [name for name in names if name not in {step.name for step in STEPS}]
    if unknown:
        raise ValueError(f"there is no step {', '.join(unknown)}; the steps are {', '.join(step.name for step in STEPS)}")
    return [step for step in STEPS if not names or step.name in names]
