#pragma once

// MappedLog: the file of a log that goes on, written through memory. An event costs a copy and no system call, and is
// there whenever the process ends: the kernel has the pages. The end of the machine may lose them.
//
// The file is longer than its messages: behind them lie zeros, the reserve. A message's first word is never zero, and
// is stored last; so a reader finds the end of the messages, and a message that the end of the process tore begins
// with zero.
//
// Zeros are written a piece ahead of the messages. The first write to a page of blocks that were only reserved begins a
// transaction of the file system, 8 us a page on ext4; a page that zeros were written to costs a tenth of that. A sync
// of such blocks, too, is one of data alone.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <kj/io.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/coordinator/rpc/journal.h"

namespace tessera {

class MappedLog final : public JournalOutput {
 public:
  // Goes on behind the first `bytes` of a file, a multiple of 8; bytes behind these are cut off. Unavailable, with the
  // path, where the file can't be written or mapped.
  static absl::StatusOr<std::unique_ptr<MappedLog>> Open(const std::string& path, uint64_t bytes);
  // Cuts the reserve off.
  ~MappedLog() noexcept override;
  MappedLog(const MappedLog&) = delete;
  MappedLog& operator=(const MappedLog&) = delete;

  // The pieces together are a multiple of 8 bytes, and their first 8 are not all zero.
  absl::Status Write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override;

 private:
  MappedLog(kj::AutoCloseFd fd, std::string path, uint64_t bytes)
      : fd_(kj::mv(fd)), path_(std::move(path)), bytes_(bytes) {}
  // A window of the file that has room for so many bytes behind the messages, with disk blocks for all of it.
  absl::Status MapRoomFor(size_t size);
  // Zeros behind what has them, as far as `end` at least, within the window.
  absl::Status WriteZeros(uint64_t end);
  absl::Status Failed(const char* what, int why) const;

  kj::AutoCloseFd fd_;
  std::string path_;
  uint64_t bytes_;  // of whole messages
  std::byte* window_ = nullptr;
  uint64_t window_begin_ = 0;  // in the file
  uint64_t window_end_ = 0;
  uint64_t zeros_end_ = 0;  // as far as zeros were written; a page's begin
};

}  // namespace tessera
