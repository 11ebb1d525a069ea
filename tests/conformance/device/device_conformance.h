#pragma once

// What every Device does: one library of behaviour tests, run against each implementation.

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "server/device/device.h"

namespace tessera::testing {

// `count` devices of workers 0..count-1 that have each other's counters mapped.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  virtual Device& at(int worker) = 0;
  // Lets everything run that can (a device with threads of its own runs by itself).
  virtual void Advance() = 0;
};

struct DeviceFactory {
  std::string name;
  std::function<std::unique_ptr<DeviceGroup>(int count)> make;
};

class DeviceConformance : public ::testing::TestWithParam<DeviceFactory> {};

}  // namespace tessera::testing
