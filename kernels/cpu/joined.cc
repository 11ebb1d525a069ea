// Joined kernels (kernels/joined_kernels.h): which of them can take turns at blocks of rows, and the turns.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "kernels/cpu/evaluate.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/fetch_ahead.h"
#include "kernels/cpu/stores.h"
#include "kernels/cpu/strided.h"
#include "kernels/joined_kernels.h"
#include "kernels/operands.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kMostFetchedBytes = kBlockElements * kMaxElementBytes;

// A call's walk: the extents of all that it reads, and the strides of its operands (the output is the last) in them, 0
// where one is the same along a dim. Its leading `lead` dims are not reduced.
struct Walk {
  const KernelCall* call = nullptr;
  Shape extents;
  absl::InlinedVector<Strides, 4> strides;
  size_t lead = 0;
};

std::optional<Walk> WalkOf(const KernelCall& call) {
  // RunKernel asks this of every call.
  const bool fits = call.store == KernelStore::kWrite && call.output_strides.size() == call.output_extents.size() &&
                    std::all_of(call.inputs.begin(), call.inputs.end(), [](const KernelInput& input) {
                      return input.is_zero || input.strides.size() == input.extents.size();
                    });
  if (!fits) return std::nullopt;
  Walk walk = {.call = &call, .extents = call.output_extents, .strides = {}, .lead = call.output_extents.size()};
  Strides output = call.output_strides;
  if (const auto* reduction = std::get_if<ReduceLocalOp>(call.op)) {
    absl::StatusOr<Shape> extents = ExtentsTogether("reduce", call.inputs, walk.lead);
    if (!extents.ok()) return std::nullopt;
    walk.extents = *std::move(extents);
    for (const int64_t d : reduction->dims) {
      if (d < 0 || d >= static_cast<int64_t>(output.size())) return std::nullopt;
      walk.lead = std::min(walk.lead, static_cast<size_t>(d));
      output[static_cast<size_t>(d)] = 0;
    }
  }
  for (const KernelInput& input : call.inputs) {
    absl::StatusOr<Strides> strides = BroadcastStrides("joined", input, walk.extents);
    if (!strides.ok()) return std::nullopt;
    walk.strides.push_back(*std::move(strides));
  }
  walk.strides.push_back(std::move(output));
  return walk;
}

// An operand, cut into rows: where the bytes of row 0 begin and end, and from a row to the next one.
struct Rows {
  uintptr_t first = 0, end = 0;  // equal: none is read
  int64_t stride = 0;            // in bytes; 0: the same bytes in all rows
  int64_t bytes = 0;             // that are touched of a row
};

// With the leading `lead` dims as rows. Nothing where these don't lie at one stride.
std::optional<Rows> RowsOf(const Walk& walk, size_t operand, size_t lead) {
  const bool is_output = operand + 1 == walk.strides.size();
  if (!is_output && walk.call->inputs[operand].is_zero) return Rows{};
  const Strides& strides = walk.strides[operand];
  const DType dtype = is_output ? walk.call->output_dtype : walk.call->inputs[operand].dtype;
  const void* data = is_output ? walk.call->output : walk.call->inputs[operand].data;
  const int64_t bytes = SizeBytes(dtype);
  int64_t lowest = 0, highest = 0, touched = bytes;
  for (size_t d = lead; d < strides.size(); ++d) {
    (strides[d] < 0 ? lowest : highest) += strides[d] * (walk.extents[d] - 1);
    if (strides[d] != 0) touched *= walk.extents[d];
  }
  std::optional<int64_t> stride;
  int64_t rows = 1;
  for (size_t d = lead; d-- > 0;) {
    if (walk.extents[d] == 1) continue;
    if (!stride.has_value()) stride = strides[d];
    if (strides[d] != *stride * rows) return std::nullopt;
    rows *= walk.extents[d];
  }
  const auto first = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(lowest * bytes);
  return Rows{first, first + static_cast<uintptr_t>((highest - lowest + 1) * bytes), stride.value_or(0) * bytes,
              touched};
}

enum class Touch : uint8_t { kApart, kSameRows, kOtherwise };

Touch TouchOf(const Rows& a, const Rows& b, int64_t rows) {
  const auto whole = [rows](const Rows& of) {
    const int64_t shift = of.stride * (rows - 1);
    return std::pair(of.first + static_cast<uintptr_t>(std::min<int64_t>(shift, 0)),
                     of.end + static_cast<uintptr_t>(std::max<int64_t>(shift, 0)));
  };
  const auto [a_first, a_end] = whole(a);
  const auto [b_first, b_end] = whole(b);
  if (a.first == a.end || b.first == b.end || a_end <= b_first || b_end <= a_first) return Touch::kApart;
  if (a.stride != b.stride) return Touch::kOtherwise;
  const auto span = static_cast<int64_t>(std::max(a.end, b.end) - std::min(a.first, b.first));
  return span <= std::abs(a.stride) ? Touch::kSameRows : Touch::kOtherwise;
}

