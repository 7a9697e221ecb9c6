#include "runtime/train/data/image.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"none", "nearest", "bilinear"};

}  // namespace

Resize resize_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Resize>(i);
  }
  throw Error(ErrorCode::kUsage, "unknown way to resize")
      .expected("none, nearest or bilinear", "\"" + std::string(name) + "\"");
}

std::string_view resize_name(Resize resize) { return kNames[static_cast<size_t>(resize)]; }

std::vector<Resizer::Tap> Resizer::taps(Resize kind, int64_t from, int64_t to) {
  std::vector<Tap> taps(static_cast<size_t>(to));
  for (int64_t i = 0; i < to; ++i) {
    Tap& tap = taps[static_cast<size_t>(i)];
    if (kind == Resize::kNearest) {
      tap.low = tap.high = i * from / to;
      continue;
    }
    const double scale = static_cast<double>(from) / static_cast<double>(to);
    const double centre = std::max(0.0, (static_cast<double>(i) + 0.5) * scale - 0.5);
    tap.low = std::min(static_cast<int64_t>(centre), from - 1);
    tap.high = std::min(tap.low + 1, from - 1);
    tap.weight = static_cast<float>(centre - static_cast<double>(tap.low));
  }
  return taps;
}

Resizer::Resizer(Resize kind, int64_t from_height, int64_t from_width, int64_t to_height,
                 int64_t to_width)
    : from_width_(from_width),
      rows_(taps(kind, from_height, to_height)),
      columns_(taps(kind, from_width, to_width)) {}

void Resizer::apply(std::span<const float> from, std::span<float> to) const {
  float* out = to.data();
  for (const Tap& row : rows_) {
    const float* low = from.data() + row.low * from_width_;
    const float* high = from.data() + row.high * from_width_;
    for (const Tap& column : columns_) {
      const float above = low[column.low] * (1 - column.weight) + low[column.high] * column.weight;
      const float below =
          high[column.low] * (1 - column.weight) + high[column.high] * column.weight;
      *out++ = above * (1 - row.weight) + below * row.weight;
    }
  }
}

}  // namespace halfnote
