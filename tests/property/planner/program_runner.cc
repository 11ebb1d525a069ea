// CheckPrograms: a minimal executor of programs, on vectors of doubles.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/program.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr int64_t kElementBytes = sizeof(double);

class Runner {
 public:
  Runner(const Plan& plan, std::set<int32_t> workers) : plan_(plan) {
    for (const int32_t worker : workers) {
      for (const PlanBuffer& buffer : plan.buffers) {
        memory_[worker].emplace_back(static_cast<size_t>(buffer.bytes / kElementBytes), -1e300);
      }
    }
  }

  std::vector<double> Gather(const Operand& operand, const Shape& extents) const {
    const std::vector<double>& buffer = memory_.at(operand.worker.value)[static_cast<size_t>(operand.parameter)];
    std::vector<double> values;
    Visit(operand, extents, [&](size_t at) { values.push_back(buffer.at(at)); });
    return values;
  }
  void Scatter(const Operand& operand, const Shape& extents, const std::vector<double>& values) {
    std::vector<double>& buffer = memory_.at(operand.worker.value)[static_cast<size_t>(operand.parameter)];
    size_t next = 0;
    Visit(operand, extents, [&](size_t at) { buffer.at(at) = values.at(next++); });
  }
  int32_t HostOf(WorkerIndex worker) const { return plan_.hosts.HostOf(worker); }
  // The operand of a program's worker as the plan's value, at its position.
  Operand Whole(int value, WorkerIndex worker, Shape& extents) const {
    const PlanValue& v = plan_.values[static_cast<size_t>(value)];
    extents = BoxShape(LocalBox(v.spec, v.spec.mesh.PositionAt(*v.spec.mesh.FindWorker(worker))));
    return {worker, v.buffer, v.offset * kElementBytes, v.strides};
  }

 private:
  template <typename Visitor>
  static void Visit(const Operand& operand, const Shape& extents, const Visitor& visit) {
    for (int64_t i = 0; i < NumElements(extents); ++i) {
      int64_t rest = i;
      int64_t at = operand.offset_bytes / kElementBytes;
      for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) at += rest % extents[d] * operand.strides[d];
      visit(static_cast<size_t>(at));
    }
  }

  const Plan& plan_;
  std::map<int32_t, std::vector<std::vector<double>>> memory_;
};

// The memory of a whole message, and how it was cut.
struct Message {
  std::vector<double> memory;
  std::vector<MessageChunk> chunks;
};
using Messages = std::map<std::pair<int32_t, int32_t>, Message>;  // (from, to)

// Where a place in a message's chunks begins in its memory.
size_t Begin(const std::vector<MessageChunk>& chunks, const ChunkRange& place) {
  return static_cast<size_t>((chunks.at(static_cast<size_t>(place.first)).at + place.offset) / kElementBytes);
}

double Reduced(ReduceOp op, const std::vector<std::vector<double>>& terms, size_t i) {
  double value = terms[0][i];
  for (size_t t = 1; t < terms.size(); ++t) {
    const double term = terms[t][i];
    switch (op) {
      case ReduceOp::kMax: value = std::max(value, term); break;
      case ReduceOp::kMin: value = std::min(value, term); break;
      case ReduceOp::kProduct: value *= term; break;
      case ReduceOp::kBand:
        value = static_cast<double>(static_cast<int64_t>(value) & static_cast<int64_t>(term));
        break;
      case ReduceOp::kBor: value = static_cast<double>(static_cast<int64_t>(value) | static_cast<int64_t>(term)); break;
      case ReduceOp::kBxor:
        value = static_cast<double>(static_cast<int64_t>(value) ^ static_cast<int64_t>(term));
        break;
      case ReduceOp::kSum:
      case ReduceOp::kAvg: value += term; break;
    }
  }
  return value;
}

