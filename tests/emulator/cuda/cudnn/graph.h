#pragma once

// A graph of operations as the emulated cuDNN has it from descriptors, what of it the real one would refuse, and its
// results. Tensors are computed whole, each in floats, and rounded to its type.
//
// Engines, from the worst on: heuristic A names those that a worker must not take, and one that turns out not to work;
// the fallback names those that it may.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::emulator {

struct DnnTensor {
  int type = 0;
  std::vector<int64_t> dims, strides;
  int64_t alignment = 0;
  bool is_virtual = false, is_by_value = false;
  int64_t elements() const;
};

struct DnnOperation {
  std::string name;                    // "matmul", "mul", "max", "conv", "dgrad", "wgrad"
  int64_t x = 0, b = 0, t = 0, y = 0;  // identities of tensors; 0: none
  int computed_in = 0;
  int64_t axis = -1;
  std::vector<int64_t> stride, padding, dilation;
};

struct DnnGraph {
  std::map<int64_t, DnnTensor> tensors;  // by identity
  std::vector<DnnOperation> operations;
  // Or the gradient of one, whose x is the gradient of the result.
  bool is_convolution() const {
    const std::string name = operations.size() == 1 ? operations[0].name : "";
    return name == "conv" || name == "dgrad" || name == "wgrad";
  }
};

// Why descriptors are no graph, else empty.
std::string WrongWith(const DnnGraph& graph);
// Why no engine takes it, else empty.
std::string RefusalOf(const DnnGraph& graph);

struct DnnEngine {
  std::vector<int> notes;
  bool fails_to_finalize = false;
};
const std::vector<DnnEngine>& EnginesOf();
// Numbers of engines, in the order of the heuristic.
std::vector<int> HeuristicA(const DnnGraph& graph);
std::vector<int> HeuristicFallback(const DnnGraph& graph);
// With `per_part`, so many bytes for each of the first two dims' elements of the result; of a convolution and of the
// gradient of its x for each of the first dim's.
int64_t WorkspaceOf(const DnnGraph& graph, int64_t per_part);

struct DnnExecution {
  DnnGraph graph;
  int engine = 0;
  std::map<int64_t, uint64_t> addresses;
  std::map<int64_t, double> numbers = {};
  uint64_t workspace = 0;
  int64_t workspace_bytes = 0;
  uint32_t call = 0;  // which one it is, of all
};
using DnnMemory = std::function<std::byte*(uint64_t address, int64_t bytes, bool is_write)>;
// Returns the error, else empty.
std::string Execute(const DnnExecution& execution, const DnnMemory& memory);

}  // namespace tessera::emulator
