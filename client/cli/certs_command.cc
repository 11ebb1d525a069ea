// tessera certs: a development CA, and certificates for servers and workers.

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <memory>

#include "absl/strings/str_join.h"
#include "client/cli/certificates.h"
#include "client/cli/command.h"
#include "schemas/link/authority.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kMaxDays = 3650;  // docs/limits.md: max_certificate_days

struct CertsOptions {
  std::string folder;
  CertificateRequest request;
  std::string show;
};

std::string ShowCertificate(const CertificateFacts& facts) {
  const std::time_t now = std::time(nullptr), day = 86400;
  std::string ends = DateText(facts.ends_at);
  if (facts.starts_at > now) StrAppend(&ends, " (it is not yet valid: from ", DateText(facts.starts_at), ")");
  StrAppend(&ends,
            facts.ends_at < now ? " (it has expired)" : StrCat(" (", (facts.ends_at - now) / day, " days left)"));
  return StrCat("subject  ", facts.subject, "\nissuer   ", facts.issuer, "\nfor      ", facts.use, "\nhosts    ",
                facts.hosts.empty() ? "none" : absl::StrJoin(facts.hosts, ", "), "\nexpires  ", ends, "\n");
}

int Show(const std::string& file) {
  const absl::StatusOr<std::vector<CertificateFacts>> all = ReadCertificates(file);
  if (!all.ok()) return Failed(all.status());
  for (const CertificateFacts& facts : *all) std::printf("%s", ShowCertificate(facts).c_str());
  return 0;
}

std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  if (CheckHost(name).ok() && std::string_view(name) != "localhost") hosts.push_back(name);
  return hosts;
}

int Make(CertsOptions options) {
  const bool is_renewal = access((options.folder + "/ca.crt").c_str(), F_OK) == 0;
  if (options.request.hosts.empty()) options.request.hosts = OwnHosts();
  const absl::StatusOr<std::vector<std::string>> written = MakeCertificates(options.folder, options.request);
  if (!written.ok()) return Failed(written.status());
  std::printf(is_renewal ? "signed by the CA that was there:\n" : "made a CA, and signed by it:\n");
  for (const std::string& file : *written) {
    if (!file.ends_with(".crt")) {
      std::printf("  %s (a key: for its owner alone)\n", file.c_str());
      continue;
    }
    const absl::StatusOr<std::vector<CertificateFacts>> facts = ReadCertificates(file);
    if (!facts.ok()) return Failed(facts.status());
    std::printf("  %s (%s), until %s\n", file.c_str(), facts->front().subject.c_str(),
                DateText(facts->front().ends_at).c_str());
  }
  const std::string at = options.folder + "/";
  std::printf(
      "hosts: %s\n\n"
      "Next: ca.crt goes to every machine; server.* to the coordinator's, worker.* to the workers'; ca.key to none.\n"
      "  tessera-coordinator ... --tls-cert %sserver.crt --tls-key %sserver.key --tls-ca %sca.crt\n"
      "  tessera-worker ... --tls-cert %sworker.crt --tls-key %sworker.key --tls-ca %sca.crt\n"
      "  tessera certs --show %sworker.crt\n"
      "  tessera certs %s --host NAME_OR_IP ...    # later: new leaves, of the same CA\n",
      absl::StrJoin(options.request.hosts, ", ").c_str(), at.c_str(), at.c_str(), at.c_str(), at.c_str(), at.c_str(),
      at.c_str(), at.c_str(), options.folder.c_str());
  return 0;
}

}  // namespace

Command AddCertsCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("certs", "A development CA, and certificates for servers and workers");
  auto options = std::make_shared<CertsOptions>();
  CLI::Option* folder = command->add_option(
      "folder", options->folder, "where ca.*, server.* and worker.* lie, or will; a CA that is there is kept");
  command
      ->add_option("--host", options->request.hosts,
                   "a name or an IP address that others reach the machine by; may be given again (else localhost, "
                   "127.0.0.1, ::1 and this machine's name)")
      ->allow_extra_args(false);
  command->add_option("--days", options->request.days, "how long server.crt and worker.crt are valid")
      ->check(CLI::Range(1, kMaxDays))
      ->capture_default_str();
  command->add_option("--show", options->show, "print what the certificates of this file say")->excludes(folder);
  command->footer(
      "Examples:\n  tessera certs ~/tessera-tls --host node7 --host 10.0.0.7\n"
      "  tessera certs --show ~/tessera-tls/worker.crt");
  return {command, [options] {
            if (!options->show.empty()) return Show(options->show);
            if (!options->folder.empty()) return Make(*options);
            return Failed(absl::InvalidArgumentError("certs: a folder, or --show FILE"));
          }};
}

}  // namespace tessera
