#include "tests/emulator/cuda/cusolver/operations.h"

#include <cstdio>
#include <cstring>
#include <memory>

#include "tests/emulator/cuda/driver_of_library.h"

namespace tessera::emulator {
namespace {

constexpr int kFirstDriverError = 100;  // of those that a context keeps

struct State {
  std::function<void(DeviceSide&)> run;
  std::string wrong;
};
const char* RunState(void* opaque, const TesseraEmulatorMemory* memory) {
  State& state = *static_cast<State*>(opaque);
  DeviceSide side(memory->engine, memory->touch);
  state.run(side);
  state.wrong = side.wrong();
  return state.wrong.empty() ? nullptr : state.wrong.c_str();
}

}  // namespace

int BeginCall(const char* function) {
  if (TheDriver().enter == nullptr) return -1;
  const int result = TheDriver().enter(function);
  return result >= kFirstDriverError ? -1 : result;
}
bool MayLoad(const char* function) { return TheDriver().may_wait_for_all(function) == 0; }
CUcontext CurrentContext() {
  CUcontext context = nullptr;
  if (TheDriver().current != nullptr) TheDriver().current(&context);
  return context;
}
int Wrong(const char* function, const std::string& what, int status) {
  std::fprintf(stderr, "emulator: %s: %s\n", function, what.c_str());
  return status;
}

std::byte* DeviceSide::Touch(const void* at, int64_t bytes, bool is_write) {
  void* place = touch_(engine_, reinterpret_cast<uint64_t>(at), bytes, is_write ? 1 : 0);
  if (place == nullptr) wrong_ = std::to_string(bytes) + " bytes of an operand are in no memory";
  return static_cast<std::byte*>(place);
}

Matrix DeviceSide::Read(const void* at, bool is_double, int64_t rows, int64_t columns, int64_t leading) {
  Matrix matrix(rows, columns);
  const int64_t size = is_double ? 8 : 4;
  for (int64_t j = 0; j < columns; ++j) {
    const std::byte* column = Touch(static_cast<const std::byte*>(at) + j * leading * size, rows * size, false);
    for (int64_t i = 0; column != nullptr && i < rows; ++i) {
      double wide = 0;
      float narrow = 0;
      if (is_double) std::memcpy(&wide, column + i * size, sizeof(wide));
      if (!is_double) std::memcpy(&narrow, column + i * size, sizeof(narrow));
      matrix.at(i, j) = is_double ? wide : static_cast<double>(narrow);
    }
  }
  return matrix;
}

void DeviceSide::Write(void* at, bool is_double, const Matrix& matrix, int64_t leading) {
  const int64_t size = is_double ? 8 : 4;
  for (int64_t j = 0; j < matrix.columns; ++j) {
    std::byte* column = Touch(static_cast<std::byte*>(at) + j * leading * size, matrix.rows * size, true);
    for (int64_t i = 0; column != nullptr && i < matrix.rows; ++i) {
      const double wide = matrix.data[static_cast<size_t>(i + j * matrix.rows)];
      const auto narrow = static_cast<float>(wide);
      if (is_double) std::memcpy(column + i * size, &wide, sizeof(wide));
      if (!is_double) std::memcpy(column + i * size, &narrow, sizeof(narrow));
    }
  }
}

std::vector<int64_t> DeviceSide::ReadPivots(const void* at, int64_t count) {
  std::vector<int64_t> pivots(static_cast<size_t>(count), 1);
  if (const std::byte* from = Touch(at, count * 8, false); from != nullptr) {
    std::memcpy(pivots.data(), from, pivots.size() * 8);
  }
  for (const int64_t pivot : pivots) {
    if (pivot >= 1 && pivot <= count) continue;
    wrong_ = "pivots that no factorization has left";
    return std::vector<int64_t>(static_cast<size_t>(count), 1);
  }
  return pivots;
}
void DeviceSide::WritePivots(void* at, const std::vector<int64_t>& pivots) {
  std::byte* to = Touch(at, static_cast<int64_t>(pivots.size()) * 8, true);
  if (to != nullptr) std::memcpy(to, pivots.data(), pivots.size() * 8);
}
void DeviceSide::WriteInfo(int* at, int info) {
  if (std::byte* to = Touch(at, sizeof(info), true); to != nullptr) std::memcpy(to, &info, sizeof(info));
}
void DeviceSide::Spoil(void* workspace, size_t bytes) {
  if (bytes == 0) return;
  if (std::byte* to = Touch(workspace, static_cast<int64_t>(bytes), true); to != nullptr) std::memset(to, 0xA5, bytes);
}

bool Push(CUstream stream, const char* name, std::function<void(DeviceSide&)> run) {
  auto state = std::make_unique<State>(State{std::move(run), ""});
  const TesseraEmulatorOperation operation = {
      name, nullptr, RunState, [](void* opaque) { delete static_cast<State*>(opaque); }, state.release()};
  return TheDriver().push(stream, &operation) != 0;
}

}  // namespace tessera::emulator
