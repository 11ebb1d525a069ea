#include "server/worker/template_cache.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <variant>

#include "schemas/host/thread_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/counters.h"
#include "server/plan/verify.h"

namespace tessera {
namespace {

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(StrCat("program: ", what)); }

// Collects and checks what the instructions of a program touch.
class TemplateChecker {
 public:
  explicit TemplateChecker(ProgramTemplate& made) : made_(made), self_(made.program.worker) {}

  absl::Status Check() {
    static_assert(kMaxPlanPhases == kMaxPhases);
    if (made_.program.phases.size() > kMaxPhases) {
      return Bad(StrCat(made_.program.phases.size(), " phases; ", kMaxPhases, " are allowed (max_phases)"));
    }
    made_.publishes.assign(made_.program.phases.size(), 0);
    for (const TransitBuffer& buffer : made_.program.transit) made_.transit.push_back({buffer, {}});
    for (size_t p = 0; p < made_.program.phases.size(); ++p) {
      const Phase& phase = made_.program.phases[p];
      pushes_to_ = &phase.peers.pushes_to;
      for (const Instruction& instruction : phase.instructions) {
        TESSERA_RETURN_IF_ERROR(std::visit([this](const auto& i) { return CheckInstruction(i); }, instruction));
      }
      if (phase.peers.phase < 0 || phase.peers.phase > static_cast<int>(p)) {
        return Bad(StrCat("phase ", p + 1, " waits for phase ", phase.peers.phase));
      }
      if (phase.peers.phase > 0 && !phase.peers.read_by.empty()) {
        made_.publishes[static_cast<size_t>(phase.peers.phase - 1)] = 1;
      }
      if (phase.overwrites.phase < 0 || phase.overwrites.phase > static_cast<int>(p)) {
        return Bad(StrCat("phase ", p + 1, " overwrites what was read in phase ", phase.overwrites.phase));
      }
      if (phase.overwrites.phase > 0) made_.publishes[static_cast<size_t>(phase.overwrites.phase - 1)] = 1;
      TESSERA_RETURN_IF_ERROR(CheckMessages(phase));
      if (phase.ranged_merge() != nullptr) TESSERA_RETURN_IF_ERROR(CheckMerge(phase));
      made_.peers.insert(made_.peers.end(), phase.peers.reads_from.begin(), phase.peers.reads_from.end());
      made_.pushed_peers.insert(made_.pushed_peers.end(), phase.peers.pushes_to.begin(), phase.peers.pushes_to.end());
    }
    for (auto* peers : {&made_.peers, &made_.pushed_peers}) {
      std::sort(peers->begin(), peers->end());
      peers->erase(std::unique(peers->begin(), peers->end()), peers->end());
    }
    return absl::OkStatus();
  }

 private:
  TransitUse* FindTransit(const Operand& operand) {
    const auto at = std::find_if(made_.transit.begin(), made_.transit.end(),
                                 [&](const TransitUse& use) { return use.buffer.parameter == operand.parameter; });
    return at == made_.transit.end() ? nullptr : &*at;
  }

  // Notes the bytes of what passes on that a reduction writes, or a message takes.
  absl::Status TouchTransit(const TransitUse& use, const Operand& operand, absl::Span<const int64_t> extents,
                            DType dtype) const {
    TESSERA_RETURN_IF_ERROR(Own(operand));
    TESSERA_ASSIGN_OR_RETURN(const auto touched, TouchedBytes(extents, operand.strides, SizeBytes(dtype)));
    const int64_t bytes = use.buffer.bytes;
    const bool lies_within = operand.offset_bytes >= 0 && operand.offset_bytes <= bytes && touched.first >= 0 &&
                             touched.second <= bytes - operand.offset_bytes &&
                             operand.offset_bytes % SizeBytes(dtype) == 0;
    return lies_within ? absl::OkStatus() : Bad(StrCat("an operand at ", operand.offset_bytes, " of what passes on"));
  }

