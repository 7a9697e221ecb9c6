// One spdlog logger of our own (not in spdlog's registry, so that a program that embeds us keeps
// its own settings).
#include "base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

namespace halfnote {
namespace {

struct Row {
  LogLevel level;
  std::string_view name;
  spdlog::level::level_enum spdlog_level;
};

constexpr std::array<Row, 4> kRows = {{
    {LogLevel::kError, "error", spdlog::level::err},
    {LogLevel::kWarning, "warning", spdlog::level::warn},
    {LogLevel::kInfo, "info", spdlog::level::info},
    {LogLevel::kDebug, "debug", spdlog::level::debug},
}};

const Row& row(LogLevel level) { return kRows[static_cast<size_t>(level)]; }

std::shared_ptr<spdlog::logger> make_logger() {
  const auto mode =
      wants_color(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never;
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(mode);
  auto made = std::make_shared<spdlog::logger>("halfnote", std::move(sink));
  made->set_pattern("%^%l%$: %v");
  made->set_level(spdlog::level::info);
  return made;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = make_logger();
  return *instance;
}

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
}

std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    if (is_control(c)) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(row(level).spdlog_level); }

LogLevel log_level() {
  for (const Row& candidate : kRows) {
    if (candidate.spdlog_level == logger().level()) return candidate.level;
  }
  return LogLevel::kInfo;
}

std::optional<LogLevel> log_level_from_name(std::string_view name) {
  for (const Row& candidate : kRows) {
    if (candidate.name == name) return candidate.level;
  }
  return std::nullopt;
}

bool wants_color(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") return false;
  return isatty(descriptor) == 1;
}

void log_message(LogLevel level, std::string_view text) {
  if (level > log_level()) return;
  const std::string line = printable(text);
  logger().log(row(level).spdlog_level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace halfnote
