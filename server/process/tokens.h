#pragma once

// The tokens that a server is given. No child, decoder or other process of the host shall find them: they come by a
// descriptor or a file, and those that come by the environment or the command line are overwritten there once they are
// read, so that /proc/PID/environ and /proc/PID/cmdline show them no more.
//
//   ServerTokens tokens;                                          // of the flags --token=..., if there are any
//   HideTokenArguments(argc, argv);
//   TESSERA_RETURN_IF_ERROR(TakeTokens("fd:5", tokens));          // --tokens=fd:5, then the environment
//
// The text that comes by a descriptor or a file has lines "NAME=VALUE", of the variables' names; lines that are empty
// or begin with # are left out, as in systemd's EnvironmentFile.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

struct ServerTokens {
  std::string client;  // TESSERA_TOKEN
  std::string join;    // TESSERA_JOIN_TOKEN
  std::string admin;   // TESSERA_ADMIN_TOKEN
  std::string viewer;  // TESSERA_VIEWER_TOKEN
};

// Fills those that are empty: from `source` ("": none; "fd:N": an inherited descriptor, which is read to its end and
// closed; else the path of a file), then from the environment. All of the environment's are overwritten and unset,
// whether or not they are taken. InvalidArgument where a line is no token; FailedPrecondition where others than the
// user may read the file; NotFound and Unavailable where there is no such file or descriptor. No error has a token in
// it. Before any thread starts: it changes the environment.
absl::Status TakeTokens(const std::string& source, ServerTokens& tokens);

// Overwrites the values of --token, --join-token, --admin-token and --viewer-token. After the command line was parsed.
void HideTokenArguments(int argc, char** argv);

}  // namespace tessera