  absl::Status Touch(const Operand& operand, absl::Span<const int64_t> extents, DType dtype) {
    if (operand.parameter < 0 || operand.parameter >= made_.buffer_count || operand.worker.value < 0) {
      return Bad(StrCat("an operand in buffer ", operand.parameter, " of worker ", operand.worker.value));
    }
    if (static_cast<int>(dtype) >= kDTypeCount) return Bad("an operand of no dtype");
    if (FindTransit(operand) != nullptr) {
      // A peer's comes in messages.
      return operand.worker == self_ ? Bad("what passes on is read, or written where it is") : absl::OkStatus();
    }
    const int64_t element_bytes = SizeBytes(dtype);
    TESSERA_ASSIGN_OR_RETURN(auto touched, TouchedBytes(extents, operand.strides, element_bytes));
    int64_t first = 0, last = 0;
    if (__builtin_add_overflow(operand.offset_bytes, touched.first, &first) ||
        __builtin_add_overflow(operand.offset_bytes, touched.second, &last) ||
        operand.offset_bytes % element_bytes != 0) {
      return Bad(StrCat("an operand at ", operand.offset_bytes));
    }
    if (touched.first == touched.second) return absl::OkStatus();
    for (TouchedRange& range : made_.ranges) {
      if (range.worker == operand.worker && range.parameter == operand.parameter) {
        range.first = std::min(range.first, first);
        range.last = std::max(range.last, last);
        return absl::OkStatus();
      }
    }
    made_.ranges.push_back({operand.worker, operand.parameter, first, last});
    return absl::OkStatus();
  }
  absl::Status Own(const Operand& operand) const {
    return operand.worker == self_ ? absl::OkStatus() : Bad("a peer's memory is written");
  }

  // Checks that the phase waits for that peer's memory.
  absl::Status MayStoreTo(WorkerIndex peer) const {
    return std::binary_search(pushes_to_->begin(), pushes_to_->end(), peer) ? absl::OkStatus()
                                                                            : Bad("a peer's memory is written");
  }

  absl::Status CheckInstruction(const CopyInstruction& copy) {
    TESSERA_RETURN_IF_ERROR(Own(copy.destination));
    TESSERA_RETURN_IF_ERROR(Touch(copy.source, copy.extents, copy.dtype));
    return Touch(copy.destination, copy.extents, copy.dtype);
  }
  absl::Status CheckInstruction(const ReduceInstruction& reduce) {
    if (reduce.terms.empty()) return Bad("a reduction of nothing");
    if (reduce.term_count < static_cast<int64_t>(reduce.terms.size())) return Bad("a reduction of fewer terms");
    made_.term_count += reduce.terms.size();
    if (reduce.destination.worker != self_) TESSERA_RETURN_IF_ERROR(MayStoreTo(reduce.destination.worker));
    made_.destination_count += 1 + reduce.pushes.size();
    for (const Operand& term : reduce.terms) TESSERA_RETURN_IF_ERROR(Touch(term, reduce.extents, reduce.dtype));
    const TransitUse* const transit = FindTransit(reduce.destination);
    for (const Operand& push : reduce.pushes) {
      if (push.worker == self_ && transit == nullptr) return Bad("own memory is pushed to");
      if (push.worker != self_) TESSERA_RETURN_IF_ERROR(MayStoreTo(push.worker));
      TESSERA_RETURN_IF_ERROR(Touch(push, reduce.extents, reduce.destination_dtype));
    }
    return transit == nullptr ? Touch(reduce.destination, reduce.extents, reduce.destination_dtype)
                              : TouchTransit(*transit, reduce.destination, reduce.extents, reduce.destination_dtype);
  }
  absl::Status CheckInstruction(const KernelInstruction& kernel) {
    const size_t inputs = kernel.inputs.size();
    if (kernel.input_extents.size() != inputs || kernel.input_dtypes.size() != inputs ||
        kernel.input_is_zero.size() != inputs || kernel.input_received_bytes.size() != inputs) {
      return Bad("a kernel whose inputs are not all described");
    }
    TESSERA_RETURN_IF_ERROR(Own(kernel.output));
    made_.kernel_input_count += inputs;
    made_.kernel_scalar_count += kernel.scalars.size();
    const bool is_matmul = std::holds_alternative<MatmulOp>(kernel.op);
    const auto* gather = std::get_if<GatherOp>(&kernel.op);
    const bool reads_peers =
        std::holds_alternative<MergeOp>(kernel.op) || (gather != nullptr && gather->from == GatherFrom::kApart);
    if (reads_peers) {
      made_.merge_count += 1;
      made_.kernel_input_count += 1;  // what it may read of the runs
    }
    if (kernel.store == KernelStore::kAdd && !is_matmul) return Bad("a kernel that can't add to its output");
    for (size_t i = 0; i < inputs; ++i) {
      if (!is_matmul && !reads_peers) TESSERA_RETURN_IF_ERROR(Own(kernel.inputs[i]));
      TESSERA_RETURN_IF_ERROR(Touch(kernel.inputs[i], kernel.input_extents[i], kernel.input_dtypes[i]));
    }
    for (int scalar : kernel.scalars) {
      if (scalar < 0 || scalar >= made_.scalar_count) return Bad(StrCat("scalar ", scalar, " of ", made_.scalar_count));
    }
    TESSERA_RETURN_IF_ERROR(
        ValidateLocalOp(kernel.op, static_cast<int>(inputs), static_cast<int>(kernel.scalars.size())));
    return Touch(kernel.output, kernel.output_extents, kernel.output_dtype);
  }

