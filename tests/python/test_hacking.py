"""docs/hacking.md as it stands: the blocks of its chapters add an op and a transport to copies of the files that they name. What
changes is compiled, and linked with the rest of the program as it was built."""

import ast
import math
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", ROOT / "bazel-bin")).resolve()

BLOCK = re.compile(r"^(?:In `(?P<file>[^`\n]+)`, after `(?P<line>[^\n]+)`|New file `(?P<new>[^`\n]+)`):\n\n```\w*\n(?P<text>.*?)^```$",
                   re.MULTILINE | re.DOTALL)
TAKES = 5   # files of the program that an elementwise op touches

MEANING = """
#include <cstdio>
#include "schemas/ops/catalog.h"
using namespace tessera;
int main() {
  const ScalarOp op = (*FindOpByName("erfc"))->scalar_op.value();
  std::printf("%s\\n", ToText(*ParseExpression("erfc:f32(in0:f32)")).c_str());
  std::printf("%.17g\\n", EvaluateScalarOp(op, DType::kF64, {.dtype = DType::kF64, .f = 0.5}, {}, {}).f);
}
"""
FACTORY = """
#include <cstdio>
#include <utility>
#include "server/worker/make_messages.h"
using namespace tessera;
int main(int, char** argv) {
  for (const std::string& name : TransportNames(NeedsNothing)) std::printf("%s\\n", name.c_str());
  WorkerOptions options;
  options.transport = "stub";
  options.index = 0;
  options.host_id = "here";
  const auto made = MakeMessages(options, argv[1]);
  const bool has_stub = made.ok() && made->transport->Address().find("stub") != std::string::npos;
  std::printf("%s\\n", has_stub ? "made" : made.status().ToString().c_str());
}
"""


def chapter(title: str) -> str:
    text = (ROOT / "docs/hacking.md").read_text(encoding="utf-8")
    return re.search(rf"^## {title}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)[1]


def apply(title: str, folder: pathlib.Path) -> list[str]:
    """The chapter's blocks, in copies below the folder of the files that they name; the names of these."""
    touched = {}
    for block in BLOCK.finditer(chapter(title)):
        if block["new"]:
            touched[block["new"]] = block["text"].splitlines()
            continue
        lines = touched.setdefault(block["file"], (ROOT / block["file"]).read_text(encoding="utf-8").splitlines())
        places = [number for number, line in enumerate(lines, 1) if line.strip() == block["line"]]
        assert len(places) == 1, f"docs/hacking.md: {block['file']} has {len(places)} lines {block['line']!r}"
        lines[places[0]:places[0]] = block["text"].splitlines()
    for name, lines in touched.items():
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if copy.suffix == ".py" or copy.name == "BUILD":
            ast.parse(copy.read_text(encoding="utf-8"), filename=name)
    return sorted(touched)


class Copy:
    """The sources with the changed ones before them, and programs that are linked of both."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.objects = folder, {}

    def _compile(self, path: pathlib.Path, *options: str) -> None:
        command = ["g++", "-std=c++20", "-O0", "-DNDEBUG", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
                   f"-I{self.folder}", f"-I{ROOT}", f"-I{BIN}", *options, str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _path(self, source: str) -> pathlib.Path:
        return self.folder / source if (self.folder / source).exists() else ROOT / source

    def check(self, source: str) -> None:
        self._compile(self._path(source), "-fsyntax-only")

    def compile(self, source: str) -> None:
        built = self.folder / f"{source}.o"
        built.parent.mkdir(parents=True, exist_ok=True)
        self._compile(self._path(source), "-c", "-o", str(built))
        self.objects[source] = built

    def link(self, program: str, main: str, instead: str = "") -> pathlib.Path:
        """The program as Bazel linked it, of what was compiled here where there is something; `instead`: the text of its main
        file, which stands for `main`."""
        objects = dict(self.objects)
        if instead:
            path = self.folder / "main.cc"
            path.write_text(instead)
            objects[main] = self.folder / "main.o"
            self._compile(path, "-c", "-o", str(objects[main]))
        linked = self.folder / pathlib.Path(program).name
        words = pathlib.Path(f"{BIN / program}-2.params").read_text().splitlines()
        for source, built in objects.items():
            stem = re.escape(source.removesuffix(".cc").rpartition("/")[2])
            wanted = re.compile(rf"(^|/){re.escape(source.rpartition('/')[0])}/_objs/[^/]+/{stem}(\.pic)?\.o$")
            places = [number for number, word in enumerate(words) if wanted.search(word)]
            assert len(places) == 1, f"{program} has {len(places)} objects of {source}"
            words[places[0]] = str(built)
        words[words.index("-o") + 1] = str(linked)
        execroot = BIN.parents[2]
        done = subprocess.run(["g++", *words], cwd=execroot, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return linked


def said(*command) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_chapter_adds_an_op(tmp_path):
    touched = apply("Add an op", tmp_path)
    program = [name for name in touched if not name.startswith("tests/")]
    assert len(program) <= TAKES, program
    copy = Copy(tmp_path)
    for source in ("schemas/ops/catalog.cc", "schemas/ops/expression.cc", "schemas/ops/expression_text.cc"):
        copy.compile(source)
    main = "client/python/generate_functions.cc"
    generate = copy.link("client/python/generate_functions", main)
    assert 'def erfc(x: Any, /) -> Any:\n    "Calculates 1 minus the error function' in said(generate, "stubs")
    python = said(generate, "python")
    assert '"erfc": "ts.erfc(ts.asarray([0.0])).tolist() => [1.0]",' in python
    assert re.search(r"MAPS = [^)]*\"erfc\"", python)
    text, value = said(copy.link("client/python/generate_functions", main, MEANING)).splitlines()
    assert text == "erfc:f32(in0:f32)" and math.isclose(float(value), math.erfc(0.5), rel_tol=1e-15)
    copy.check("tests/unit/ops/expression_test.cc")
    function = re.search(r'kErfc.*"(\w+)"\)$', (tmp_path / "schemas/ops/scalar_ops.inc").read_text(), re.MULTILINE)[1]
    assert re.search(rf"\b{function}\b", (tmp_path / "kernels/cuda/math.cuh").read_text())


def test_the_chapter_adds_a_transport(tmp_path):
    touched = apply("Add a transport", tmp_path)
    assert {name for name in touched if not (ROOT / name).exists()} == {"server/transport/stub/BUILD", "server/transport/stub/stub_transport.h"}
    copy = Copy(tmp_path)
    copy.compile("server/worker/make_messages.cc")
    copy.check("server/coordinator/reach.cc")
    factory = copy.link("tests/unit/worker/make_messages_test", "tests/unit/worker/make_messages_test.cc", FACTORY)
    *names, made = said(factory, tmp_path / "socket").splitlines()
    assert "stub" in names
    assert made == "made"
