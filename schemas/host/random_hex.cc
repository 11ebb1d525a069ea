#include "schemas/host/random_hex.h"

#include <sys/random.h>

#include "absl/strings/str_cat.h"
#include "schemas/types/status_macros.h"

namespace tessera {

std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0'), text;
  TESSERA_CHECK(getrandom(random.data(), bytes, 0) == static_cast<ssize_t>(bytes));
  for (const char byte : random) absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  return text;
}

}  // namespace tessera
