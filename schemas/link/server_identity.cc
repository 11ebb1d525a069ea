#include "schemas/link/server_identity.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status CheckServer(std::string_view what, int fd, std::string_view path) {
  struct ucred server = {};
  socklen_t length = sizeof(server);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &server, &length) != 0) {
    return absl::InternalError(StrCat(what, ": nobody says who serves unix:", Printable(path, 200)));
  }
  if (server.uid == geteuid() || server.uid == 0) return absl::OkStatus();
  const char* const wanted = std::getenv("TESSERA_SERVER_UID");
  if (wanted != nullptr && wanted == std::to_string(server.uid)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      StrCat(what, ": the server at unix:", Printable(path, 200), " runs as user ", server.uid, ", this is user ",
             geteuid(), ": it is shown no token. If that user is to be trusted, set TESSERA_SERVER_UID=", server.uid));
}

}  // namespace tessera
