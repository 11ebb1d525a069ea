#include "server/process/config_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "absl/strings/ascii.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Neither in a file nor in a variable.
constexpr const char* kOfTheCommandLine[] = {"help",       "version",     "config", "check-config",       "token",
                                             "join-token", "admin-token", "replay", "exit-with-parent-fd"};

bool IsToken(std::string_view key) { return key == "token" || key == "join-token" || key == "admin-token"; }

[[noreturn]] void Refuse(const std::string& place, std::string_view why) {
  throw CLI::ConfigError(StrCat(place, ": ", why));
}

std::string PlaceOf(const std::string& file, const toml::source_region& source) {
  return StrCat(file, ":", static_cast<int64_t>(source.begin.line));
}

// The value as it would stand on the command line.
std::string TextOf(const std::string& place, std::string_view key, const toml::node& value) {
  if (const auto text = value.value_exact<std::string>(); text.has_value()) return *text;
  if (const auto number = value.value_exact<int64_t>(); number.has_value()) return StrCat(*number);
  if (const auto number = value.value_exact<double>(); number.has_value()) {
    std::ostringstream text;
    text << *number;
    return text.str();
  }
  if (const auto flag = value.value_exact<bool>(); flag.has_value()) return *flag ? "true" : "false";
  Refuse(place, StrCat(key, " is neither a text, a number, true or false, nor a list of those"));
}

std::string ReadWhole(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) Refuse(path, "there is no such file");
  if (!S_ISREG(info.st_mode)) Refuse(path, "it is no file");
  if (static_cast<uint64_t>(info.st_size) > kMaxConfigFileBytes) {
    Refuse(path, StrCat("it has ", static_cast<int64_t>(info.st_size), " bytes; max_config_file_bytes is ",
                        kMaxConfigFileBytes));
  }
  std::ifstream file(path);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) Refuse(path, "it can't be read");
  return text;
}

}  // namespace

// CLI11 asks it for the items of the file. It reads the path itself: CLI11 gives it a stream without a name.
class ConfigFile::Reader final : public CLI::Config {
 public:
  Reader(CLI::App& app, std::shared_ptr<std::map<std::string, std::string>> places)
      : app_(app), places_(std::move(places)) {}
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return ""; }

  std::vector<CLI::ConfigItem> from_config(std::istream&) const override {
    const auto path = app_.get_config_ptr()->as<std::string>();
    const toml::parse_result parsed = toml::parse(ReadWhole(path), path);
    if (!parsed) {
      Refuse(PlaceOf(path, parsed.error().source()), std::string(parsed.error().description()));
    }
    std::vector<CLI::ConfigItem> items;
    for (const auto& [key, value] : parsed.table()) AddItem(path, std::string(key.str()), value, items);
    return items;
  }

 private:
  void AddItem(const std::string& path, const std::string& key, const toml::node& value,
               std::vector<CLI::ConfigItem>& items) const {
    const std::string place = PlaceOf(path, value.source());
    const CLI::Option* const option = app_.get_option_no_throw("--" + key);
    if (IsToken(key)) Refuse(place, StrCat(key, ": tokens stand in a file of their own: tokens = \"FILE\""));
    if (option == nullptr || !option->get_configurable()) {
      Refuse(place, StrCat("\"", Printable(key), "\" is no flag that a config file may give"));
    }
    CLI::ConfigItem item{{}, key, {}};
    if (const toml::array* list = value.as_array(); list != nullptr) {
      if (option->get_items_expected_max() <= 1 || list->empty()) {
        Refuse(place, StrCat(key, list->empty() ? " is an empty list" : " takes one value, and no list"));
      }
      for (const toml::node& element : *list) item.inputs.push_back(TextOf(place, key, element));
    } else {
      item.inputs.push_back(TextOf(place, key, value));
    }
    const bool is_switch = option->get_expected_max() == 0 || option->get_items_expected_max() == 0;
    if (is_switch && !value.is_boolean()) Refuse(place, StrCat(key, " is neither true nor false"));
    // CLI11 takes the file before the environment.
    const std::string& variable = option->get_envname();
    if (option->count() > 0 || (!variable.empty() && std::getenv(variable.c_str()) != nullptr)) return;
    if (is_switch && !*value.value<bool>()) return;
    (*places_)[key] = place;
    items.push_back(std::move(item));
  }

  CLI::App& app_;
  const std::shared_ptr<std::map<std::string, std::string>> places_;
};

void AddLogFlags(CLI::App& app, LogOptions& options) {
  app.add_option("--log-level", options.level, "the log has lines of this level and above")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_option_function<std::string>(
         "--log-format",
         [&options](const std::string& format) {
           options.format = format == "json" ? LogFormat::kJson : LogFormat::kText;
         },
         "text, or json: one object a line")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text");
}

void AddParentFlags(CLI::App& app, int& fd, double& outlive_s) {
  app.add_option("--exit-with-parent-fd", fd, "end when this inherited descriptor is closed");
  app.add_option(
         "--outlive-parent", outlive_s,
         "seconds for which it goes on when that descriptor, a FIFO, is closed, for a process that opens it again;\n"
         "0: it ends at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

ConfigFile::ConfigFile(CLI::App& app, const std::string& prefix)
    : app_(app), places_(std::make_shared<std::map<std::string, std::string>>()) {
  app.set_config("--config", "",
                 "TOML file of flags: each key is a flag without its dashes. The command line and the environment\n"
                 "beat it");
  app.add_flag("--check-config", is_check_, "say whether flags and file are good, and end: with 0, else with 2");
  app.config_formatter(std::make_shared<Reader>(app, places_));
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_lnames().empty() ? "" : option->get_lnames().front();
    const auto is_it = [&name](const char* other) { return name == other; };
    if (name.empty() || std::any_of(std::begin(kOfTheCommandLine), std::end(kOfTheCommandLine), is_it)) {
      option->configurable(false);
      continue;
    }
    std::string variable = prefix;
    for (const char c : "_" + name) variable += c == '-' ? '_' : absl::ascii_toupper(static_cast<unsigned char>(c));
    option->envname(variable);
  }
}

std::optional<int> ConfigFile::Parse(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ConfigError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const CLI::Success& done) {
    return app_.exit(done);
  } catch (const CLI::ParseError& error) {
    const std::string located = Located(error.what());
    if (located == error.what()) {
      app_.exit(error);
    } else {
      std::fprintf(stderr, "%s\n", located.c_str());
    }
    return 2;
  }
  return std::nullopt;
}

int ConfigFile::SayGood() const {
  const std::string file = app_.get_config_ptr()->count() > 0 ? app_.get_config_ptr()->as<std::string>() : "the flags";
  std::printf("%s: good\n", file.c_str());
  return 0;
}

std::string ConfigFile::Located(const std::string& message) const {
  for (const auto& [key, place] : *places_) {
    const std::string flag = "--" + key;
    for (size_t at = message.find(flag); at != std::string::npos; at = message.find(flag, at + 1)) {
      const size_t stop = at + flag.size();
      const bool is_whole = stop == message.size() ||
                            (!absl::ascii_isalnum(static_cast<unsigned char>(message[stop])) && message[stop] != '-');
      if (is_whole) return StrCat(place, ": ", key, ": ", message);
    }
  }
  return message;
}

}  // namespace tessera
