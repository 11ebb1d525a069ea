#pragma once

// Lists of numbers and texts, which both halves of snapshot.h use.

#include <string>

#include <capnp/message.h>

namespace tessera {

inline kj::StringPtr Text(const std::string& text) { return {text.c_str(), text.size()}; }
inline kj::ArrayPtr<const kj::byte> Bytes(const std::string& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

// `init` makes a list of so many numbers.
template <typename Values, typename Init>
void FillList(const Values& values, const Init& init) {
  auto list = init(static_cast<unsigned>(values.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, values[i]);
}
template <typename Values, typename Init>
void FillIds(const Values& values, const Init& init) {
  auto list = init(static_cast<unsigned>(values.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, values[i].value);
}
template <typename Values, typename List>
void ReadList(const List& list, Values& values) {
  values.clear();
  values.reserve(list.size());
  for (const auto value : list) values.push_back(value);
}
template <typename Values, typename List>
void ReadIds(const List& list, Values& values) {
  values.clear();
  values.reserve(list.size());
  for (const auto value : list) values.emplace_back(value);
}

}  // namespace tessera
