"""The house rules, as a test: layers, sizes, banned calls, no leftover notes."""

import ast
import pathlib
import re
import subprocess

import lizard
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT,
                            capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()]


CXX = tracked("*.h", "*.cc", "*.cu")
PYTHON = tracked("*.py")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def includes(name):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', text(name), re.MULTILINE)


# ---- layers ------------------------------------------------------------------------------------

# Folder -> what it may include of ours, by prefix. The longest matching folder rules.
LAYERS = {
    "schemas/types": ["schemas/types"],
    "schemas/ops": ["schemas/types", "schemas/ops"],
    "schemas/codec": ["schemas/"],
    "schemas/host": ["schemas/"],
    "schemas/link": ["schemas/"],
    "server/plan": ["schemas/types", "schemas/ops", "server/plan"],
    "server/plan/rpc": ["schemas/", "server/plan"],
    "server/planner": ["schemas/types", "schemas/ops", "server/plan", "server/planner"],
    "server/process": ["schemas/", "server/process"],
    "server/coordinator": ["schemas/", "server/plan", "server/planner", "server/process", "server/coordinator"],
    "server/worker": ["schemas/", "server/plan", "server/process", "server/transport", "server/device", "server/worker", "kernels/kernel.h", "kernels/order_keys.h", "kernels/cpu/blas_core.h"],
    "server/transport": ["schemas/", "server/plan", "server/transport"],
    "server/transport/nccl": ["schemas/", "server/transport", "server/device/cuda"],
    "server/device": ["schemas/", "server/plan", "server/device", "kernels/joined_kernels.h", "kernels/kernel.h"],
    "server/device/cuda": ["schemas/", "server/device", "kernels/joined_kernels.h", "kernels/kernel.h", "kernels/cuda/"],
    "kernels": ["schemas/types", "schemas/ops", "kernels/"],
    "client": ["schemas/", "client/"],
    "client/rank_page": ["schemas/", "client/", "kernels/kernel.h"],
    "client/cli": ["schemas/", "client/", "server/plan/", "server/planner/"],
}

# Third-party headers and where alone they may be named.
OWNERS = {
    r"(kj|capnp)/|\.capnp\.h$": [r"/rpc/", r"^schemas/(codec|link|host)/", r"/main\.cc$", r"^client/connection/", r"^tests/"],
    r"^(ucp|ucs|uct)/": [r"^server/transport/ucx/", r"^tests/fuzz/ucx_"],
    r"^openssl/": [r"^client/cli/certificates", r"^schemas/link/(authority|certificate_units|openssl_pieces|pinned_server)", r"^server/transport/tls/", r"^server/coordinator/tenants/token_table", r"^tests/"],
    r"^nccl\.h$": [r"^server/transport/nccl/", r"^tests/emulator/cuda/nccl/"],
    r"^cuda\.h$": [r"^server/device/cuda/", r"^kernels/cuda/", r"^tests/emulator/cuda/"],
    r"^cuda_runtime": [],
    r"^nanobind/": [r"^client/python/"],
    r"^toml": [r"^server/coordinator/tenants/tenants_file", r"^server/process/config_file"],
    r"^cblas": [r"^kernels/cpu/", r"^tests/bench/"],
}


def rule_of(name):
    best = max((folder for folder in LAYERS if name.startswith(folder + "/")), key=len, default=None)
    return LAYERS.get(best)


@pytest.mark.parametrize("name", CXX)
def test_includes_stay_in_their_layer(name):
    allowed = rule_of(name)
    ours = [i for i in includes(name) if re.match(r"(schemas|server|client|kernels|tests)/", i)]
    if allowed is not None:
        outside = [i for i in ours if not any(i.startswith(prefix) for prefix in allowed)]
        assert not outside, f"{name} may include {allowed}, not {outside}"
    for pattern, owners in OWNERS.items():
        named = [i for i in includes(name) if re.search(pattern, i)]
        if named:
            assert any(re.search(owner, name) for owner in owners), f"{name} includes {named}; only {owners} may"


# ---- sizes -------------------------------------------------------------------------------------

# Files that may be longer, and why.
LONG_FILES = {}
# Functions that may be longer, and why.
LONG_FUNCTIONS = {}


@pytest.mark.parametrize("name", CXX + PYTHON)
def test_files_and_functions_are_short(name):
    lines = text(name).count("\n")
    limit = 800 if name.startswith("tests/") else 300 if name.endswith(".h") else 600
    assert lines <= LONG_FILES.get(name, limit), f"{name} has {lines} lines, the cap is {limit}"
    if name.startswith("tests/"):
        return
    for function in lizard.analyze_file.analyze_source_code(name, text(name)).function_list:
        length = function.end_line - function.start_line + 1
        assert length <= LONG_FUNCTIONS.get(f"{name}:{function.name}", 100), f"{name}: {function.name} has {length} lines"


# ---- words and calls ---------------------------------------------------------------------------

BANNED = {
    r"\b(TODO|FIXME|XXX|HACK)\b": "a note to self: do it or file it",
    r"\bstd::(rand|srand)\b|(?<![\w:])rand\(\)": "unseeded randomness",
    r"(?<![\w.])system\(": "a shell",
    r"\bsleep_for\(|\busleep\(|(?<!\w)sleep\(\d": "a sleep: wait for the thing itself",
    r"\.detach\(\)": "a thread that nobody joins",
    r"-lcuda\b": "libcuda is taken by cudaGetDriverEntryPointByVersion",
    r"\bstd::(map|unordered_map)<.*> g_": "a global registry",
    r"(?<![\w.:>])assert\(": "TESSERA_CHECK for our own guarantees, a status for what came from outside",
}
ALLOWED = {
    "tests/python/test_house_rules.py": ".*",
}