// Packs what every worker sends in a phase. A sum is of terms on the
// sender's host, one its own.
absl::Status Pack(const Runner& runner, const Program& program, const WorkerHosts& hosts, size_t phase,
                  Messages& messages) {
  for (const OutgoingMessage& out : program.phases[phase].messages.outgoing) {
    Message& message = messages[{program.worker.value, out.to.value}];
    message.chunks = out.chunks;
    message.memory.assign(static_cast<size_t>(out.memory_bytes / kElementBytes), -1e300);
    size_t packed = 0;
    for (const MessagePart& part : out.parts) {
      std::vector<std::vector<double>> terms;
      bool has_own = false;
      for (const Operand& source : part.sources) {
        has_own = has_own || source.worker == program.worker;
        if (hosts.HostOf(source.worker) != hosts.HostOf(program.worker)) {
          return absl::InternalError("adds up another host's memory");
        }
        terms.push_back(runner.Gather(source, part.extents));
      }
      if (!has_own) return absl::InternalError("sends another's memory");
      if (terms.size() > 1 && hosts.HostOf(out.to) == hosts.HostOf(program.worker)) {
        return absl::InternalError("adds up for a peer that could read the terms");
      }
      const size_t at = Begin(out.chunks, part.place);
      for (size_t e = 0; e < terms[0].size(); ++e) message.memory.at(at + e) = Reduced(part.op, terms, e);
      packed += terms[0].size();
    }
    if (static_cast<int64_t>(packed) * kElementBytes != out.bytes) return absl::InternalError("bytes differ");
  }
  return absl::OkStatus();
}

absl::Status CheckPeers(const std::vector<Program>& programs, size_t phase) {
  std::set<std::pair<int32_t, int32_t>> reads;
  std::set<std::pair<int32_t, int32_t>> read_by;
  for (const Program& program : programs) {
    for (const WorkerIndex peer : program.phases[phase].peers.reads_from)
      reads.emplace(program.worker.value, peer.value);
    for (const WorkerIndex peer : program.phases[phase].peers.read_by)
      read_by.emplace(peer.value, program.worker.value);
  }
  if (reads != read_by) return absl::InternalError("reads_from and read_by don't pair up");
  std::set<std::pair<int32_t, int32_t>> pushes;
  std::set<std::pair<int32_t, int32_t>> pushed_by;
  for (const Program& program : programs) {
    for (const WorkerIndex peer : program.phases[phase].peers.pushes_to)
      pushes.emplace(program.worker.value, peer.value);
    for (const WorkerIndex peer : program.phases[phase].peers.pushed_by)
      pushed_by.emplace(peer.value, program.worker.value);
  }
  return pushes == pushed_by ? absl::OkStatus() : absl::InternalError("pushes_to and pushed_by don't pair up");
}

// Every index of `extents`, as letters with values.
template <typename Visitor>
void ForEachLetter(const std::string& letters, const std::map<char, int64_t>& extents, std::map<char, int64_t>& index,
                   size_t next, const Visitor& visit) {
  if (next == letters.size()) return visit();
  for (int64_t i = 0; i < extents.at(letters[next]); ++i) {
    index[letters[next]] = i;
    ForEachLetter(letters, extents, index, next + 1, visit);
  }
}

// The product of two dense arrays by the notation, added to `result`, which is dense too.
void Multiply(const KernelInstruction& kernel, const std::array<std::vector<double>, 2>& inputs,
              std::vector<double>& result) {
  const Contraction& notation = std::get<MatmulOp>(kernel.op).notation;
  const std::array<const std::string*, 2> letters = {&notation.left, &notation.right};
  std::map<char, int64_t> extents;
  std::string summed;
  for (size_t i = 0; i < 2; ++i) {
    for (size_t d = 0; d < letters[i]->size(); ++d) {
      const char letter = (*letters[i])[d];
      extents[letter] = kernel.input_extents[i][d];
      const bool is_new = summed.find(letter) == std::string::npos;
      if (is_new && notation.output.find(letter) == std::string::npos) summed += letter;
    }
  }
  std::map<char, int64_t> index;
  const auto at = [&](const std::string& of) {
    int64_t flat = 0;
    for (const char letter : of) flat = flat * extents[letter] + index[letter];
    return static_cast<size_t>(flat);
  };
  ForEachLetter(notation.output, extents, index, 0, [&] {
    ForEachLetter(summed, extents, index, 0, [&] {
      result.at(at(notation.output)) += inputs[0].at(at(notation.left)) * inputs[1].at(at(notation.right));
    });
  });
}

