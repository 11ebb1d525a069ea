#pragma once

// Decoder: the process beside a worker that reads and writes what lies in a file in a form that must be decoded: HDF5
// that is chunked or compressed, Parquet, zarr. It is tessera.decoder, run by the Python that the operator names,
// started when it is first needed. The worker opens files, inside its roots, and hands them over; values come and go by
// a buffer that both map, and that no other process of the decoder's ever maps. A decoder that dies, hangs or takes too
// much memory fails what it was asked, and the next question starts another one; the worker never trusts what it says,
// and never waits for it longer than `timeout_ms`, nor longer than kDecoderEndMs twice for its end. A decoder whose
// asker has gone is ended, too, unless it answers within kDecoderUnwantedMs.
//
//   Decoder decoder({.python = "/usr/bin/python3"});
//   TESSERA_ASSIGN_OR_RETURN(std::string json, decoder.Describe(file, "x.h5"));

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/limits.h"
#include "server/worker/files/file_roots.h"

namespace tessera {

inline constexpr int64_t kDecoderBufferBytes = int64_t{16} << 20;  // docs/limits.md: decoder_buffer_bytes
inline constexpr int64_t kDecoderTimeoutMs = 60'000;               // docs/limits.md: decoder_timeout
inline constexpr int kDecoderEndMs = 1000;                         // docs/limits.md: decoder_end
inline constexpr int64_t kDecoderUnwantedMs = 200;                 // docs/limits.md: decoder_unwanted
inline constexpr int64_t kDecoderLookMs = 50;                      // docs/limits.md: decoder_look
inline constexpr size_t kMaxEndingDecoders = 4;                    // docs/limits.md: max_ending_decoders
inline constexpr size_t kMaxDecoderRequest = size_t{64} << 10;     // docs/limits.md: max_decoder_request

struct DecoderOptions {
  std::string python;  // empty: there is none, and whatever is asked is refused
  int64_t memory_bytes = kDecoderMemoryBytes;
  int64_t timeout_ms = kDecoderTimeoutMs;
  std::vector<std::string> folders = {};  // FileRoots::Make's: the kernel keeps it to them, where it can
  mode_t umask = 022;                     // of the files that it makes in a folder
  // MissingConfinement's: where it isn't empty, all questions are refused, unless the operator allows decoders that the
  // kernel doesn't confine.
  std::string missing_confinement = {};
  bool may_be_unconfined = false;
};

// Elements of a tensor of the file: of its row-major bytes those from `offset_bytes` on, by these strides.
struct DecodedPart {
  std::string member;  // the tensor's name in the file
  int64_t offset_bytes = 0;
  std::vector<int64_t> extents, strides;  // strides in bytes
  int64_t element_bytes = 1;
};

// One question at a time, of one thread. Paths are for their endings, which say the format, and for errors.
class Decoder {
 public:
  // Whether somebody still waits for the answer; asked on the question's thread while the decoder works. Null: always.
  // Cancelled where the decoder was ended because nobody does.
  using IsWanted = std::function<bool()>;
  explicit Decoder(DecoderOptions options) : options_(std::move(options)) {}
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder();

  // JSON: what is in the file (client/python/tessera/decoder.py says how).
  absl::StatusOr<std::string> Describe(const FileDescriptor& file, std::string_view path,
                                       const IsWanted& is_wanted = nullptr);
  // Makes what the JSON says in a folder that is new.
  absl::Status Create(const FileDescriptor& folder, std::string_view path, std::string_view json,
                      const IsWanted& is_wanted = nullptr);
  // The part's elements, row-major, are at buffer() until the next question. At most kDecoderBufferBytes.
  absl::Status Read(const FileDescriptor& file, std::string_view path, const DecodedPart& part,
                    const IsWanted& is_wanted = nullptr);
  // Writes the elements that `fill` puts into the buffer of the process that is asked; for a second one, `fill` runs
  // again.
  absl::Status Write(const FileDescriptor& folder, std::string_view path, const DecodedPart& part,
                     const std::function<void(std::byte*)>& fill);
  const std::byte* buffer() const { return process_.buffer; }

 private:
  // One that runs, or has ended and isn't waited for yet: `number` is -1 where there is none.
  struct Process {
    pid_t number = -1;
    FileDescriptor exit;  // readable once it has ended
    FileDescriptor line;
    std::byte* buffer = nullptr;
  };
  struct Question {
    std::string_view what;
    const FileDescriptor& file;
    std::string_view path;
    const DecodedPart* part = nullptr;
    std::string_view text = {};  // follows the line of what is asked: a name, or JSON
    std::function<void(std::byte*)> fill = nullptr;
    IsWanted is_wanted = nullptr;
  };
  absl::StatusOr<int64_t> Ask(const Question& question);
  // Starts a process where none runs.
  absl::Status Start();
  absl::Status Send(std::string_view request, int file);
  absl::StatusOr<int64_t> Receive(const IsWanted& is_wanted);
  // Ends it, and lets the buffer go; how it ended, if it did so by itself: "killed by signal 9 (Killed)".
  std::string End();
  // Takes the ends of processes that had been killed and were still there; how many of them still are.
  size_t CountEnding();

  const DecoderOptions options_;
  Process process_;
  std::vector<pid_t> ending_;
};

}  // namespace tessera
