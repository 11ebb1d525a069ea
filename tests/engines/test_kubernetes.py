"""The manifests of deploy/kubernetes against the schemas of Kubernetes, offline; and what programs and manifests say of each other."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))
from two_hosts import BINARIES  # noqa: E402

FOLDER = ROOT / "deploy/kubernetes"
# That of tools/setup; one that was set up before has none, and tools/engines' is looked at.
PYTHONS = [pathlib.Path(sys.executable), pathlib.Path(os.environ.get("TESSERA_ENGINES_PYTHON", "~/.cache/tessera/engines")).expanduser() / "bin/python"]
# Kueue's kinds are not Kubernetes' own.
OWN = re.compile(r"kustomization\.yaml$|kueue/queue\.yaml$|/worker\.yaml$")

CHECK = """
import sys, yaml, kubernetes_validate
for path in sys.argv[1:]:
    for document in yaml.safe_load_all(open(path)):
        try:
            kubernetes_validate.validate(document, "1.31", strict=True)
        except Exception as error:
            sys.exit(f"{path}: {document.get('kind')}: {error}")
print("valid")
"""


def documents(path):
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def check(*paths):
    having = [python for python in PYTHONS
              if python.exists() and not subprocess.run([python, "-c", "import kubernetes_validate, yaml"], capture_output=True).returncode]
    if not having:
        pytest.skip("kubernetes-validate is not installed (tools/setup installs it)")
    return subprocess.run([having[0], "-c", CHECK, *map(str, paths)], capture_output=True, text=True, timeout=120)


def test_every_manifest_is_valid_and_a_wrong_key_is_found(tmp_path):
    manifests = sorted(path for path in FOLDER.rglob("*.yaml") if not OWN.search(str(path)))
    assert len(manifests) >= 4
    done = check(*manifests)
    assert done.returncode == 0 and done.stdout == "valid\n", done.stdout + done.stderr
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((FOLDER / "base/workers.yaml").read_text().replace("replicas:", "replica:"))
    done = check(wrong)
    assert done.returncode == 1 and "replica" in done.stderr, done.stderr


def test_kustomizations_name_files_that_are_there():
    kustomizations = sorted(FOLDER.rglob("kustomization.yaml"))
    assert len(kustomizations) == 4
    for kustomization in kustomizations:
        one, = documents(kustomization)
        for name in [*one.get("resources", ()), *(patch["path"] for patch in one.get("patches", ()))]:
            assert (kustomization.parent / name).exists(), f"{kustomization} names {name}"


def containers():
    for path in sorted(FOLDER.rglob("*.yaml")):
        for document in documents(path):
            pod = document.get("spec", {}).get("template", {}).get("spec", {}) if document.get("kind") == "StatefulSet" else {}
            for container in pod.get("containers", ()):
                yield path, container


def commands_of(container):
    """The container's command, and the one behind it that it runs."""
    command = container["command"]
    at = command.index("--") if "--" in command else len(command)
    return [part for part in (command[:at], command[at + 1:]) if part]


def test_the_programs_know_every_flag_that_the_manifests_give_them():
    seen = 0
    for path, container in containers():
        if "command" not in container:
            continue
        for name, *flags in commands_of(container):
            program = [BINARIES / f"server/{name.removeprefix('tessera-')}/{name}"] if name != "tessera" else [BINARIES / "client/cli/tessera", flags.pop(0)]
            shown = subprocess.run([*program, "--help"], capture_output=True, text=True, timeout=60).stdout
            for flag in flags:
                assert re.search(rf"{re.escape(flag.partition('=')[0])}\b", shown), f"{path}: {name} has no {flag}"
                seen += 1
    assert seen > 20


def test_the_workers_of_a_pod_have_numbers_and_ports_of_their_own():
    seen = 0
    for path, container in containers():
        keep, *worker = commands_of(container) if "command" in container else [[]]
        if keep[:2] != ["tessera", "keep"]:
            continue
        copies = int(keep[2].removeprefix("--copies="))
        words = {flag.partition("=")[0]: flag.partition("=")[2] for flag in worker[0][1:]}
        assert words["--workers-on-host"] == str(copies) and words["--index-from"] == f"hostname-ordinal*{copies}+{{}}", path
        ports = [re.search(r":(\d+)$", words[flag].format(number))[1] for number in range(copies) for flag in ("--data-listen", "--message-listen")]
        assert len(set(ports)) == 2 * copies and all(7440 <= int(port) <= 7459 for port in ports), (path, ports)
        seen += 1
    assert seen == 2


def test_ports_and_services_agree():
    services = {one["metadata"]["name"]: one for path in FOLDER.rglob("*.yaml") for one in documents(path) if one.get("kind") == "Service"}
    assert {port["port"] for port in services["tessera"]["spec"]["ports"]} == {7421, 7422, 9464}
    assert services["tessera-workers"]["spec"]["clusterIP"] == "None"
    for path, container in containers():
        if "ports" in container:
            joined = " ".join(word.format(number) for word in container["command"] for number in range(2))
            for port in container["ports"]:
                assert f":{port['containerPort']}" in joined, f"{path}: nothing listens at {port}"