// An operand in a message.
std::vector<double> Unpack(const Message& message, const StagedOperand& operand, const Shape& extents) {
  std::vector<double> values;
  for (int64_t i = 0; i < NumElements(extents); ++i) {
    int64_t rest = i;
    int64_t at = static_cast<int64_t>(Begin(message.chunks, operand.place));
    for (size_t d = extents.size(); d-- > 0; rest /= extents[d]) at += rest % extents[d] * operand.strides[d];
    values.push_back(message.memory.at(static_cast<size_t>(at)));
  }
  return values;
}

// Each byte of a contraction is received once: what the messages bring is what kernels count in mapped memory.
absl::Status CheckReceived(const Phase& phase) {
  int64_t counted = 0;
  bool is_contraction = false;
  for (const Instruction& instruction : phase.instructions) {
    const auto* kernel = std::get_if<KernelInstruction>(&instruction);
    if (kernel == nullptr) return absl::OkStatus();  // the messages are those of an exchange
    is_contraction = true;
    for (const int64_t bytes : kernel->input_received_bytes) counted += bytes;
  }
  int64_t messages = 0;
  for (const IncomingMessage& in : phase.messages.incoming) messages += in.bytes;
  if (is_contraction && counted != messages) {
    return absl::InternalError(StrCat("kernels count ", counted, " received bytes, messages have ", messages));
  }
  return absl::OkStatus();
}

// Bytes that a phase has its worker take from others: terms that it copies or reduces, bytes that kernels count, and
// the terms of its host that it adds up for another one.
int64_t ReceivedBytes(const Program& program, const Phase& phase) {
  int64_t bytes = 0;
  const auto take = [&](const Operand& from, const Shape& extents) {
    if (from.worker != program.worker) bytes += NumElements(extents) * kElementBytes;
  };
  for (const Instruction& instruction : phase.instructions) {
    if (const auto* copy = std::get_if<CopyInstruction>(&instruction)) {
      take(copy->source, copy->extents);
    } else if (const auto* reduce = std::get_if<ReduceInstruction>(&instruction)) {
      for (const Operand& term : reduce->terms) take(term, reduce->extents);
    } else {
      for (const int64_t counted : std::get<KernelInstruction>(instruction).input_received_bytes) bytes += counted;
    }
  }
  for (const OutgoingMessage& out : phase.messages.outgoing) {
    for (const MessagePart& part : out.parts) {
      for (const Operand& source : part.sources) take(source, part.extents);
    }
  }
  return bytes;
}

absl::Status CheckTraffic(const Plan& plan, const std::vector<Program>& programs) {
  const PlanTraffic traffic = TrafficOf(plan);
  std::map<WorkerIndex, int64_t> planned;
  for (size_t i = 0; i < traffic.workers.size(); ++i) planned[traffic.workers[i]] = traffic.received_bytes[i];
  for (const Program& program : programs) {
    int64_t bytes = 0;
    for (const Phase& phase : program.phases) bytes += ReceivedBytes(program, phase);
    if (bytes == planned[program.worker]) continue;
    return absl::InternalError(StrCat("worker ", program.worker.value, " takes ", bytes, " bytes, the plan says ",
                                      planned[program.worker], "\n", ToText(plan)));
  }
  return absl::OkStatus();
}

using Arrived = std::map<int, std::vector<double>>;  // by term

// The terms of a piece that messages bring; each must be what lies in the memory it stands for.
absl::StatusOr<Arrived> TakeOperands(const Runner& runner, const Program& program, const Phase& phase,
                                     const InstructionPiece& piece, const Messages& messages) {
  Arrived arrived;
  for (const StagedOperand& operand : piece.operands) {
    const size_t term = static_cast<size_t>(operand.term);
    const Operand* memory = nullptr;
    const Shape* extents = nullptr;
    if (const auto* copy = std::get_if<CopyInstruction>(&piece.work)) {
      memory = &copy->source, extents = &copy->extents;
    } else if (const auto* kernel = std::get_if<KernelInstruction>(&piece.work)) {
      memory = &kernel->inputs[term], extents = &kernel->input_extents[term];
    } else {
      const auto& reduce = std::get<ReduceInstruction>(piece.work);
      memory = &reduce.terms[term], extents = &reduce.extents;
    }
    const IncomingMessage& in = phase.messages.incoming[static_cast<size_t>(operand.message)];
    arrived[operand.term] = Unpack(messages.at({in.from.value, program.worker.value}), operand, *extents);
    const bool is_memory = !std::binary_search(phase.peers.sums_from.begin(), phase.peers.sums_from.end(), in.from);
    if (is_memory && arrived[operand.term] != runner.Gather(*memory, *extents)) {
      return absl::InternalError("a message differs from the memory it stands for");
    }
  }
  return arrived;
}

