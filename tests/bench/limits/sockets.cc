#include "tests/bench/limits/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "tests/bench/limits/processes.h"

namespace tessera::bench {
namespace {

constexpr int kConnectTimeoutMs = 10'000;
constexpr size_t kPieceBytes = size_t{1} << 20;

sockaddr_in AddressOf(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  CheckValues(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, "an address");
  return address;
}

int Accept(const SocketCase& work) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = AddressOf(work.listen, work.port);
  CheckValues(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0, "bind");
  CheckValues(listen(listener, 1) == 0, "listen");
  const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CheckValues(connection >= 0, "accept");
  close(listener);
  return connection;
}

int Connect(const SocketCase& work) {
  const sockaddr_in address = AddressOf(work.connect, work.port);
  for (int waited_ms = 0; waited_ms < kConnectTimeoutMs; waited_ms += 10) {
    const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return connection;
    close(connection);
    poll(nullptr, 0, 10);  // the other one may not listen yet
  }
  CheckValues(false, "nobody listens");
  return -1;
}

// Sends all of `out` and receives all of `in`, whichever is possible.
void Exchange(int connection, const std::vector<std::byte>& out, std::vector<std::byte>& in) {
  size_t sent = 0, received = 0;
  while (sent < out.size() || received < in.size()) {
    short events = 0;
    if (sent < out.size()) events |= POLLOUT;
    if (received < in.size()) events |= POLLIN;
    pollfd ready{connection, events, 0};
    CheckValues(poll(&ready, 1, -1) == 1, "poll");
    if ((ready.revents & POLLIN) != 0) {
      const ssize_t count =
          recv(connection, in.data() + received, std::min(kPieceBytes, in.size() - received), MSG_DONTWAIT);
      CheckValues(count > 0 || errno == EAGAIN, "recv");
      if (count > 0) received += static_cast<size_t>(count);
    }
    if ((ready.revents & POLLOUT) != 0) {
      const ssize_t count =
          send(connection, out.data() + sent, std::min(kPieceBytes, out.size() - sent), MSG_DONTWAIT | MSG_NOSIGNAL);
      CheckValues(count >= 0 || errno == EAGAIN, "send");
      if (count > 0) sent += static_cast<size_t>(count);
    }
    CheckValues((ready.revents & (POLLERR | POLLNVAL)) == 0, "the connection");
  }
}

}  // namespace

nlohmann::json MeasureSockets(const SocketCase& work) {
  const bool measures = work.listen.empty();
  const int connection = measures ? Connect(work) : Accept(work);
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const std::vector<std::byte> out(work.bytes, std::byte{measures});
  std::vector<std::byte> in(work.bytes, std::byte{7});
  const std::vector<std::byte> token_out(1);
  std::vector<std::byte> token_in(1);
  std::vector<double> seconds;
  for (int r = 0; r < 2 + work.repetitions; ++r) {
    Exchange(connection, token_out, token_in);  // both are there
    const auto start = std::chrono::steady_clock::now();
    Exchange(connection, out, in);
    Exchange(connection, token_out, token_in);  // both have all
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (r >= 2) seconds.push_back(took.count());
    CheckValues(in.front() == std::byte{!measures} && in.back() == std::byte{!measures}, "bytes from the other host");
  }
  close(connection);
  return measures ? nlohmann::json{{"variants", {{"tcp", seconds}}}} : nlohmann::json::object();
}

}  // namespace tessera::bench
