// Messages to people, on stderr: `warning: TEXT`, coloured only on a terminal. Results never go
// through here.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

namespace halfnote {

enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// Messages above this level are dropped; at the start that is kInfo.
void set_log_level(LogLevel level);
LogLevel log_level();
/// `error`, `warning`, `info` or `debug`; nothing for other words.
std::optional<LogLevel> log_level_from_name(std::string_view name);

/// Whether colour fits this descriptor: a terminal that is not `dumb`, and NO_COLOR is unset or
/// empty.
bool wants_color(int descriptor);

/// Writes one message if its level is on. Control characters other than tab and newline (a node
/// name may hold them) are written as `\x1b`, so that a model cannot steer the terminal.
void log_message(LogLevel level, std::string_view text);

template <class... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level > log_level()) return;
  log_message(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, std::forward<Args>(args)...);
}

}  // namespace halfnote
