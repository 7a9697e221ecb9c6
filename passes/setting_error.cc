// What a SettingError says; apart from the checks, so that the readers of settings need no graphs.
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "passes/settings.h"

namespace halfnote {
namespace {

std::string quoted(const std::string& name) {
  return name.starts_with("--") ? name : "\"" + name + "\"";
}

/// Names of a model, which may stand in a message too, have braces that mean nothing.
bool is_key(std::string_view text) {
  constexpr std::array<std::string_view, 4> kTables = {"precision.", "loss_scale.", "train.",
                                                       "optimizer."};
  return std::ranges::any_of(kTables, [&](auto table) { return text.starts_with(table); });
}

/// What messages call the settings of one compilation.
class Names {
 public:
  /// `blamed`: the setting that the message is about.
  Names(const CompileOptions& options, const std::string& blamed) : options_(options) {
    if (const SettingSource* source = source_of(blamed)) place_ = source->place;
  }

  const std::string& place() const { return place_; }

  std::string of(const std::string& key) const {
    if (const SettingSource* source = source_of(key)) {
      const bool elsewhere = !source->place.empty() && source->place != place_;
      return quoted(source->name) + (elsewhere ? " of " + source->place : "");
    }
    // Nobody gave it: a file is told its key, a command line the flag.
    const auto flag = options_.flags.find(key);
    return quoted(place_.empty() && flag != options_.flags.end() ? flag->second : key);
  }

  std::string in(std::string_view text) const {
    std::string result;
    while (!text.empty()) {
      const size_t end = text.find('}');
      const std::string_view key = text.front() == '{' ? text.substr(1, end - 1) : "";
      if (end != std::string_view::npos && is_key(key)) {
        result += of(std::string(key));
        text.remove_prefix(end + 1);
        continue;
      }
      result += text.front();
      text.remove_prefix(1);
    }
    return result;
  }

 private:
  const SettingSource* source_of(const std::string& key) const {
    const auto found = options_.sources.find(key);
    return found == options_.sources.end() ? nullptr : &found->second;
  }

  const CompileOptions& options_;
  std::string place_;
};

Error written(const SettingText& text, const Names& names) {
  return Error(ErrorCode::kUsage, names.in(text.what))
      .at({names.place(), {}, {}})
      .expected(names.in(text.wanted), text.got)
      .hint(names.in(text.hint));
}

}  // namespace

SettingError::SettingError(std::string key, SettingText text)
    : SettingError(key, text, written(text, Names({}, key))) {}

SettingError SettingError::named(const CompileOptions& options) const {
  return {key_, text_, written(text_, Names(options, key_))};
}

std::string beyond_f32(double number) {
  const auto narrow = static_cast<float>(number);
  if (narrow == 0 && number != 0) return "0, or a number of at least 1.4e-45 (FP32)";
  const bool is_over = std::isinf(narrow) && std::isfinite(number);
  return is_over ? "a number of at most 3.4e38 (FP32)" : "";
}

}  // namespace halfnote
