#pragma once

// How a worker joins, and what it takes for itself of its host: the flags, and what an engine says where they don't.
//
//   AddJoinOptions(app, options, tokens, tokens_from);  AddShareOptions(app, options);
//   TESSERA_RETURN_IF_ERROR(TakeShare(FindEngineFacts("", ReadVariable), options));   // memory, threads, number, host

#include <string>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "server/process/engine_facts.h"
#include "server/process/tokens.h"
#include "server/worker/options.h"
#include "server/worker/rpc/enrolment.h"

namespace tessera {

void AddJoinOptions(CLI::App& app, WorkerOptions& options, ServerTokens& tokens, std::string& tokens_from);
void AddShareOptions(CLI::App& app, WorkerOptions& options);

// Puts numbers in place of shares, and what the engine says where nothing was said; the log has a line of what came
// from where. InvalidArgument names the flag.
absl::Status TakeShare(const EngineFacts& found, WorkerOptions& options);

// Enrolment's part of the flags, and, once the worker is enrolled, the values that it gives them: the certificate's
// files, the number, the coordinator's address for workers, and addresses by which others reach the worker where none
// were said.
EnrolmentOptions EnrolmentOf(const WorkerOptions& options);
void TakeEnrolment(const Enrolment& enrolment, WorkerOptions& options);

}  // namespace tessera
