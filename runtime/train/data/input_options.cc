#include "runtime/train/data/input_options.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr std::array<std::string_view, 3> kByteWords = {"auto", "scale", "keep"};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<float> numbers(std::string_view text, std::string_view whole) {
  std::vector<float> values;
  for (const std::string_view part : split(text, '/')) {
    float value = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (status != std::errc() || end != part.data() + part.size() || !std::isfinite(value)) {
      throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", whole))
          .expected("MEAN,STD, each a number that FP32 holds, or one a channel with slashes",
                    fmt::format("\"{}\"", part));
    }
    values.push_back(value);
  }
  return values;
}

/// `INPUT=VALUE` or `VALUE`, for all inputs.
struct OfInput {
  Scaling& scaling;
  std::string_view value;
};

OfInput split_input(std::string_view text, InputOptions& options) {
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos) return {options.scaling, text};
  return {options.named[std::string(text.substr(0, equals))], text.substr(equals + 1)};
}

}  // namespace

Bytes bytes_from_name(std::string_view name) {
  for (size_t i = 0; i < kByteWords.size(); ++i) {
    if (kByteWords[i] == name) return static_cast<Bytes>(i);
  }
  throw Error(ErrorCode::kUsage, "unknown word for --bytes")
      .expected("auto, scale or keep", fmt::format("\"{}\"", name));
}

void parse_bytes(std::string_view text, InputOptions& options) {
  const auto [scaling, word] = split_input(text, options);
  if (scaling.bytes) {
    throw Error(ErrorCode::kUsage, fmt::format("--bytes {}", text))
        .expected("one of each input, and one without a name", "a second");
  }
  scaling.bytes = bytes_from_name(word);
}

void parse_normalize(std::string_view text, InputOptions& options) {
  const auto [scaling, numbers_text] = split_input(text, options);
  if (!scaling.mean.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("one of each input, and one without a name", "a second");
  }
  const std::vector<std::string_view> parts = split(numbers_text, ',');
  if (parts.size() != 2) {
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("MEAN,STD", fmt::format("{} parts", parts.size()))
        .hint("separate the channels with slashes: 0.49/0.48/0.45,0.25/0.24/0.26");
  }
  scaling.mean = numbers(parts[0], text);
  scaling.deviation = numbers(parts[1], text);
  if (scaling.mean.size() != scaling.deviation.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("as many means as deviations",
                  fmt::format("{} and {}", scaling.mean.size(), scaling.deviation.size()));
  }
  for (const float value : scaling.deviation) {
    if (value > 0) continue;
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("deviations above 0", fmt::format("{}", value));
  }
}

void parse_input_names(std::string_view text, InputOptions& options) {
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      throw Error(ErrorCode::kUsage, fmt::format("--map {}", text))
          .expected("INPUT=FIELD", fmt::format("\"{}\"", part));
    }
    options.names.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
}

Scaling InputOptions::scaling_of(const std::string& input, bool target) const {
  Scaling own = target ? Scaling{{}, {}, Bytes::kKeep} : scaling;
  const auto found = named.find(input);
  if (found == named.end()) return own;
  if (found->second.bytes) own.bytes = found->second.bytes;
  if (!found->second.mean.empty()) {
    own.mean = found->second.mean;
    own.deviation = found->second.deviation;
  }
  return own;
}

}  // namespace halfnote
