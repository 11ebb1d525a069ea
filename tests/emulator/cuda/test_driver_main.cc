// The main of tests that run on a driver (test_driver.h): all are skipped where there is none.

#include <cstdio>
#include <string>

#include <gmock/gmock.h>

#include "tests/emulator/cuda/test_driver.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (const std::string& skip = tessera::testing::TestDriver::Get().skip(); !skip.empty()) {
    std::printf("skipped: %s\n", skip.c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