absl::Status RunWork(Runner& runner, const Program& program, const Phase& phase, const Instruction& work,
                     const Arrived& arrived) {
  const auto read = [&](int term, const Operand& operand, const Shape& extents) {
    return operand.worker == program.worker || NumElements(extents) == 0 ? runner.Gather(operand, extents)
                                                                         : arrived.at(term);
  };
  if (const auto* copy = std::get_if<CopyInstruction>(&work)) {
    const std::vector<double> values = read(0, copy->source, copy->extents);
    // Where it is pushed, the message says what is here already.
    const bool is_near = runner.HostOf(copy->source.worker) == runner.HostOf(program.worker);
    if (phase.is_pushed() && is_near && runner.Gather(copy->destination, copy->extents) != values) {
      return absl::InternalError("a cell was not pushed to its place");
    }
    runner.Scatter(copy->destination, copy->extents, values);
  } else if (const auto* reduce = std::get_if<ReduceInstruction>(&work)) {
    std::vector<std::vector<double>> terms;
    for (size_t t = 0; t < reduce->terms.size(); ++t) {
      terms.push_back(read(static_cast<int>(t), reduce->terms[t], reduce->extents));
    }
    std::vector<double> values(terms[0].size());
    for (size_t e = 0; e < values.size(); ++e) {
      values[e] = Reduced(reduce->op, terms, e);
      if (reduce->op == ReduceOp::kAvg) values[e] /= static_cast<double>(reduce->term_count);
    }
    runner.Scatter(reduce->destination, reduce->extents, values);
    for (const Operand& push : reduce->pushes) runner.Scatter(push, reduce->extents, values);
  } else {
    const auto& kernel = std::get<KernelInstruction>(work);
    if (!std::holds_alternative<MatmulOp>(kernel.op)) return absl::InternalError("a kernel that is no matmul");
    const std::array<std::vector<double>, 2> inputs = {read(0, kernel.inputs[0], kernel.input_extents[0]),
                                                       read(1, kernel.inputs[1], kernel.input_extents[1])};
    std::vector<double> result(static_cast<size_t>(NumElements(kernel.output_extents)), 0);
    if (kernel.store == KernelStore::kAdd) result = runner.Gather(kernel.output, kernel.output_extents);
    Multiply(kernel, inputs, result);
    runner.Scatter(kernel.output, kernel.output_extents, result);
  }
  return absl::OkStatus();
}

// The pieces of a contraction: regions in another order than they have in the program.
absl::Status RunProducts(Runner& runner, const Program& program, const Phase& phase, const Messages& messages) {
  std::vector<const InstructionPiece*> pieces;
  for (const InstructionPiece& piece : phase.messages.pieces) pieces.push_back(&piece);
  std::stable_sort(pieces.begin(), pieces.end(), [](const auto* a, const auto* b) { return a->region > b->region; });
  std::set<int> cut;
  for (const InstructionPiece* piece : pieces) {
    cut.insert(piece->instruction);
    TESSERA_ASSIGN_OR_RETURN(const Arrived arrived, TakeOperands(runner, program, phase, *piece, messages));
    TESSERA_RETURN_IF_ERROR(RunWork(runner, program, phase, piece->work, arrived));
  }
  return cut.size() == phase.instructions.size() ? absl::OkStatus() : absl::InternalError("a product without pieces");
}