  // The extents and element size of an instruction's term, if the number names one.
  struct Term {
    const Shape* extents = nullptr;
    int64_t element_bytes = 1;
  };
  static Term FindTerm(const Instruction& instruction, int term) {
    const size_t number = static_cast<size_t>(term);
    if (term < 0) return {};
    if (const auto* copy = std::get_if<CopyInstruction>(&instruction)) {
      return term == 0 ? Term{&copy->extents, SizeBytes(copy->dtype)} : Term{};
    }
    if (const auto* reduce = std::get_if<ReduceInstruction>(&instruction)) {
      return number < reduce->terms.size() ? Term{&reduce->extents, SizeBytes(reduce->dtype)} : Term{};
    }
    const auto& kernel = std::get<KernelInstruction>(instruction);
    if (number >= kernel.inputs.size()) return {};
    return {&kernel.input_extents[number], SizeBytes(kernel.input_dtypes[number])};
  }

  // Bytes [first, last) from the place on lie in its chunks: in the one, or in several that follow each other.
  static absl::Status CheckPlace(const std::vector<MessageChunk>& chunks, const ChunkRange& place, int64_t first,
                                 int64_t last) {
    if (place.first < 0 || place.last < place.first || static_cast<size_t>(place.last) >= chunks.size()) {
      return Bad(StrCat("chunks ", place.first, " to ", place.last, " of ", chunks.size()));
    }
    int64_t bytes = 0;
    for (int c = place.first; c <= place.last; ++c) {
      const MessageChunk& chunk = chunks[static_cast<size_t>(c)];
      if (c > place.first &&
          chunk.at != chunks[static_cast<size_t>(c) - 1].at + chunks[static_cast<size_t>(c) - 1].bytes) {
        return Bad(StrCat("chunk ", c, " lies apart from the one before"));
      }
      bytes += chunk.bytes;
    }
    if (place.offset < 0 || place.offset > bytes || first < 0 || last > bytes - place.offset) {
      return Bad(StrCat("bytes ", first, " to ", last, " at ", place.offset, " of ", bytes, " in chunks"));
    }
    return absl::OkStatus();
  }
  static absl::Status CheckChunks(const std::vector<MessageChunk>& chunks, int64_t bytes, int64_t memory_bytes,
                                  size_t direct_count) {
    int64_t sum = 0, end = 0;
    for (const MessageChunk& chunk : chunks) {
      if (chunk.bytes <= 0 || chunk.at < end || chunk.direct >= static_cast<int64_t>(direct_count)) {
        return Bad(StrCat("a chunk of ", chunk.bytes, " bytes at ", chunk.at));
      }
      sum += chunk.bytes;
      end = chunk.at + chunk.bytes;
    }
    if (sum == bytes && end <= memory_bytes) return absl::OkStatus();
    return Bad(StrCat("a message of ", bytes, " bytes with chunks of ", sum));
  }

