#pragma once

// Leftovers: a save makes its file or folder beside the one that it becomes, under a name of its own, and removes it if
// it fails. A worker that is killed can't. The next save into the folder removes such files and folders once they are
// a day old.
//
// A save that goes on holds a lock (flock) on its file, which the kernel takes back when the worker ends. So the law: a
// name is removed only where the name is a save's, the file is this user's, its last change is a day ago, and nobody
// holds the lock. Where the file system has no locks nothing is removed.

#include <sys/types.h>

#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

namespace tessera {

inline constexpr std::chrono::hours kLeftoverAge{24};             // docs/limits.md: leftover_age
inline constexpr std::chrono::hours kLeftoverPause{1};            // docs/limits.md: leftover_pause
inline constexpr std::chrono::milliseconds kLeftoverTime{1'000};  // docs/limits.md: leftover_time

// Whether files that are being made have such names: ".x.npy.tessera-0123456789abcdef".
bool IsNewFileName(std::string_view name);

// Shows others that the file or folder, which this process makes, is no leftover, until its descriptor is closed, or
// UnlockNewFile: it is about to have its own name, under which programs may lock it, and its last change is now.
void LockNewFile(int file);
void UnlockNewFile(int file);

// Removes `name` from the folder, with all in it, as far as it gets by then; no link is followed.
void RemoveTree(int folder, const char* name,
                std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max());

// On any thread.
class Leftovers {
 public:
  // Looks for leftovers in a folder, unless it did so within kLeftoverPause, and removes them for kLeftoverTime at
  // most.
  void Remove(int folder);

 private:
  bool IsTime(int folder);

  std::mutex mutex_;
  std::map<std::pair<dev_t, ino_t>, std::chrono::steady_clock::time_point> looked_;
};

}  // namespace tessera
