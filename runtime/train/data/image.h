// Resizing one image plane. Pixel centres lie at half integers, edges are clamped, nothing is
// smoothed before shrinking: the rule of PyTorch's interpolate with align_corners=False.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace halfnote {

enum class Resize { kNone, kNearest, kBilinear };

/// `none`, `nearest`, `bilinear`; throws Error(kUsage) for other words.
Resize resize_from_name(std::string_view name);
std::string_view resize_name(Resize resize);

/// The sources and weights of every target row and column, made once for a pair of sizes.
class Resizer {
 public:
  Resizer() = default;
  Resizer(Resize kind, int64_t from_height, int64_t from_width, int64_t to_height,
          int64_t to_width);
  /// `from` is (from_height, from_width), `to` is (to_height, to_width); all in f32.
  void apply(std::span<const float> from, std::span<float> to) const;

 private:
  struct Tap {
    int64_t low = 0, high = 0;
    float weight = 0;  // of `high`
  };
  static std::vector<Tap> taps(Resize kind, int64_t from, int64_t to);

  int64_t from_width_ = 0;
  std::vector<Tap> rows_, columns_;
};

}  // namespace halfnote
