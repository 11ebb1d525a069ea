"""The command line without a server."""

import json
import os
import subprocess

import pytest

TESSERA = os.path.join(os.environ.get("TESSERA_BIN_DIR", "bazel-bin"), "client/cli/tessera")


def tessera(*arguments, **environment):
    return subprocess.run([TESSERA, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "HOME": "/nonexistent", **environment})


def test_plan_prints_bytes_by_position():
    out = tessera("plan", "f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]", "--json")
    assert out.returncode == 0
    assert json.loads(out.stdout)["bytes_received"] == [50331648] * 4


def test_plan_takes_an_einsum_as_python_writes_it():
    out = tessera("plan", "einsum('ij,jk->ik', f64[4,6] @ mesh(2) [S(0)], f64[6,8] @ mesh(2) [R])")
    assert out.returncode == 0 and out.stdout.startswith("output: f64[4,8] @ mesh(2) [S(0)]\n")


@pytest.mark.parametrize("request_text", ["", "f32[2", "f32[4] @ mesh(2) [S(3)] -> [R]", "x" * 100000, "f99[2] @ mesh(2) [R] -> [R]"])
def test_a_bad_plan_request_is_wrong_usage_with_a_message(request_text):
    out = tessera("plan", request_text)
    assert out.returncode == 2 and out.stderr.startswith("tessera:") and len(out.stderr) < 4000


@pytest.mark.parametrize("arguments", [(), ("fly",), ("up", "--workers", "0"), ("up", "--transport", "tcp"), ("plan",),
                                       ("up", "--memory", "0"), ("up", "--memory", "10XB"), ("plan", "--memory", "10XB", "x"),
                                       ("status", "--wrong"), ("",), ("fly", "--help"), ("status", "--address", "foo"),
                                       ("up", "--listen", "tcp:1")])
def test_wrong_usage_is_status_2(arguments):
    assert tessera(*arguments).returncode == 2


@pytest.mark.parametrize("arguments, message", [
    (("--bogus",), 'unknown option "--bogus"; commands: up status tensors close kill-worker plan ops bench demo doctor'),
    (("fly", "--help"), 'unknown command "fly"; commands: up status tensors close kill-worker plan ops bench demo doctor'),
    (("up", "--memory", "1PiB"), 'unknown unit "PiB"; known: B kB MB GB TB KiB MiB GiB TiB'),
    (("up", "--memory", "0"), '"0" must be positive'), (("plan", "--memory", "-1", "x"), '"-1" must be positive'),
    (("up", "--memory", "much"), '"much" is no number of bytes'), (("up", "--memory", "1.2.3MiB"), "is no number of bytes"),
    (("up", "--memory", "9999999TiB"), '"9999999TiB" is more than'),
    (("plan", "nosuch(f32[4] @ mesh(2) [R])"), 'unknown op "nosuch"; known: ')])
def test_wrong_usage_says_what_is_wrong(arguments, message):
    out = tessera(*arguments)
    assert out.returncode == 2 and message in out.stderr and not out.stdout


def test_what_does_not_fit_is_status_1():
    out = tessera("plan", "--memory", "1KiB", "matmul(f64[64,64] @ mesh(2) [S(0)], f64[64,64] @ mesh(2) [S(0)])")
    assert out.returncode == 1 and "bytes" in out.stderr


@pytest.mark.parametrize("command", ["up", "status", "tensors", "plan", "demo", "doctor"])
def test_help_has_examples(command):
    out = tessera(command, "--help")
    assert out.returncode == 0 and "Examples:" in out.stdout


def test_no_server_is_status_1():
    out = tessera("status", "--address", "unix:/nonexistent/x.sock")
    assert out.returncode == 1 and "no server" in out.stderr


def test_no_address_says_where_to_put_one():
    out = tessera("status", TESSERA_ADDRESS="")
    assert out.returncode == 1 and "TESSERA_ADDRESS" in out.stderr
