#pragma once

// The rank that tessera.distributed made of this process for one group of torch's (TorchRank in distributed/_ranks.py),
// as C++ calls it: from threads that may not hold the interpreter's lock, or outlive it.
//
//   const PythonRank rank(object);
//   const std::shared_ptr<Member> member = rank.Enter();    // null: it waits for Reconfigure
//
// Errors of Python become DistBackendError with the same text.

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ranks_calls.h"

namespace tessera::torch_ranks {

inline double SecondsOf(std::chrono::milliseconds timeout) { return std::chrono::duration<double>(timeout).count(); }

// A RuntimeWarning, from any thread; nothing once the interpreter ends.
inline void WarnInPython(const std::string& text) {
  if (!Py_IsInitialized()) return;
  const py::gil_scoped_acquire gil;
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
}

class PythonRank {
 public:
  explicit PythonRank(py::object rank)
      : held_(new py::object(std::move(rank)), [](py::object* object) {
          if (!Py_IsInitialized()) return;
          const py::gil_scoped_acquire gil;
          delete object;
        }) {}

  // The membership ends with the last one that holds it.
  std::shared_ptr<Member> Enter() const {
    return Call([&](const py::object& rank) -> std::shared_ptr<Member> {
      const auto group = rank.attr("group").cast<uintptr_t>();
      if (group == 0) return nullptr;
      return std::make_shared<Member>(
          reinterpret_cast<const TesseraRanks*>(rank.attr("table").cast<uintptr_t>()),
          reinterpret_cast<TesseraGroup*>(group), [self = *this] { self.Leave(); }, LibraryMaker());
    });
  }
  int rank() const {
    return Call([](const py::object& rank) { return rank.attr("rank").cast<int>(); });
  }
  int size() const {
    return Call([](const py::object& rank) { return rank.attr("size").cast<int>(); });
  }

  // Blocks until all of `ranks`, numbers of this group of which this is the one at `rank`, have called it.
  PythonRank Split(const std::string& name, int rank, const std::vector<int>& ranks, int64_t world_rank,
                   double timeout_s) const {
    return Call([&](const py::object& parent) {
      return PythonRank(parent.attr("split")(name, rank, ranks, world_rank, timeout_s));
    });
  }
  std::string Handle() const {
    return Call([](const py::object& rank) { return rank.attr("handle")().cast<std::string>(); });
  }
  // Blocks until all that the handles name have called it.
  PythonRank Reconfigure(int64_t uuid, const std::vector<std::string>& handles, bool is_ordered,
                         double timeout_s) const {
    return Call([&](const py::object& rank) {
      return PythonRank(rank.attr("reconfigure")(uuid, handles, is_ordered, timeout_s));
    });
  }

 private:
  template <class Function>
  std::invoke_result_t<Function, const py::object&> Call(Function function) const {
    const py::gil_scoped_acquire gil;
    try {
      return function(*held_);
    } catch (py::error_already_set& error) {
      const std::string text = py::str(error.value());
      Throw(text);
    }
  }
  Libraries::Maker LibraryMaker() const {
    const auto name_of = [self = *this](c10::Device device) {
      return self.Call([&](const py::object& rank) {
        return rank.attr("name_of_device")(device).cast<std::optional<std::string>>();
      });
    };
    const auto make = [self = *this](c10::Device device, const std::vector<std::string>& names) {
      return self.Call([&](const py::object& rank) {
        const py::object made = rank.attr("library")(device, names);
        return made.is_none() ? c10::intrusive_ptr<c10d::Backend>() : made.cast<c10::intrusive_ptr<c10d::Backend>>();
      });
    };
    return {name_of, make, &WarnInPython, size()};
  }
  void Leave() const {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    try {
      held_->attr("leave")();
    } catch (const py::error_already_set& error) {
      TORCH_WARN("tessera: leaving a group: ", error.what());
    }
  }

  std::shared_ptr<py::object> held_;
};

}  // namespace tessera::torch_ranks
