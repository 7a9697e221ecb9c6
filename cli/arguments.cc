#include "cli/arguments.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <array>
#include <charconv>
#include <iostream>
#include <limits>

#include "base/error.h"
#include "cli/guard.h"

namespace halfnote::cli {
namespace {

/// The number that a text starts with, and the rest; nothing for a text without one.
struct Counted {
  int64_t number = 0;
  std::string_view rest;
};

std::optional<Counted> leading_number(std::string_view text) {
  Counted counted;
  const char* const last = text.data() + text.size();
  const auto [end, code] = std::from_chars(text.data(), last, counted.number);
  if (code != std::errc() || counted.number < 0) return std::nullopt;
  counted.rest = {end, static_cast<size_t>(last - end)};
  return counted;
}

}  // namespace

std::pair<std::string, int64_t> parse_dim(std::string_view text) {
  const size_t at = text.find('=');
  const auto counted =
      at == std::string_view::npos ? std::nullopt : leading_number(text.substr(at + 1));
  if (at == 0 || !counted || !counted->rest.empty() || counted->number < 1) {
    throw Error(ErrorCode::kUsage, "--dim is not understood")
        .expected("NAME=N with a whole number of 1 or more, as in --dim batch=32",
                  fmt::format("\"{}\"", text));
  }
  return {std::string(text.substr(0, at)), counted->number};
}

std::map<std::string, int64_t> parse_dims(const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> dims;
  for (const std::string& text : texts) {
    const auto [name, number] = parse_dim(text);
    const auto [found, is_new] = dims.emplace(name, number);
    if (is_new || found->second == number) continue;
    throw Error(ErrorCode::kUsage, fmt::format("--dim {} is given twice", name))
        .expected("one number", fmt::format("{} and {}", found->second, number));
  }
  return dims;
}

std::map<std::string, int64_t> parse_axes(std::string_view flag,
                                          const std::vector<std::string>& texts) {
  std::map<std::string, int64_t> axes;
  for (const std::string& text : texts) {
    const size_t at = text.rfind('=');
    const auto counted = at == std::string::npos
                             ? std::nullopt
                             : leading_number(std::string_view(text).substr(at + 1));
    if (at == 0 || !counted || !counted->rest.empty()) {
      throw Error(ErrorCode::kUsage, fmt::format("{} is not understood", flag))
          .expected(fmt::format("INPUT=AXIS, as in {} x=1", flag), fmt::format("\"{}\"", text));
    }
    const auto [found, is_new] = axes.emplace(text.substr(0, at), counted->number);
    if (is_new || found->second == counted->number) continue;
    throw Error(ErrorCode::kUsage, fmt::format("{} {} is given twice", flag, found->first))
        .expected("one axis", fmt::format("{} and {}", found->second, counted->number));
  }
  return axes;
}

Every parse_every(std::string_view flag, std::string_view text) {
  constexpr std::array<std::string_view, 3> kEpochs = {"e", "epoch", "epochs"};
  constexpr std::array<std::string_view, 4> kSteps = {"", "s", "step", "steps"};
  if (const auto counted = leading_number(text)) {
    for (const std::string_view unit : kEpochs) {
      if (counted->rest == unit) return {0, counted->number};
    }
    for (const std::string_view unit : kSteps) {
      if (counted->rest == unit) return {counted->number, 0};
    }
  }
  throw Error(ErrorCode::kUsage, fmt::format("{} is not understood", flag))
      .expected("steps as in 500, epochs as in 1e, or 0 for the end only",
                fmt::format("\"{}\"", text));
}

void check_standard_output() {
  if (std::cout.flush() || reader_left()) return;
  throw Error(ErrorCode::kIo, "cannot write to standard output");
}

CLI::Validator whole_number(int64_t least, int64_t most) {
  const std::string wanted =
      most == std::numeric_limits<int64_t>::max()
          ? fmt::format("expected a whole number of at least {}", least)
          : fmt::format("expected a whole number from {} to {}", least, most);
  return CLI::Validator(
      [=](const std::string& text) {
        int64_t number = 0;
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
        const bool good = code == std::errc() && end == text.data() + text.size() &&
                          number >= least && number <= most;
        return good ? std::string() : fmt::format("{}, got \"{}\"", wanted, text);
      },
      "");
}

CLI::Validator at_least_one() { return whole_number(1, std::numeric_limits<int64_t>::max()); }
CLI::Validator at_least_zero() { return whole_number(0, std::numeric_limits<int64_t>::max()); }

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string count_text(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::filesystem::path place_of(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  if (!whole.has_filename()) whole = whole.parent_path();  // FOLDER/
  fs::path place = fs::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : place;
}

void refuse_same_file(std::span<const NamedFile> files, size_t first_written, const char* hint) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> places;
  for (const NamedFile& file : files) places.push_back(place_of(file.path));
  for (size_t i = first_written; i < files.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const fs::path &written = files[i].path, &other = files[k].path;
      if (written.empty() || other.empty()) continue;
      if (places[i] != places[k] && !fs::equivalent(written, other, error)) continue;
      throw Error(ErrorCode::kUsage, files[k].name + " and " + files[i].name + " are the same file")
          .at({written.string(), {}, {}})
          .hint(hint);
    }
  }
}

}  // namespace halfnote::cli