// Calls that take turns at rows.
struct Turns {
  int64_t rows = 0;
  int64_t row_bytes = 0;                               // of all operands, each memory once
  int64_t row_elements = 0;                            // that the longest walk goes through
  std::vector<int64_t> saves;                          // by call: bytes of its operands that a call before it touches
  std::vector<Rows> read;                              // what is read of memory that no call before has written
  std::vector<absl::InlinedVector<Rows, 4>> operands;  // by call
};

// Adds one more call, by its operands' rows. False where it can't take turns with them.
bool Add(absl::Span<const Rows> call, Turns& turns) {
  int64_t saved = 0;
  std::vector<Rows> fresh;
  for (size_t j = 0; j < call.size(); ++j) {
    const bool writes = j + 1 == call.size();
    bool is_known = call[j].first == call[j].end;
    for (const auto& other : turns.operands) {
      for (size_t i = 0; i < other.size(); ++i) {
        const Touch touch = TouchOf(other[i], call[j], turns.rows);
        if (touch == Touch::kOtherwise && (writes || i + 1 == other.size())) return false;
        is_known = is_known || touch == Touch::kSameRows;
      }
    }
    if (is_known) saved += call[j].bytes * turns.rows;
    for (size_t i = 0; i < j && !is_known; ++i) is_known = TouchOf(call[i], call[j], turns.rows) == Touch::kSameRows;
    if (is_known || call[j].stride == 0) continue;
    turns.row_bytes += call[j].bytes;
    if (!writes) turns.read.push_back(call[j]);
  }
  turns.saves.push_back(saved);
  turns.operands.emplace_back(call.begin(), call.end());
  return true;
}

// With the leading `lead` dims as rows.
std::optional<Turns> TurnsAt(absl::Span<const Walk> walks, size_t lead) {
  Turns turns;
  turns.rows = NumElements(absl::MakeConstSpan(walks[0].extents).subspan(0, lead));
  if (turns.rows < 2) return std::nullopt;
  for (const Walk& walk : walks) {
    if (NumElements(walk.extents) == 0) return std::nullopt;
    absl::InlinedVector<Rows, 4> call;
    for (size_t o = 0; o < walk.strides.size(); ++o) {
      const std::optional<Rows> rows = RowsOf(walk, o, lead);
      if (!rows.has_value() || (o + 1 == walk.strides.size() && rows->stride == 0)) return std::nullopt;
      call.push_back(*rows);
    }
    if (!Add(call, turns)) return std::nullopt;
    turns.row_elements = std::max(turns.row_elements, NumElements(walk.extents) / turns.rows);
  }
  if (turns.row_bytes > kMaxJoinedRowBytes) return std::nullopt;
  return turns;
}

