#include "client/python/site_finder.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <climits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/call_sites.h"
#include "client/python/frames.h"
#include "client/python/interpreter.h"
#include "schemas/types/str_cat.h"

namespace tessera::python {
namespace {

namespace nb = nanobind;

constexpr int kMaxFrames = 200;
constexpr size_t kMaxWays = 4096;  // of one code object

// kDispatch: where torch brings an op to this package; the op is the second argument, `func`.
enum class CodeKind : uint8_t { kProgram, kLibrary, kOwn, kDispatch };

struct CodeNote {
  CodeKind kind = CodeKind::kProgram;
  absl::flat_hash_map<uint64_t, SiteId> sites;  // by instruction and the way from it to here
};

struct Folders {
  std::vector<std::string> own;
  std::string library;  // Python's
};
Folders& KnownFolders() {
  static auto* const folders = new Folders();
  return *folders;
}

std::string TextOf(PyObject* text) {
  const char* const utf8 = text == nullptr || !PyUnicode_Check(text) ? nullptr : PyUnicode_AsUTF8AndSize(text, nullptr);
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 == nullptr ? "" : utf8;
}

nb::object AttributeOf(PyCodeObject* code, const char* name) {
  return nb::handle(reinterpret_cast<PyObject*>(code)).attr(name);
}

bool IsIn(std::string_view file, std::string_view folder) {
  return !folder.empty() && file.substr(0, folder.size()) == folder;
}

CodeKind KindOf(PyCodeObject* code) {
  const std::string file = TextOf(AttributeOf(code, "co_filename").ptr());
  for (const std::string& folder : KnownFolders().own) {
    if (!IsIn(file, folder)) continue;
    return TextOf(AttributeOf(code, "co_name").ptr()) == "__torch_dispatch__" ? CodeKind::kDispatch : CodeKind::kOwn;
  }
  const auto has = [&file](std::string_view part) { return file.find(part) != std::string::npos; };
  const bool is_library =
      IsIn(file, KnownFolders().library) || IsIn(file, "<frozen ") || has("/site-packages/") || has("/dist-packages/");
  return is_library ? CodeKind::kLibrary : CodeKind::kProgram;
}

Py_ssize_t NoteIndex() {
  static const Py_ssize_t index =
      tessera_interpreter.request_code_extra([](void* note) { delete static_cast<CodeNote*>(note); });
  return index;
}

CodeNote* NoteOf(PyCodeObject* code) {
  PyObject* const object = reinterpret_cast<PyObject*>(code);
  void* found = nullptr;
  if (tessera_interpreter.get_code_extra(object, NoteIndex(), &found) == 0 && found != nullptr) {
    return static_cast<CodeNote*>(found);
  }
  auto note = std::make_unique<CodeNote>();
  note->kind = KindOf(code);
  if (tessera_interpreter.set_code_extra(object, NoteIndex(), note.get()) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  return note.release();
}

// IPython's name for the cell of a file; empty: the file is no cell's.
std::string CellOf(PyObject* file) {
  PyObject* const shell = PyDict_GetItemString(PyImport_GetModuleDict(), "IPython.core.interactiveshell");
  if (shell == nullptr) return "";
  try {
    const nb::object numbers =
        nb::handle(shell).attr("InteractiveShell").attr("_instance").attr("compile").attr("_filename_map");
    PyObject* const number = PyDict_Check(numbers.ptr()) ? PyDict_GetItem(numbers.ptr(), file) : nullptr;
    return number == nullptr ? "" : StrCat("Cell In[", PyLong_AsLong(number), "], line ");
  } catch (const nb::python_error&) {  // its message goes with it
    return "";
  }
}

std::string PlaceOf(PyCodeObject* code, int instruction) {
  const int line = tessera_interpreter.line_of(code, instruction);
  const nb::object name = AttributeOf(code, "co_filename");
  if (const std::string cell = CellOf(name.ptr()); !cell.empty()) return StrCat(cell, line);
  std::string file = TextOf(name.ptr());
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof(folder)) != nullptr && IsIn(file, StrCat(folder, "/"))) {
    file = file.substr(std::string_view(folder).size() + 1);
  }
  return StrCat(file, ":", line);
}

// "aten::embedding" is embedding.
std::string NameOfTorchOp(PyObject* op) {
  if (op == nullptr) return "";
  try {
    const std::string name = TextOf(nb::object(nb::handle(op).attr("_schema").attr("name")).ptr());
    const size_t colon = name.rfind(':');
    return colon == std::string::npos ? name : name.substr(colon + 1);
  } catch (const nb::python_error&) {
    return "";
  }
}

void Mix(uint64_t& way, uint64_t value) {
  way = (way ^ value) * 0x9E3779B97F4A7C15u;
  way ^= way >> 32;
}

// A place in a thread's frames, and the way from there to here.
struct Found {
  PyCodeObject* code = nullptr;
  CodeNote* note = nullptr;
  int instruction = 0;
  uint64_t way = 0;
};

// The torch op that a kernel of the device runs on this thread (tessera/torch/dispatch.h), which is in no frame.
thread_local PyObject* torch_op_of_kernel = nullptr;

struct Search {
  std::optional<Found> program;
  std::optional<Found> library;  // the innermost one
  PyObject* torch_op = nullptr;  // the outermost one
  uint64_t way = 0;

