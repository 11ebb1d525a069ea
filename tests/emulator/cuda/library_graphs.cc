// The driver's calls for graphs. The documentation doesn't say of any of them that it never waits, so each may.

#include <cuda.h>

#include "tests/emulator/cuda/calls.h"
#include "tests/emulator/cuda/graphs.h"

using tessera::emulator::Emulated;         // NOLINT: these functions' names are the driver's, in the global namespace
using tessera::emulator::EnteredToWait;    // NOLINT
using tessera::emulator::LaunchOperation;  // NOLINT

namespace {

// The launch that the parameters say, if a GPU takes it.
CUresult LaunchOf(const CUDA_KERNEL_NODE_PARAMS& node, LaunchOperation* launch) {
  const auto* kernel = reinterpret_cast<const tessera::ptx::Kernel*>(
      node.func != nullptr ? reinterpret_cast<void*>(node.func) : reinterpret_cast<void*>(node.kern));
  const std::array<uint32_t, 3> grid = {node.gridDimX, node.gridDimY, node.gridDimZ};
  const std::array<uint32_t, 3> block = {node.blockDimX, node.blockDimY, node.blockDimZ};
  if (kernel == nullptr || node.extra != nullptr ||
      !tessera::emulator::IsLaunchable(grid, block, node.sharedMemBytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *launch = tessera::emulator::LaunchOf(kernel, grid, block, node.sharedMemBytes, node.kernelParams);
  return Emulated().LoadKernel(kernel);
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return EnteredToWait("cuGraphCreate", [&] { return Emulated().MakeGraph(graph); });
}
CUresult cuGraphDestroy(CUgraph graph) {
  return EnteredToWait("cuGraphDestroy", [&] { return Emulated().DestroyGraph(graph); });
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return EnteredToWait("cuGraphAddKernelNode", [&] {
    LaunchOperation launch;
    const CUresult result = LaunchOf(*parameters, &launch);
    if (result != CUDA_SUCCESS) return result;
    return Emulated().AddNode(graph, {after, count}, std::move(launch), node);
  });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return EnteredToWait("cuGraphInstantiateWithFlags", [&] { return Emulated().Instantiate(graph, executable); });
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return EnteredToWait("cuGraphExecKernelNodeSetParams", [&] {
    LaunchOperation launch;
    const CUresult result = LaunchOf(*parameters, &launch);
    return result == CUDA_SUCCESS ? Emulated().SetNode(executable, node, std::move(launch)) : result;
  });
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return EnteredToWait("cuGraphLaunch", [&] { return Emulated().LaunchGraph(executable, stream); });
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return EnteredToWait("cuGraphExecDestroy", [&] { return Emulated().DestroyExecutable(executable); });
}
}
