#pragma once

// PTX text cut into items: functions with the statements of their bodies, and variables. Comments are gone; each
// statement has the line that it begins at.
//
//   ".visible .entry f(.param .u64 x) { ret; }"
//     -> {.header = ".visible .entry f(.param .u64 x)", .has_body = true, .statements = {{"ret", 1}}}

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::ptx {

struct Statement {
  std::string text;  // without its semicolon; a label ends with a colon; { and } of scopes within the body
  uint32_t line = 0;
};
struct Item {
  std::string header;
  uint32_t line = 0;
  bool has_body = false;
  std::vector<Statement> statements;
};
std::vector<Item> ItemsOf(std::string_view text);

std::string_view Trim(std::string_view text);
std::vector<std::string> Split(std::string_view text, char separator);
// At commas that are in no brackets.
std::vector<std::string> SplitOperands(std::string_view text);

}  // namespace tessera::ptx
