#pragma once

// RecordedGraph: a lenient recording as one call (schemas/ops/graph_text.h), so that what a function has asked for once
// is one record from then on.
//
//   recorded: t = x * 2;  y = t + b;  t goes away          MakeRecordedGraph(recording, {1})
//   graph(x, b) with the notation "multiply|%0|$2\nadd|%2|%1\nreturn|%3"
//
// Ops that no wanted result depends on are left out. A literal of few elements is said by numbers: iota and a choice
// for each element, or one fill where all are equal.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/recording.h"

namespace tessera {

inline constexpr int64_t kMaxGraphBytes = 16 << 20;  // docs/limits.md: max_graph_bytes
inline constexpr size_t kMaxLiteralElements = 256;   // docs/limits.md: max_literal_elements

struct RecordedGraph {
  std::string notation;
  std::vector<int> inputs;   // of the recording, in the order of the call's operands
  std::optional<Mesh> mesh;  // of a call without operands: where its ops are
};

// `results`: which of the recording's results the call gives; a value below 0 is a literal. FailedPrecondition says why
// it can't be said as one call: the recording is spoiled; it draws random numbers, which each call draws anew; a result
// shows the elements of an input, as a view does; it takes too many tensors, has too many ops, or its values are large;
// an op is on a mesh of none of its tensors, or without tensors ops are on several.
absl::StatusOr<RecordedGraph> MakeRecordedGraph(const Recording& recording, absl::Span<const int> results);

}  // namespace tessera