// With the shortest rows that there can be: as many leading dims as all have.
std::optional<Turns> TurnsOf(absl::Span<const Walk> walks) {
  size_t lead = walks[0].lead;
  for (const Walk& walk : walks) {
    lead = std::min(lead, walk.lead);
    for (size_t d = 0; d < lead; ++d) {
      if (walk.extents[d] != walks[0].extents[d]) lead = d;
    }
  }
  for (; lead > 0; --lead) {
    if (std::optional<Turns> turns = TurnsAt(walks, lead)) return turns;
  }
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<PieceRunner>> MakeRunner(const KernelCall& call, size_t number, Stores stores,
                                                        FetchAhead* ahead) {
  if (const auto* map = std::get_if<MapOp>(call.op)) return MakeMapRunner(*map, call, number, stores, ahead);
  return MakeReduceRunner(std::get<ReduceLocalOp>(*call.op), call, number);
}

// A call whose operands may be moved, and its kernel.
struct Member {
  explicit Member(const KernelCall& given) : call(given), inputs(given.inputs.begin(), given.inputs.end()) {
    call.inputs = inputs;
  }
  KernelCall call;
  std::vector<KernelInput> inputs;
  std::unique_ptr<PieceRunner> runner;
  int64_t row_elements = 0;  // of the output
};

// Rows that one member writes, others read, and nobody wants later (KernelCall::output_readers): a block's rows of them
// lie in memory of their own, which stays in the cache, and their place is left alone.
struct Held {
  Rows rows;
  size_t writer = 0;
  std::vector<std::pair<size_t, size_t>> readers;  // members and their inputs
};

std::vector<Held> HeldBy(const Turns& turns, const std::deque<Member>& members) {
  std::vector<Held> all;
  for (size_t m = 0; m < members.size(); ++m) {
    const KernelCall& call = members[m].call;
    Held held = {.rows = turns.operands[m].back(), .writer = m, .readers = {}};
    const Rows& rows = held.rows;
    const bool lies_so = rows.stride > 0 && static_cast<int64_t>(rows.end - rows.first) <= rows.stride;
    if (!std::holds_alternative<MapOp>(*call.op) || call.output_readers < 1 || !lies_so) continue;
    for (size_t r = m + 1; r < members.size(); ++r) {
      for (size_t i = 0; i + 1 < turns.operands[r].size(); ++i) {
        const Rows& read = turns.operands[r][i];
        const bool is_it = read.first == rows.first && read.end == rows.end && read.stride == rows.stride;
        if (is_it) held.readers.emplace_back(r, i);
      }
    }
    if (static_cast<int>(held.readers.size()) == call.output_readers) all.push_back(std::move(held));
  }
  return all;
}

// Memory for blocks of what is held, and the operands that are in it.
class HeldBlocks {
 public:
  HeldBlocks(const Turns& turns, std::deque<Member>& members, int64_t block) {
    static thread_local std::vector<std::byte> memory;
    int64_t bytes = 0;
    for (const Held& held : HeldBy(turns, members)) {
      const auto at = static_cast<uintptr_t>(bytes) - held.rows.first;
      const int64_t stride = held.rows.stride;
      operands_.push_back(
          {at + Address(members[held.writer].call.output), stride, &members[held.writer].call, nullptr});
      for (const auto& [reader, input] : held.readers) {
        KernelInput& read = members[reader].inputs[input];
        operands_.push_back({at + Address(read.data), stride, nullptr, &read});
      }
      bytes += (block * stride + kLineBytes - 1) / kLineBytes * kLineBytes + kLineBytes;
    }
    if (operands_.empty()) return;
    memory.resize(std::max(memory.size(), static_cast<size_t>(bytes + kLineBytes)));
    const std::byte* const first = memory.data() + BytesToLine(memory.data());
    for (Operand& operand : operands_) operand.first_row += Address(first);
  }
  // The block that begins with this row is next.
  void MoveTo(int64_t row) {
    for (const Operand& operand : operands_) {
      auto* const data = reinterpret_cast<std::byte*>(operand.first_row - static_cast<uintptr_t>(row * operand.stride));
      if (operand.written_by != nullptr) operand.written_by->output = data;
      if (operand.read != nullptr) operand.read->data = data;
    }
  }

 private:
  struct Operand {
    uintptr_t first_row = 0;  // where the block's first row lies, were it the first of all
    int64_t stride = 0;
    KernelCall* written_by = nullptr;  // or
    KernelInput* read = nullptr;
  };
  static uintptr_t Address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

  std::vector<Operand> operands_;
};

// Past the cache goes what is large and none of the calls touches again.
Stores StoresOf(const Turns& turns, size_t call) {
  const Rows& output = turns.operands[call].back();
  for (size_t c = 0; c < turns.operands.size(); ++c) {
    const auto& operands = turns.operands[c];
    for (size_t i = 0; i + (c == call ? 1 : 0) < operands.size(); ++i) {
      if (TouchOf(operands[i], output, turns.rows) != Touch::kApart) return Stores::kCached;
    }
  }
  return StoresFor(turns.rows * turns.row_bytes);
}

// While maps take turns at few elements, the next block is on its way: a block of an operand is a page or less. The
// hardware fetches long rows itself.
void AddAhead(const Turns& turns, int64_t row, int64_t count, FetchAhead& ahead) {
  for (const Rows& rows : turns.read) {
    const auto* from = reinterpret_cast<const std::byte*>(rows.first) + row * rows.stride;
    const int64_t bytes = (count - 1) * rows.stride + static_cast<int64_t>(rows.end - rows.first);
    if (count > 0 && rows.stride > 0 && bytes <= kMostFetchedBytes) ahead.Add(from, bytes);
  }
}

// The loops that a block of all members takes.
int64_t LoopsOf(const std::deque<Member>& members) {
  int64_t loops = 0;
  for (const Member& member : members) {
    if (const auto* map = std::get_if<MapOp>(member.call.op)) loops += CountLoops(map->expression);
  }
  return loops;
}

absl::Status RunTurns(const Turns& turns, std::deque<Member>& members, FetchAhead& ahead) {
  int64_t block = std::max<int64_t>(1, kJoinedBlockBytes / std::max<int64_t>(1, turns.row_bytes));
  if (turns.row_elements == 1) block = kBlockElements;  // maps alone: as one of them is cut
  HeldBlocks held(turns, members, std::min(block, turns.rows));
  const int64_t loops = LoopsOf(members);
  for (int64_t row = 0; row < turns.rows; row += block) {
    held.MoveTo(row);
    const int64_t count = std::min(block, turns.rows - row);
    const int64_t next = row + count, next_count = std::min(block, turns.rows - next);
    ahead.Begin(loops);
    AddAhead(turns, next, next_count, ahead);
    for (const Member& member : members) {
      if (absl::Status s = member.runner->Run(row * member.row_elements, count * member.row_elements); !s.ok())
        return s;
    }
  }
  return absl::OkStatus();
}

bool IsOfKind(const KernelCall& call) {
  return call.op != nullptr && !call.output_extents.empty() &&
         (std::holds_alternative<MapOp>(*call.op) || std::holds_alternative<ReduceLocalOp>(*call.op));
}

// Runs as many of the calls as can be one pass that saves something, from the first one on: how many these were, 0
// where it is one alone.
absl::StatusOr<size_t> RunPass(absl::Span<const KernelCall* const> calls, int64_t least_saved_bytes) {
  std::vector<Walk> walks;
  std::optional<Turns> turns;
  for (const KernelCall* call : calls) {
    if (!IsOfKind(*call)) break;
    std::optional<Walk> walk = WalkOf(*call);
    if (!walk.has_value()) break;
    walks.push_back(*std::move(walk));
    if (walks.size() == 1) continue;
    std::optional<Turns> found = TurnsOf(walks);
    if (!found.has_value()) {
      walks.pop_back();
      break;
    }
    turns = std::move(found);
  }
  // The last ones that save little are left to themselves.
  size_t count = turns.has_value() ? walks.size() : 0;
  while (count > 1 && turns->saves[count - 1] < least_saved_bytes) --count;
  if (count < 2) return 0;
  if (count < walks.size()) turns = TurnsOf(absl::MakeConstSpan(walks).subspan(0, count));
  FetchAhead ahead;
  std::deque<Member> members;
  for (size_t c = 0; c < count; ++c) {
    Member& member = members.emplace_back(*calls[c]);
    auto runner = MakeRunner(member.call, c, StoresOf(*turns, c), &ahead);
    if (!runner.ok()) return 0;  // RunKernel says why
    member.runner = *std::move(runner);
    member.row_elements = NumElements(member.call.output_extents) / turns->rows;
  }
  if (absl::Status s = RunTurns(*turns, members, ahead); !s.ok()) return s;
  return count;
}

int64_t BytesOf(const Shape& extents, DType dtype) { return NumElements(extents) * SizeBytes(dtype); }

}  // namespace
}  // namespace tessera::cpu

