#pragma once

// The streams of a worker's device, and its lanes, as the coordinator and the workers call them.
//
// A worker has two lanes, so that short work stands behind no long kernel. The order between them is what waits between
// streams say. A stream of the light lane never waits for one of the batch lane.

#include <cstdint>

namespace tessera {

// Nothing on kProbe waits for anything: an item that ends there shows that the device works.
enum class StreamId : uint8_t {
  kCompute = 0,
  kExchange = 1,
  kProbe = 2,
  kIo = 3,
  kComputeLight = 4,
  kExchangeLight = 5,
  kIoLight = 6
};
inline constexpr int kStreamCount = 7;

enum class Lane : uint8_t { kBatch = 0, kLight = 1 };
inline constexpr int kLaneCount = 2;

constexpr uint8_t NumberOf(StreamId stream) { return static_cast<uint8_t>(stream); }

constexpr Lane LaneOf(StreamId stream) { return stream < StreamId::kComputeLight ? Lane::kBatch : Lane::kLight; }
// The lane whose threads run it: kIo has few bytes to copy, and stands behind no kernel.
constexpr Lane ThreadsOf(StreamId stream) { return stream == StreamId::kIo ? Lane::kLight : LaneOf(stream); }

// The stream for the same in another lane: of kCompute, kExchange and kIo.
constexpr StreamId InLane(StreamId stream, Lane lane) {
  if (LaneOf(stream) == lane || stream == StreamId::kProbe) return stream;
  switch (stream) {
    case StreamId::kCompute: return StreamId::kComputeLight;
    case StreamId::kExchange: return StreamId::kExchangeLight;
    case StreamId::kIo: return StreamId::kIoLight;
    case StreamId::kComputeLight: return StreamId::kCompute;
    case StreamId::kExchangeLight: return StreamId::kExchange;
    case StreamId::kIoLight: return StreamId::kIo;
    case StreamId::kProbe: return StreamId::kProbe;
  }
  return stream;
}

}  // namespace tessera
