#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct PublishedOptions {
  AddressOption address;
  bool json = false;
};

std::string PublishedJson(const std::vector<PublicationReport>& publications) {
  nlohmann::json out = nlohmann::json::array();
  for (const PublicationReport& one : publications) {
    out.push_back({{"name", one.name},
                   {"version", one.version},
                   {"tensors", one.tensor_count},
                   {"bytes", one.bytes},
                   {"readers", one.readers}});
  }
  return nlohmann::json({{"published", out}})
      .dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string PublishedText(const std::vector<PublicationReport>& publications) {
  std::vector<std::vector<std::string>> rows = {{"PUBLICATION", "VERSION", "TENSORS", "BYTES/WORKER", "READERS"}};
  for (const PublicationReport& one : publications) {
    std::string readers;
    for (const std::string& reader : one.readers) StrAppend(&readers, readers.empty() ? "" : ", ", reader);
    rows.push_back({one.name, StrCat(one.version), StrCat(one.tensor_count), ShowBytes(one.bytes),
                    readers.empty() ? "-" : readers});
  }
  return ShowTable(rows);
}

int ShowPublished(const PublishedOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  const absl::StatusOr<std::vector<PublicationReport>> published = session->Published();
  if (!published.ok()) return Failed(published.status());
  std::printf("%s%s", (options.json ? PublishedJson(*published) : PublishedText(*published)).c_str(),
              options.json ? "\n" : "");
  if (absl::Status closed = session->Close(); !closed.ok()) return Failed(closed);
  return 0;
}

struct UnpublishOptions {
  AddressOption address;
  std::string name;
};

int Unpublish(const UnpublishOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  if (absl::Status status = session->Unpublish(options.name); !status.ok()) return Failed(status);
  std::printf("%s is taken back; who has attached it keeps the tensors\n", Printable(options.name).c_str());
  return 0;
}

}  // namespace

Command AddPublishedCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "published", "Publications that the token's tenant may attach; an admin's token shows them all");
  auto options = std::make_shared<PublishedOptions>();
  options->address.AddTo(*command);
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->footer("Examples:\n  tessera published\n  TESSERA_ADMIN_TOKEN=... tessera published --json");
  return {command, [options] { return ShowPublished(*options); }};
}

Command AddUnpublishCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "unpublish",
      "Take a publication of the token's tenant back; with the admin's token any.\nReaders keep what they have");
  auto options = std::make_shared<UnpublishOptions>();
  options->address.AddTo(*command);
  command->add_option("name", options->name, "TENANT/NAME, as `tessera published` shows it")->required();
  command->footer("Example:\n  tessera unpublish vision/weights");
  return {command, [options] { return Unpublish(*options); }};
}

}  // namespace tessera