  absl::Status CheckOutgoing(const OutgoingMessage& message) {
    TESSERA_RETURN_IF_ERROR(CheckChunks(message.chunks, message.bytes, message.memory_bytes, message.parts.size()));
    int64_t bytes = 0;
    for (const MessagePart& part : message.parts) {
      if (part.sources.empty()) return Bad("a message of nothing");
      if (part.sources.size() == 1) TESSERA_RETURN_IF_ERROR(Own(part.sources[0]));
      TransitUse* const transit = FindTransit(part.sources[0]);
      if (transit != nullptr) {
        transit->takers.push_back(message.to);
        TESSERA_RETURN_IF_ERROR(TouchTransit(*transit, part.sources[0], part.extents, part.source_dtype));
      }
      for (size_t s = transit == nullptr ? 0 : 1; s < part.sources.size(); ++s) {
        TESSERA_RETURN_IF_ERROR(Touch(part.sources[s], part.extents, part.source_dtype));
      }
      if (part.sources.size() > 1 || part.source_dtype != part.dtype) {
        made_.term_count += part.sources.size();
        made_.destination_count += 1;
      }
      const int64_t part_bytes = NumElements(part.extents) * SizeBytes(part.dtype);
      TESSERA_RETURN_IF_ERROR(CheckPlace(message.chunks, part.place, 0, part_bytes));
      bytes += part_bytes;
    }
    return bytes == message.bytes ? absl::OkStatus()
                                  : Bad(StrCat("a message of ", message.bytes, " bytes with parts of ", bytes));
  }

  absl::Status CheckPiece(const Phase& phase, const InstructionPiece& piece, int previous) {
    if (piece.instruction < previous || static_cast<size_t>(piece.instruction) >= phase.instructions.size()) {
      return Bad(StrCat("a piece of instruction ", piece.instruction));
    }
    if (piece.region < 0 || static_cast<size_t>(piece.region) >= phase.messages.pieces.size()) {
      return Bad(StrCat("a piece in region ", piece.region));
    }
    TESSERA_RETURN_IF_ERROR(std::visit([this](const auto& i) { return CheckInstruction(i); }, piece.work));
    for (const StagedOperand& operand : piece.operands) {
      const Term term = FindTerm(piece.work, operand.term);
      if (term.extents == nullptr || operand.message < 0 ||
          static_cast<size_t>(operand.message) >= phase.messages.incoming.size()) {
        return Bad(StrCat("term ", operand.term, " of a piece in message ", operand.message));
      }
      TESSERA_ASSIGN_OR_RETURN(const auto touched, TouchedBytes(*term.extents, operand.strides, term.element_bytes));
      if (operand.place.offset % term.element_bytes != 0) return Bad("an operand that is not aligned in its message");
      TESSERA_RETURN_IF_ERROR(CheckPlace(phase.messages.incoming[static_cast<size_t>(operand.message)].chunks,
                                         operand.place, touched.first, touched.second));
    }
    return absl::OkStatus();
  }

