"""Packages: the wheels in environments that have nothing else, and the C++ client as services find it."""

import email
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
import zipfile

import pytest

import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from tls_cluster import TlsCluster  # noqa: E402

BIN = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin"))
SERVICE = ROOT / "examples/cpp_service"
# Libraries of the host, whatever is installed: the C and C++ libraries, and the loader.
HOST_LIBRARIES = r"(lib(c|m|mvec|stdc\+\+|gcc_s|pthread|dl|rt|util)|ld-linux-x86-64)\.so\.\d.*"
# Prints the libraries that a process has mapped from outside of this Python's environment.
OTHERS = """
import pathlib, re, sys
def mapped(process):
    return {line.split()[-1] for line in open(f"/proc/{process}/maps") if re.search(r"\\.so(\\.|$)", line.rstrip())}
def outside(process):
    return sorted(pathlib.Path(path).name for path in mapped(process) if not path.startswith(sys.prefix))
"""


def run(*command, cwd="/", **environment):
    """With this environment alone; what it prints."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def tool(name, *arguments):
    return [sys.executable, ROOT / "tools/packages" / f"{name}.py", *arguments]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both at once: auditwheel takes its time, on one core each."""
    folder = tmp_path_factory.mktemp("wheels")
    building = {kind: subprocess.Popen(tool("build_wheel", "--bin-dir", BIN, "--out", folder / kind, *flags), text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for kind, flags in (("thin", []), ("full", ["--full"]))}
    said = {kind: (*process.communicate(), process.returncode) for kind, process in building.items()}
    assert all(status == 0 for _, _, status in said.values()), said
    # The last line is the path and the size.
    paths = {kind: pathlib.Path(out.split()[-3]) for kind, (out, _, _) in said.items()}
    for kind, (out, _, _) in said.items():
        assert re.fullmatch(rf"{re.escape(str(paths[kind]))} \d+\.\d MiB\n", out)
    return paths


def install(wheel, folder):
    """A Python of its own that has the wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), PATH=os.environ["PATH"])
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "--disable-pip-version-check", "install", "--quiet"]
    listed = subprocess.run([*pip, "--retries=1", "--timeout=15", "-c", ROOT / "tools/requirements.txt", wheel],
                            capture_output=True, text=True)
    if listed.returncode:
        warnings.warn(f"no package index: NumPy and ml_dtypes are those of {sys.prefix}: {listed.stderr[-300:]}")
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
        packages = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
        for needed in ("numpy", "numpy.libs", "ml_dtypes"):
            shutil.copytree(pathlib.Path(sysconfig.get_path("purelib")) / needed, packages / needed)
    return str(folder / "bin/python")


@pytest.fixture(scope="module")
def thin_python(wheels, tmp_path_factory):
    return install(wheels["thin"], tmp_path_factory.mktemp("thin") / "venv")


@pytest.fixture(scope="module")
def full_python(wheels, tmp_path_factory):
    return install(wheels["full"], tmp_path_factory.mktemp("full") / "venv")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prefix")
    run(*tool("install_client", "--bin-dir", BIN, "--prefix", folder), PATH=os.environ["PATH"])
    return folder


@pytest.fixture(scope="module")
def address():
    """The address of a cluster of the checkout's programs."""
    with ts.local_cluster(workers=2, memory="64MiB") as cluster:
        yield cluster.address


def metadata_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


# ---- wheels ------------------------------------------------------------------------------------

OLDEST_GLIBC = tuple(map(int, re.search(r"glibc (\d+)\.(\d+) or later", (ROOT / "docs/install.md").read_text()).groups()))


@pytest.mark.parametrize("program", ["client/python/_tessera.so", "client/cli/tessera", "server/coordinator/tessera-coordinator",
                                     "server/worker/tessera-worker"])
def test_programs_need_no_newer_c_library_than_is_promised(program):
    """By the versions of its functions, which the loader looks at before anything runs."""
    needed = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", (BIN / program).read_bytes())}
    newer = sorted(version for version in needed if version > OLDEST_GLIBC)
    assert needed and not newer, f"{program} needs glibc {newer}; docs/install.md promises {OLDEST_GLIBC}"



def test_the_thin_wheel_is_the_client_with_its_libraries_and_their_licences(wheels):
    names = zipfile.ZipFile(wheels["thin"]).namelist()
    for needed in ("_tessera.so", "_tessera_ops.py", "_tessera_ops.pyi", "_tessera_python.py", "tessera/__init__.py", "tessera/torch/__init__.py"):
        assert needed in names
    libraries = " ".join(name for name in names if name.startswith("tessera.libs/"))
    for needed in ("capnp", "kj-async", "absl_status"):
        assert f"lib{needed}" in libraries
    # hwy is the client's, too: ranks add up in their own memory with the workers' kernels.
    servers = [name for name in names if re.search(r"/bin/|lib(uc[mpst]|openblas|numa|xxhash)|digits|__pycache__", name)]
    assert not servers
    assert any(re.search(r"licenses/libcapnp.*/copyright", name) for name in names)
    assert not [name for name in names if re.search(r"licenses/(libc6|libstdc)", name)]


def test_a_wheel_says_what_it_is_and_needs(wheels):
    header = (ROOT / "schemas/types/version.h").read_text()
    version = re.search(r'"([^"]+)";', header)[1]
    for kind, suffix in (("thin", ""), ("full", "+servers")):
        metadata = metadata_of(wheels[kind])
        assert (metadata["Name"], metadata["Version"]) == ("tessera", version + suffix)
        tag = re.fullmatch(rf"tessera-{version}{re.escape(suffix)}-cp\d+-cp\d+-manylinux_(\d+)_(\d+)_\w+\.whl", wheels[kind].name)
        assert tag and (int(tag[1]), int(tag[2])) <= OLDEST_GLIBC, wheels[kind].name
        required = {re.match(r"\w+", line)[0] for line in metadata.get_all("Requires-Dist") if "extra" not in line}
        assert required == {"numpy", "ml_dtypes"}
        extras = {re.match(r"\w+", line)[0]: line.split('"')[1] for line in metadata.get_all("Requires-Dist") if "extra" in line}
        assert extras == {"torch": "torch", "ipython": "notebook", "tqdm": "notebook", "h5py": "files", "pyarrow": "files", "zarr": "files"}


def test_the_thin_wheel_works_on_a_cluster_with_no_library_of_the_host(thin_python, address):
    script = OTHERS + f"""
import numpy as np, tessera as ts
session = ts.connect({address!r})
mesh = session.init_device_mesh((2,))
x = session.distribute_tensor(np.arange(12.0).reshape(4, 3), mesh, [ts.Shard(0)])
assert np.array_equal((x @ x.T).full_tensor(), np.arange(12.0).reshape(4, 3) @ np.arange(12.0).reshape(4, 3).T)
interpreter = {{pathlib.Path(path).name for path in mapped("self") if "lib-dynload" in path}}
print(ts.__version__, *(name for name in outside("self") if name not in interpreter))
"""
    version, *others = run(thin_python, "-c", script).split()
    assert version == ts.__version__
    # libpython's own aside, which NumPy loads through the interpreter's modules.
    tessera_s = [name for name in others if re.search(r"capnp|kj|absl|spdlog|fmt|uc[mpst]|blas", name)]
    assert not tessera_s, f"not of the wheel: {tessera_s}"


def test_the_thin_wheel_brings_and_fetches_bytes_over_tls(thin_python, tmp_path):
    """It reaches a server whose certificate it can check by the file alone; nothing of the host's OpenSSL is asked for."""
    with TlsCluster(workers=2) as cluster:
        script = OTHERS + f"""
import numpy as np, tessera as ts
x = np.random.default_rng(5).standard_normal((700, 900))
with ts.connect({cluster.address!r}, token={cluster.token!r}, ca={str(cluster.certificates / "ca.crt")!r}) as session:
    mesh = session.init_device_mesh((2,))
    for placements in ([ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]):
        d = session.distribute_tensor(x, mesh, placements)
        assert np.array_equal(d.full_tensor(), x)
    assert np.array_equal((d + 1).full_tensor(), x + 1)
    print(session.address)
try:
    ts.connect({cluster.address!r}, token={cluster.token!r})
except ts.UnauthenticatedError as error:
    print(error)
print(*[name for name in outside("self") if "ssl" in name or "kj" in name])   # libcrypto is hashlib's, too
"""
        address, refused, *others = run(thin_python, "-c", script, XDG_STATE_HOME=str(tmp_path)).splitlines()
    assert address == cluster.address and "certificate" in refused
    assert not others or others == [""], f"not of the wheel: {others}"


def test_the_thin_wheel_says_what_a_local_cluster_needs(thin_python):
    script = """
import tessera as ts
try:
    ts.local_cluster(workers=1, memory="16MiB")
except ts.NotFoundError as error:
    print(error)
"""
    said = run(thin_python, "-c", script)
    assert "tessera-coordinator" in said and "tools/wheel --full" in said and "TESSERA_BIN_DIR" in said


def test_the_thin_wheel_says_what_its_torch_needs(thin_python):
    assert "needs PyTorch" in run(thin_python, "-c", "try:\n  import tessera.torch\nexcept ImportError as error:\n  print(error)")
    done = subprocess.run([thin_python, "-m", "tessera.torch_device"], capture_output=True, text=True)
    assert done.returncode == 1 and "the extra 'torch'" in done.stderr


def test_the_full_wheel_runs_the_demo_without_a_checkout(full_python, tmp_path):
    report = json.loads(run(full_python, "-m", "tessera.demo", "--json", cwd=tmp_path))
    assert report["ok"] and len(report["checks"]) == 12


def test_the_servers_of_the_full_wheel_load_no_library_of_the_host(full_python, tmp_path):
    script = OTHERS + """
import numpy as np, tessera as ts
with ts.local_cluster(workers=2, memory="64MiB", transport="ucx") as cluster, cluster.connect() as session:
    x = session.distribute_tensor(np.ones((64, 64)), session.init_device_mesh((2,)), [ts.Shard(0)])
    assert (x @ x.T).full_tensor().sum() == 64 ** 3
    for process in (cluster.coordinator_pid, *cluster.worker_pids):
        print(*outside(process))
"""
    lines = run(full_python, "-c", script, cwd=tmp_path).splitlines()
    assert len(lines) == 3
    for line in lines:
        assert not [name for name in line.split() if not re.fullmatch(HOST_LIBRARIES, name)]


def test_the_full_wheel_has_a_ucx_that_takes_no_module_of_the_host(full_python, tmp_path):
    script = OTHERS + f"""
import os, subprocess, tessera as ts
programs = pathlib.Path(ts.__file__).parent / "bin"
address = "unix:{tmp_path}/c.sock"
os.environ.update(TESSERA_TOKEN="t", TESSERA_JOIN_TOKEN="j")
coordinator = subprocess.Popen([programs / "tessera-coordinator", f"--listen={{address}}"], stdout=subprocess.PIPE)
coordinator.stdout.readline()
worker = subprocess.Popen([programs / "tessera-worker", f"--coordinator={{address}}", "--memory=64MiB", "--index=0",
                           "--transport=ucx", "--trusted-network"])
try:
    with ts.connect(address, token="t") as session:
        while not session.status()["workers"]:
            assert worker.poll() is None
    print(*outside(worker.pid))
    print(*sorted(pathlib.Path(path).name for path in mapped(worker.pid)))
finally:
    worker.terminate()
    coordinator.terminate()
"""
    others, libraries = run(full_python, "-c", script, cwd=tmp_path).splitlines()
    assert not [name for name in others.split() if not re.fullmatch(HOST_LIBRARIES, name)]
    assert "libucp.so.0" in libraries and "libuct_cma.so.0" in libraries


def test_the_command_of_the_full_wheel_finds_its_python_and_its_servers(full_python, tmp_path):
    command = str(pathlib.Path(full_python).with_name("tessera"))
    assert run(command, "--version").strip() == f"tessera {ts.__version__}"
    assert "all_to_all" in run(command, "plan", "f32[8,8] @ mesh(2) [S(0)] -> [S(1)]")
    assert json.loads(run(command, "demo", "--json", cwd=tmp_path))["ok"]


def test_what_is_not_built_is_named(tmp_path):
    done = subprocess.run(tool("build_wheel", "--bin-dir", tmp_path, "--out", tmp_path / "out"), capture_output=True, text=True)
    assert done.returncode == 1 and "client/python/_tessera.so" in done.stderr and not (tmp_path / "out").exists()


def test_values_and_ops_include_no_header_of_one_system(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools/packages")
    import portable
    sources = [str(path.relative_to(ROOT)) for layer in ("types", "ops") for path in (ROOT / "schemas" / layer).rglob("*.cc")]
    assert len(sources) > 40
    assert not {source: header for source in sources if (header := portable.header_of_one_system(source))}
    # One that does, itself, and one by a header of ours.
    assert portable.header_of_one_system("client/host_memory.cc") == "fcntl.h"
    assert portable.header_of_one_system("schemas/host/loop_linger.cc") == "kj/async-unix.h through schemas/host/loop_linger.h"


# ---- the C++ client ----------------------------------------------------------------------------


def with_cmake(prefix, folder):
    run("cmake", "-S", SERVICE, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", PATH=os.environ["PATH"])
    run("cmake", "--build", folder, PATH=os.environ["PATH"])
    return folder / "cpp_service"


def with_pkg_config(prefix, folder):
    environment = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "tessera", **environment).split()
    libdir = run("pkg-config", "--variable=libdir", "tessera", **environment).strip()
    program = folder / "cpp_service"
    # With a folder `client` of the service's own on its path, and no warning from a header.
    own = folder / "own/client"
    own.mkdir(parents=True)
    (own / "session.h").write_text("#error this is the service's own client\n")
    warnings_on = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-Wno-maybe-uninitialized"]
    run("g++", "-std=c++20", f"-I{folder}/own", *warnings_on, SERVICE / "main.cc", "-o", program, *flags, f"-Wl,-rpath,{libdir}",
        PATH=os.environ["PATH"])
    return program


def in_bazel(_prefix, _folder):
    return BIN / "examples/cpp_service/cpp_service"


@pytest.mark.parametrize("build", [with_cmake, with_pkg_config, in_bazel])
def test_a_service_is_built_and_answers_with_callbacks_deadlines_and_counts(build, prefix, address, tmp_path):
    service = build(prefix, tmp_path)
    if build is not in_bazel:
        linked = run("ldd", service, PATH=os.environ["PATH"])
        assert re.search(rf"libtessera_client\.so\.{re.escape(ts.__version__)} => {prefix}/lib", re.sub(r"lib/pkgconfig/\.\./\.\./", "", linked))
    for arguments in [], [address]:     # a cluster of the installed programs, and one that is there
        done = subprocess.run([service, *arguments], env={"TESSERA_BIN_DIR": str(BIN)} if build is in_bazel else {}, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stderr
        counts = "tessera_client_requests 6\ntessera_client_deadlines_exceeded 1\n"
        answers = "".join(f"query {i}: row {200 * i}\n" for i in range(5))
        assert done.stdout.endswith(f"a request without time: DEADLINE_EXCEEDED\n{counts}{answers}")
        assert re.search(r"info: connected to unix:\S+\ninfo: the session has ended: session: it is closed\n\Z", done.stderr)


@pytest.mark.parametrize("header", ["session", "tensor", "catalog_ops", "values", "completion", "request", "cluster", "client_log"])
def test_an_older_standard_ends_with_one_line_that_says_so(header, prefix, tmp_path):
    (tmp_path / "main.cc").write_text(f'#include "tessera/client/{header}.h"\nint main() {{ return 0; }}\n')
    compile_it = ["g++", "-fsyntax-only", f"-I{prefix}/include", tmp_path / "main.cc"]
    old = subprocess.run([*compile_it, "-std=c++17"], capture_output=True, text=True)
    assert old.returncode != 0 and "C++20 or newer is needed: compile with -std=c++20" in old.stderr
    assert old.stderr.count("error: ") == 2 and len(old.stderr.splitlines()) < 20, old.stderr
    run(*compile_it, "-std=c++20", PATH=os.environ["PATH"])


def test_an_installed_header_includes_nothing_that_is_not_installed(prefix):
    folder = prefix / "include/tessera"
    headers = [path for path in folder.rglob("*") if path.is_file()]
    assert len(headers) > 10
    for header in headers:
        for name in re.findall(r'^#include "([^"]+)"', header.read_text(), re.MULTILINE):
            assert (folder.parent / name).exists() or name.startswith("absl/"), f"{header} includes {name}"
            assert name.startswith(("tessera/", "absl/")), f"{header} includes {name}, which may be the service's own"


def test_another_version_is_not_taken_by_find_package(prefix, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(other CXX)\nfind_package(tessera 9.9 REQUIRED)\n")
    done = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}"], capture_output=True, text=True)
    assert done.returncode != 0 and f"version: {ts.__version__}" in done.stderr