@pytest.mark.parametrize("name", [n for n in CXX + tracked("*.capnp", "*.bzl", "BUILD", "*/BUILD")])
def test_banned_words_and_calls(name):
    for number, line in enumerate(text(name).split("\n"), 1):
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        if "static_assert(" in code:
            continue
        for pattern, why in BANNED.items():
            if "sleep" in pattern and name.startswith("client/"):
                continue  # waiting for child processes to start and end
            assert not re.search(pattern, code), f"{name}:{number}: {line.strip()}: {why}"


def test_the_reference_finds_out_by_itself_what_moves():
    for name in tracked("server/plan/reference/*.h", "server/plan/reference/*.cc"):
        named = re.findall(r"\bPieces\b|ForReceiver|ForSender|exchange_tables|exchange_rounds|host_sums|shared_line", text(name))
        assert not named, f"{name} names {named}: it would be compared with itself"


# Headers with the names of an enum that grows -> how many files of the program may read them: a new name compiles these.
READERS = {"schemas/ops/op_ids.h": 50, "schemas/ops/scalar_ops.h": 30}


@pytest.mark.parametrize("header", READERS)
def test_a_new_op_compiles_few_files(header):
    program = [name for name in CXX if not name.startswith("tests/")]
    read = {name: set(includes(name)) for name in program}
    readers = {header}
    while True:
        more = {name for name, theirs in read.items() if theirs & readers and name not in readers}
        if not more:
            break
        readers |= more
    sources = sorted(name for name in readers if not name.endswith(".h"))
    assert len(sources) <= READERS[header], f"{len(sources)} files read {header}: {sources}"


@pytest.mark.parametrize("name", PYTHON)
def test_no_leftover_notes_in_python(name):
    if name in ALLOWED:
        return
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text(name))


@pytest.mark.parametrize("name", [n for n in CXX if n.endswith(".h")])
def test_headers_open_with_what_they_are(name):
    head = text(name).split("\n")[:4]
    assert head[0] == "#pragma once", f"{name} begins with {head[0]!r}"
    assert any(line.startswith("// ") for line in head), f"{name} does not open with what it is"


HEADLESS = re.compile(r'^\s*(?://|#|""") ?(?:What|Who|Of|Those)\b.*', re.MULTILINE)


def test_comments_begin_with_a_noun():
    """"What moves ..." has a clause for its subject: a noun that acts says it better."""
    headless = [f"{name}: {line.strip()}" for name in CXX + PYTHON + tracked("*.capnp") for line in HEADLESS.findall(text(name))]
    assert len(headless) < 50, "\n".join(headless)


# Modules that are imported where they are needed -> why not before.
LATE = {"_parquet": "needs pyarrow, which this format alone wants", "_zarr_folder": "needs zarr, which this format alone wants"}


def test_modules_of_the_package_are_imported_at_the_top():
    """An import inside a function hides a circle of modules: `_calls.py` and `_namespace.py` are below, and methods are attached from above."""
    late = []
    for name in PYTHON:
        if not name.startswith("client/python/tessera/"):
            continue
        for node in ast.walk(ast.parse(text(name))):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and (inner.level or (inner.module or "").split(".")[0] == "tessera"):
                    modules = [inner.module] if inner.module else [one.name for one in inner.names]
                    late += [f"{name}:{inner.lineno}: {module}" for module in modules if module.split(".")[-1] not in LATE]
    assert not late, "\n".join(late)


def test_every_limit_is_documented():
    named = set()
    for name in CXX:
        named |= set(re.findall(r"docs/limits\.md: (\w+)", text(name)))
    config = text("server/coordinator/config.h")
    named |= set(re.findall(r"int64_t (\w+) = ", config))
    limits = text("docs/limits.md")
    missing = sorted(limit for limit in named if f"`{limit}`" not in limits)
    assert not missing, f"not in docs/limits.md: {missing}"


def test_every_bug_has_a_test_that_is_there():
    python = {f"{name.rsplit('/', 1)[-1]}::{test}" for name in PYTHON for test in re.findall(r"^def (test_\w+)\(", text(name), re.MULTILINE)}
    cxx = {f"{suite}.{test}" for name in CXX if name.startswith("tests/")
           for suite, test in re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+), (\w+)\)", text(name), re.MULTILINE)}
    rows = [line.split("|") for line in text("docs/bugs.md").split("\n") if line.startswith("| ") and not line.startswith("| bug")]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`([^`]+)`", row[-2])
        assert named, f"no test is named: {row[1]}"
        for test in named:
            assert test in python | cxx, f"docs/bugs.md: there is no test {test}"


# ---- placement is decided in one place -----------------------------------------------------------------

def test_rows_of_torch_leave_it_to_the_catalog_what_is_reduced_first():
    """A row that reduces a pending operand by hand says so by `settled`; placements are values with methods, not numbers."""
    rows = tracked("client/python/tessera/torch/*.py")
    by_hand = [f"{name}: {line.strip()}" for name in rows for line in text(name).splitlines() if re.search(r"\bsettled\(", line)]
    assert len(by_hand) <= 20, "\n".join(by_hand)
    numbers = [f"{name}: {line.strip()}" for name in tracked("client/python/*.py") for line in text(name).splitlines()
               if re.search(r"\b(one|own|p|placement)\[0\] *[!=]= *[012]\b|\(0, 0, 0\)", line)]
    assert not numbers, "\n".join(numbers)
