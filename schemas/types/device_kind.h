#pragma once

// The kind of a worker's device. Workers of one mesh have one kind.
//
//   ToText(DeviceKind::kCuda) == "cuda";  *ParseDeviceKind("cpu") == DeviceKind::kCpu;

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class DeviceKind : uint8_t { kCpu = 0, kCuda = 1 };

constexpr std::string_view ToText(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

constexpr std::optional<DeviceKind> ParseDeviceKind(std::string_view text) {
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (text == ToText(kind)) return kind;
  }
  return std::nullopt;
}

}  // namespace tessera
