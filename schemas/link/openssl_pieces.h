#pragma once

// Pieces that sources with OpenSSL share: things that free themselves, and PEM texts.
//
//   Bio bio = Reader(pem);
//   Certificate certificate(PEM_read_bio_X509(bio.get(), nullptr, &NoPassphrase, nullptr));

#include <cstddef>
#include <memory>
#include <string>

#include <openssl/bio.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace tessera {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* thing) const {
    kFree(thing);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

inline constexpr size_t kMaxHostChars = 253;  // of a name in DNS

inline Bio Reader(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

inline std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(bytes));
}

// A key behind a passphrase isn't asked for on the terminal.
inline int NoPassphrase(char*, int, int, void*) { return -1; }

}  // namespace tessera
