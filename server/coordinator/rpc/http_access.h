#pragma once

// HttpAccess: who may read a coordinator's metrics and page from other hosts. A reader shows a viewer's or an admin's
// token, as Prometheus does ("Bearer TOKEN"), or as the password that a browser asks for ("Basic ...", of any user).
//
//   CheckReader("Bearer secret", readers, now_s);   // OK where one of the readers has the token and it has not expired
//   CheckReader("", readers, now_s);                // Unauthenticated: what to send
//
// Law: no answer tells whether a token is nobody's or of a role that reads nothing.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/coordinator/tenants/token_table.h"

namespace tessera {

// The token in a header Authorization; empty where there is none.
std::string TokenOf(std::string_view authorization);

// `readers` has the tokens of viewers and admins.
absl::Status CheckReader(std::string_view authorization, const TokenTable& readers, int64_t now_s);

}  // namespace tessera
