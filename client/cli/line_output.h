#pragma once

// LineOutput: the output of one process on a terminal that several share. It hands on whole lines, each with a prefix,
// so lines of two processes never mix.
//
//   LineOutput lines("[rank 2] ");
//   lines.Add("loss 0.")    == ""
//   lines.Add("5\nstep ")   == "[rank 2] loss 0.5\n"
//   lines.Finish()          == "[rank 2] step \n"
//
// Law: a line longer than kMaxLineBytes is handed on in pieces, each a line.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

class LineOutput {
 public:
  static constexpr size_t kMaxLineBytes = 64 * 1024;  // docs/limits.md: max_line_bytes

  explicit LineOutput(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that `bytes` completes.
  std::string Add(std::string_view bytes);
  // The line that has no end yet, with one; "" if there is none.
  std::string Finish();

 private:
  std::string prefix_;
  std::string pending_;
};

}  // namespace tessera
