// CheckPrograms: a minimal executor of programs, on vectors of doubles.

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/program.h"
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

using Messages = std::map<std::pair<int32_t, int32_t>, std::vector<double>>;  // (from, to)

// Packs what every worker sends in a phase; the sender's and the receiver's bytes must agree.
absl::Status Pack(const Runner& runner, const Program& program, size_t phase, Messages& messages) {
  for (const OutgoingMessage& out : program.phases[phase].outgoing) {
    std::vector<double>& message = messages[{program.worker.value, out.to.value}];
    for (const MessagePart& part : out.parts) {
      if (part.source.worker != program.worker) return absl::InternalError("sends another's memory");
      const std::vector<double> values = runner.Gather(part.source, part.extents);
      message.insert(message.end(), values.begin(), values.end());
    }
    if (static_cast<int64_t>(message.size()) * kElementBytes != out.bytes) return absl::InternalError("bytes differ");
  }
  return absl::OkStatus();
}

absl::Status CheckPeers(const std::vector<Program>& programs, size_t phase) {
  std::set<std::pair<int32_t, int32_t>> reads;
  std::set<std::pair<int32_t, int32_t>> read_by;
  for (const Program& program : programs) {
    for (const WorkerIndex peer : program.phases[phase].reads_from) reads.emplace(program.worker.value, peer.value);
    for (const WorkerIndex peer : program.phases[phase].read_by) read_by.emplace(peer.value, program.worker.value);
  }
  if (reads != read_by) return absl::InternalError("reads_from and read_by don't pair up");
  std::set<std::pair<int32_t, int32_t>> pushes;
  std::set<std::pair<int32_t, int32_t>> pushed_by;
  for (const Program& program : programs) {
    for (const WorkerIndex peer : program.phases[phase].pushes_to) pushes.emplace(program.worker.value, peer.value);
    for (const WorkerIndex peer : program.phases[phase].pushed_by) pushed_by.emplace(peer.value, program.worker.value);
  }
  return pushes == pushed_by ? absl::OkStatus() : absl::InternalError("pushes_to and pushed_by don't pair up");
}

double Reduced(ReduceOp op, const std::vector<std::vector<double>>& terms, size_t i) {
  double value = terms[0][i];
  for (size_t t = 1; t < terms.size(); ++t) {
    const double term = terms[t][i];
    value = op == ReduceOp::kSum ? value + term : op == ReduceOp::kMax ? std::max(value, term) : std::min(value, term);
  }
  return value;
}

// Runs one worker's phase; what peers hold comes from their messages, and must be what lies there.
absl::Status RunPhase(Runner& runner, const Program& program, size_t number, const Messages& messages) {
  const Phase& phase = program.phases[number];
  std::map<std::pair<int, int>, std::vector<double>> arrived;
  const auto read = [&](int instruction, int term, const Operand& operand, const Shape& extents) {
    if (operand.worker == program.worker) return runner.Gather(operand, extents);
    return arrived.at({instruction, term});
  };
  const auto operand_of = [&](const IncomingOperand& in) -> std::pair<const Operand*, const Shape*> {
    const Instruction& instruction = phase.instructions[static_cast<size_t>(in.instruction)];
    if (const auto* copy = std::get_if<CopyInstruction>(&instruction)) return {&copy->source, &copy->extents};
    const auto& reduce = std::get<ReduceInstruction>(instruction);
    return {&reduce.terms[static_cast<size_t>(in.term)], &reduce.extents};
  };
  for (const IncomingMessage& in : phase.incoming) {
    const std::vector<double>& message = messages.at({in.from.value, program.worker.value});
    if (static_cast<int64_t>(message.size()) * kElementBytes != in.bytes) return absl::InternalError("sizes differ");
    for (const IncomingOperand& piece : in.operands) {
      const auto [operand, extents] = operand_of(piece);
      const auto first = message.begin() + piece.message_offset_bytes / kElementBytes;
      arrived[{piece.instruction, piece.term}] = {first, first + NumElements(*extents)};
      if (arrived[{piece.instruction, piece.term}] != runner.Gather(*operand, *extents)) {
        return absl::InternalError("a message differs from the memory it stands for");
      }
    }
  }
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    const int id = static_cast<int>(i);
    if (const auto* copy = std::get_if<CopyInstruction>(&phase.instructions[i])) {
      const std::vector<double> values = read(id, 0, copy->source, copy->extents);
      // Where it is pushed, the message says what is here already.
      if (phase.delivery == Delivery::kPush && runner.Gather(copy->destination, copy->extents) != values) {
        return absl::InternalError("a cell was not pushed to its place");
      }
      runner.Scatter(copy->destination, copy->extents, values);
    } else if (const auto* reduce = std::get_if<ReduceInstruction>(&phase.instructions[i])) {
      std::vector<std::vector<double>> terms;
      for (size_t t = 0; t < reduce->terms.size(); ++t) {
        terms.push_back(read(id, static_cast<int>(t), reduce->terms[t], reduce->extents));
      }
      std::vector<double> values(terms[0].size());
      for (size_t e = 0; e < values.size(); ++e) values[e] = Reduced(reduce->op, terms, e);
      runner.Scatter(reduce->destination, reduce->extents, values);
      for (const Operand& push : reduce->pushes) runner.Scatter(push, reduce->extents, values);
    } else {
      return absl::InternalError("a kernel in a plan of exchanges");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrograms(const Plan& plan, const std::vector<std::vector<double>>& inputs) {
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
      runner.Scatter(operand, extents, shards[i][flat]);
    }
  }
  std::vector<Program> programs;
  for (const int32_t worker : workers) {
    TESSERA_ASSIGN_OR_RETURN(Program program, LowerPlan(plan, WorkerIndex(worker), MessageLists::kBuild));
    programs.push_back(std::move(program));
  }
  for (size_t phase = 0; phase < plan.steps.size(); ++phase) {
    TESSERA_RETURN_IF_ERROR(CheckPeers(programs, phase));
    Messages messages;
    for (const Program& program : programs) TESSERA_RETURN_IF_ERROR(Pack(runner, program, phase, messages));
    for (const Program& program : programs) TESSERA_RETURN_IF_ERROR(RunPhase(runner, program, phase, messages));
  }
  TESSERA_ASSIGN_OR_RETURN(const InterpretResult expected, Interpret(plan, shards, {}));
  const TensorSpec& output = plan.values[static_cast<size_t>(plan.outputs[0])].spec;
  for (size_t flat = 0; flat < expected.outputs[0].size(); ++flat) {
    const Operand operand = runner.Whole(plan.outputs[0], output.mesh.workers()[flat], extents);
    if (runner.Gather(operand, extents) != expected.outputs[0][flat]) {
      return absl::InternalError(
          StrCat("position ", flat, " differs from Interpret\n", ToText(programs[flat]), ToText(plan)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
