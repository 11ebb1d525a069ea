#pragma once

// The behaviour of every Device: one library of behaviour tests, run against each implementation.

#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  // Zeroed memory that the devices and the host both use, and a page of counters that devices can map.
  virtual std::shared_ptr<std::byte> Allocate(size_t bytes) {
    return {new std::byte[bytes](), std::default_delete<std::byte[]>()};
  }
  virtual std::shared_ptr<CounterPage> MakeCounters() { return std::make_shared<CounterPage>(); }
};

// An array in the group's memory.
template <typename T>
class Cells {
 public:
  Cells(DeviceGroup& group, size_t count, T value = T{})
      : memory_(group.Allocate(count * sizeof(T))), data_(reinterpret_cast<T*>(memory_.get())), count_(count) {
    for (size_t i = 0; i < count; ++i) data_[i] = value;
  }
  T& operator[](size_t i) { return data_[i]; }
  T* data() { return data_; }
  size_t size() const { return count_; }
  T& back() { return data_[count_ - 1]; }
  std::vector<T> values() const { return {data_, data_ + count_}; }

 private:
  std::shared_ptr<std::byte> memory_;
  T* data_;
  size_t count_;
};

struct DeviceFactory {
  std::string name;
  std::function<std::unique_ptr<DeviceGroup>(int count)> make;
};

class DeviceConformance : public ::testing::TestWithParam<DeviceFactory> {};

}  // namespace tessera::testing