  // Checks a merge of ranges: an input for each run, and in each message the samples and then a part for each vector.
  absl::Status CheckMerge(const Phase& phase) const {
    const bool is_one =
        phase.ranged_merge() != nullptr && phase.instructions.size() == 1 && phase.messages.pieces.size() <= 1;
    const auto* kernel = is_one ? std::get_if<KernelInstruction>(&phase.instructions[0]) : nullptr;
    const auto* merge = kernel == nullptr ? nullptr : std::get_if<MergeOp>(&kernel->op);
    if (merge == nullptr) return Bad("ranges of what is no merge");
    const size_t vectors = merge->result == SortResult::kPlaces ? 2 : 1;
    if (kernel->inputs.size() != vectors * merge->runs.size()) return Bad("ranges of runs that lie together");
    for (const Shape& extents : kernel->input_extents) {
      if (extents.size() != 1) return Bad("ranges of what is no vector");
    }
    for (const OutgoingMessage& message : phase.messages.outgoing) {
      if (message.parts.size() != vectors + 1) return Bad(StrCat("a message of ranges in ", message.parts.size()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckMessages(const Phase& phase) {
    for (const OutgoingMessage& message : phase.messages.outgoing) TESSERA_RETURN_IF_ERROR(CheckOutgoing(message));
    for (const IncomingMessage& message : phase.messages.incoming) {
      TESSERA_RETURN_IF_ERROR(
          CheckChunks(message.chunks, message.bytes, message.memory_bytes, phase.messages.pieces.size()));
      for (const MessageChunk& chunk : message.chunks) {
        if (chunk.direct < 0) continue;
        const InstructionPiece& piece = phase.messages.pieces[static_cast<size_t>(chunk.direct)];
        if (!std::holds_alternative<CopyInstruction>(piece.work) || piece.operands.size() != 1) {
          return Bad("a chunk that is received to where nothing is copied to");
        }
      }
    }
    int previous = 0;
    for (const InstructionPiece& piece : phase.messages.pieces) {
      TESSERA_RETURN_IF_ERROR(CheckPiece(phase, piece, previous));
      previous = piece.instruction;
    }
    return absl::OkStatus();
  }

  ProgramTemplate& made_;
  const WorkerIndex self_;
  const std::vector<WorkerIndex>* pushes_to_ = nullptr;  // of the phase at hand
};

}  // namespace

absl::StatusOr<std::pair<int64_t, int64_t>> TouchedBytes(absl::Span<const int64_t> extents,
                                                         absl::Span<const int64_t> strides, int64_t element_bytes) {
  if (extents.size() != strides.size() || extents.size() > static_cast<size_t>(kMaxRank)) {
    return Bad(StrCat("extents of rank ", extents.size(), " with ", strides.size(), " strides"));
  }
  __extension__ using Wide = __int128;
  constexpr Wide kLimit = int64_t{1} << 62;
  Wide lowest = 0, highest = 0;
  bool empty = false;
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] < 0) return Bad("a negative extent");
    if (extents[d] == 0) empty = true;
    const Wide reach = static_cast<Wide>(extents[d] - 1) * strides[d];
    if (reach < 0) lowest += reach;
    if (reach > 0) highest += reach;
    if (lowest < -kLimit || highest > kLimit)
      return Bad(StrCat("an operand that walks beyond 2^62: ", ToText(extents)));
  }
  if (empty) return std::pair<int64_t, int64_t>(0, 0);
  lowest *= element_bytes;
  highest = (highest + 1) * element_bytes;
  if (lowest < -kLimit || highest > kLimit) return Bad(StrCat("an operand that walks beyond 2^62: ", ToText(extents)));
  return std::pair<int64_t, int64_t>(static_cast<int64_t>(lowest), static_cast<int64_t>(highest));
}

namespace {

// Gives each kernel of the program a form that no other one of the process has.
void NumberForms(Program& program) {
  static std::atomic<uint64_t> last_form = 0;
  const auto number = [](Instruction& instruction) {
    if (auto* kernel = std::get_if<KernelInstruction>(&instruction)) kernel->form = ++last_form;
  };
  for (Phase& phase : program.phases) {
    for (Instruction& instruction : phase.instructions) number(instruction);
    for (InstructionPiece& piece : phase.messages.pieces) number(piece.work);
  }
}

}  // namespace

ProgramTemplate MakeTemplate(Program program, int buffer_count, int scalar_count) {
  ProgramTemplate made;
  made.program = std::move(program);
  NumberForms(made.program);
  made.buffer_count = buffer_count;
  made.scalar_count = scalar_count;
  made.status = made.program.status;
  if (made.status.ok()) made.status = TemplateChecker(made).Check();
  return made;
}

namespace {

// Adds the range that a rank touches of its own memory.
void AddRange(const CallMemory& memory, size_t rank, int64_t pieces, const CollectiveCall& call,
              ProgramTemplate& made) {
  const int64_t first = memory.Of(rank);
  made.ranges.push_back({made.program.worker, memory.parameter, first, first + pieces * call.piece_bytes()});
}

void AddCalls(const Plan& plan, ProgramTemplate& made) {
  made.calls.resize(made.program.phases.size());
  const std::vector<int> phases = PhasesOf(plan);
  for (size_t s = 0; s < plan.steps.size(); s = EndOfPhase(phases, s)) {
    PhaseCalls& phase = made.calls[static_cast<size_t>(phases[s]) - 1];
    for (CollectiveCall& call : CallsOfPhase(plan, s, EndOfPhase(phases, s))) {
      const auto self = std::lower_bound(call.workers.begin(), call.workers.end(), made.program.worker);
      if (self == call.workers.end() || *self != made.program.worker) continue;
      phase.rank = static_cast<size_t>(self - call.workers.begin());
      const auto ranks = static_cast<int64_t>(call.workers.size());
      if (call.gives(phase.rank)) {
        AddRange(call.source, phase.rank, call.kind == CallKind::kReduceScatter ? ranks : 1, call, made);
      }
      if (call.takes(phase.rank)) {
        AddRange(call.destination, phase.rank, call.kind == CallKind::kAllGather ? ranks : 1, call, made);
      }
      phase.calls.push_back(std::move(call));
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ProgramTemplate>> TemplateCache::Make(const Plan& plan) const {
  if (templates_.size() >= kMaxTemplates) {
    return absl::ResourceExhaustedError(StrCat("worker ", self_.value, ": ", templates_.size(),
                                               " templates are known, no more are allowed (max_templates)"));
  }
  TESSERA_RETURN_IF_ERROR(VerifyPlan(plan));  // it came over a socket
  TESSERA_ASSIGN_OR_RETURN(Program program, LowerPlan(plan, self_, messages_, max_chunk_bytes_));
  auto made = std::make_shared<ProgramTemplate>(
      MakeTemplate(std::move(program), static_cast<int>(plan.buffers.size()), plan.scalar_count));
  if (calls_ == CallLists::kBuild) AddCalls(plan, *made);
  return made;
}

absl::Status TemplateCache::Define(TemplateId id, const Plan& plan, int64_t read_ns) {
  const int64_t began_ns = ThreadCpuNs();
  templates_.erase(id);
  auto made = Make(plan);
  const absl::Status status = made.status();
  templates_.emplace(id, Entry{std::move(made), read_ns + ThreadCpuNs() - began_ns});
  return status;
}

void TemplateCache::Refuse(TemplateId id, const absl::Status& why) {
  templates_.erase(id);
  if (templates_.size() < kMaxTemplates) templates_.emplace(id, Entry{why});
}

void TemplateCache::Forget(TemplateId id) { templates_.erase(id); }

absl::StatusOr<std::shared_ptr<const ProgramTemplate>> TemplateCache::Find(TemplateId id) const {
  const auto it = templates_.find(id);
  if (it == templates_.end()) {
    return absl::InvalidArgumentError(StrCat("worker ", self_.value, ": template ", id.value, " is not known"));
  }
  return it->second.made;
}

int64_t TemplateCache::TakePreparedNs(TemplateId id) {
  const auto it = templates_.find(id);
  return it == templates_.end() ? 0 : std::exchange(it->second.prepared_ns, 0);
}

}  // namespace tessera