  void In(PyThreadState* thread) {
    TesseraFrames frames = TesseraFramesOf(thread);
    Found at;
    for (int count = 0; count < kMaxFrames && TesseraNextFrame(&frames, &at.code, &at.instruction) != 0; ++count) {
      at.note = NoteOf(at.code);
      if (at.note == nullptr) break;
      if (at.note->kind == CodeKind::kDispatch) {
        torch_op = TesseraArgument(&frames, 1, "func");
        Mix(way, reinterpret_cast<uintptr_t>(torch_op));
      }
      at.way = way;
      Mix(at.way, static_cast<uint64_t>(at.instruction));
      if (at.note->kind == CodeKind::kProgram) {
        program = at;
        break;
      }
      if (at.note->kind == CodeKind::kLibrary && !library.has_value()) library = at;
    }
    TesseraEndFrames(&frames);
  }
};

// The oldest thread.
PyThreadState* MainThread() {
  PyThreadState* thread = tessera_interpreter.first_thread(tessera_interpreter.main());
  while (PyThreadState* const older = tessera_interpreter.next_thread(thread)) thread = older;
  return thread;
}

SiteId FindHere() {
  if (tessera_interpreter.holds_lock() == 0 || PyErr_Occurred() != nullptr) return 0;
  PyThreadState* const own = PyThreadState_Get();
  Search search;
  search.torch_op = torch_op_of_kernel;
  if (torch_op_of_kernel != nullptr) Mix(search.way, reinterpret_cast<uintptr_t>(torch_op_of_kernel));
  search.In(own);
  if (!search.program.has_value() && !search.library.has_value()) {
    if (PyThreadState* const main = MainThread(); main != own) {
      PyObject* const op = search.torch_op;
      search.In(main);
      search.torch_op = op;
    }
  }
  const std::optional<Found>& found = search.program.has_value() ? search.program : search.library;
  if (!found.has_value()) return 0;
  auto& sites = found->note->sites;
  const auto known = sites.find(found->way);
  if (known != sites.end()) return known->second;
  if (sites.size() >= kMaxWays) sites.clear();
  const SiteId site = InternSite({PlaceOf(found->code, found->instruction), NameOfTorchOp(search.torch_op)});
  sites.emplace(found->way, site);
  return site;
}

}  // namespace

PyObject** TorchOpSlot() { return &torch_op_of_kernel; }

void DefineSites(nb::module_& module) {
  SetSiteFinder(&FindHere);
  module.def(
      "set_library_folder", [](const std::string& folder) { KnownFolders().library = folder; },
      "Where Python's own library is: a call in it is asked for by who calls it.");
  module.def(
      "add_own_folder", [](const std::string& folder) { KnownFolders().own.push_back(folder); },
      "Whose frames are never where an op was asked for.");
  module.def("site_here", [] {
    const CallSite* const site = FindSite(FindHere());
    return site == nullptr ? nb::make_tuple(nb::none(), nb::none()) : nb::make_tuple(site->place, site->op);
  });
}

}  // namespace tessera::python
