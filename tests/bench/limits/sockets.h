#pragma once

// Bytes between hosts by plain TCP: one process on each, a connection between them, as many bytes each way at
// the same time, from warm memory to warm memory.

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

namespace tessera::bench {

struct SocketCase {
  std::string listen;   // address to serve, or
  std::string connect;  // address of the other process, which listens
  int port = 0;
  size_t bytes = 0;  // each way
  int repetitions = 11;
};

// The process that connects gets {"variants": {"tcp": [seconds ...]}}, the one that listens {}. Ends the process on
// wrong values.
nlohmann::json MeasureSockets(const SocketCase& work);

}  // namespace tessera::bench