// Runs one worker's phase: what peers hold comes from their messages, by pieces.
absl::Status RunPhase(Runner& runner, const Program& program, size_t number, const Messages& messages) {
  const Phase& phase = program.phases[number];
  for (const IncomingMessage& in : phase.messages.incoming) {
    if (in.bytes == 0) continue;
    if (messages.at({in.from.value, program.worker.value}).chunks.size() != in.chunks.size()) {
      return absl::InternalError("sender and receiver cut differently");
    }
    for (size_t c = 0; c < in.chunks.size(); ++c) {
      const MessageChunk& sent = messages.at({in.from.value, program.worker.value}).chunks[c];
      if (sent.bytes != in.chunks[c].bytes || sent.at != in.chunks[c].at) {
        return absl::InternalError("sender and receiver cut differently");
      }
    }
  }
  TESSERA_RETURN_IF_ERROR(CheckReceived(phase));
  if (!phase.messages.pieces.empty() && std::holds_alternative<KernelInstruction>(phase.messages.pieces[0].work)) {
    return RunProducts(runner, program, phase, messages);
  }
  size_t next = 0;
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    const bool is_cut =
        next < phase.messages.pieces.size() && phase.messages.pieces[next].instruction == static_cast<int>(i);
    if (!is_cut) TESSERA_RETURN_IF_ERROR(RunWork(runner, program, phase, phase.instructions[i], {}));
    for (; next < phase.messages.pieces.size() && phase.messages.pieces[next].instruction == static_cast<int>(i);
         ++next) {
      TESSERA_ASSIGN_OR_RETURN(const Arrived arrived,
                               TakeOperands(runner, program, phase, phase.messages.pieces[next], messages));
      TESSERA_RETURN_IF_ERROR(RunWork(runner, program, phase, phase.messages.pieces[next].work, arrived));
    }
  }
  return absl::OkStatus();
}

// Small whole numbers.
std::vector<double> DoublesOf(const std::vector<Number>& numbers) {
  std::vector<double> doubles;
  for (const Number& number : numbers) doubles.push_back(static_cast<double>(number));
  return doubles;
}

}  // namespace

absl::Status CheckPrograms(const Plan& plan, const std::vector<std::vector<double>>& inputs, int64_t max_chunk_bytes) {
  std::set<int32_t> workers;
  for (const PlanBuffer& buffer : plan.buffers) {
    for (const WorkerIndex worker : buffer.mesh.workers()) workers.insert(worker.value);
  }
  Runner runner(plan, workers);
  std::vector<ShardedArray> shards;
  Shape extents;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[i])].spec;
    shards.push_back(SplitDense(spec, inputs[i]));
    for (size_t flat = 0; flat < shards[i].size(); ++flat) {
      const Operand operand = runner.Whole(plan.inputs[i], spec.mesh.workers()[flat], extents);
      runner.Scatter(operand, extents, DoublesOf(shards[i][flat]));
    }
  }
  std::vector<Program> programs;
  for (const int32_t worker : workers) {
    TESSERA_ASSIGN_OR_RETURN(Program program,
                             LowerPlan(plan, WorkerIndex(worker), MessageLists::kBuild, max_chunk_bytes));
    programs.push_back(std::move(program));
  }
  TESSERA_RETURN_IF_ERROR(CheckTraffic(plan, programs));
  for (size_t phase = 0; phase < programs[0].phases.size(); ++phase) {
    TESSERA_RETURN_IF_ERROR(CheckPeers(programs, phase));
    Messages messages;
    for (const Program& program : programs) TESSERA_RETURN_IF_ERROR(Pack(runner, program, plan.hosts, phase, messages));
    for (const Program& program : programs) TESSERA_RETURN_IF_ERROR(RunPhase(runner, program, phase, messages));
  }
  TESSERA_ASSIGN_OR_RETURN(const InterpretResult expected, Interpret(plan, shards, {}));
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const TensorSpec& output = plan.values[static_cast<size_t>(plan.outputs[i])].spec;
    for (size_t flat = 0; flat < expected.outputs[i].size(); ++flat) {
      const Operand operand = runner.Whole(plan.outputs[i], output.mesh.workers()[flat], extents);
      if (runner.Gather(operand, extents) == DoublesOf(expected.outputs[i][flat])) continue;
      return absl::InternalError(StrCat("output ", i, ", position ", flat, " differs from Interpret\n",
                                        ToText(programs[flat % programs.size()]), ToText(plan)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrograms(const Plan& plan, const std::vector<std::vector<double>>& inputs) {
  TESSERA_RETURN_IF_ERROR(CheckPrograms(plan, inputs, kMaxChunkBytes));
  return CheckPrograms(plan, inputs, 5 * kElementBytes);
}

}  // namespace tessera