namespace tessera {

bool MayJoin(const KernelCall& call, const KernelCall& next) {
  if (!cpu::IsOfKind(call) || !cpu::IsOfKind(next) || call.output_extents[0] != next.output_extents[0]) return false;
  return cpu::BytesOf(call.output_extents, call.output_dtype) >= kMinJoinedBytes ||
         std::any_of(call.inputs.begin(), call.inputs.end(), [](const KernelInput& input) {
           return cpu::BytesOf(input.extents, input.dtype) >= kMinJoinedBytes;
         });
}

absl::StatusOr<int> RunJoined(absl::Span<const KernelCall* const> calls, int64_t least_saved_bytes) {
  absl::Status first;
  int passes = 0;
  for (; !calls.empty(); ++passes) {
    size_t done = 0;
    try {
      const size_t most = std::min(calls.size(), kMaxJoinedKernels);
      absl::StatusOr<size_t> ran =
          most > 1 ? cpu::RunPass(calls.subspan(0, most), least_saved_bytes) : absl::StatusOr<size_t>(0);
      if (!ran.ok()) return first.ok() ? ran.status() : first;
      done = *ran;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("kernel: no host memory for joined kernels");
    }
    if (done == 0) {
      absl::Status status = RunKernel(*calls[0]);
      if (first.ok()) first = std::move(status);
      done = 1;
    }
    calls.remove_prefix(done);
  }
  if (!first.ok()) return first;
  return passes;
}

}  // namespace tessera
