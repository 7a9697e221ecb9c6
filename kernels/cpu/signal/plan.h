// What DFT and STFT mean: which elements a transform reads and where its values go. The walks are
// the devices' own.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu {

/// The longest transform that is taken apart: a table of its roots is kept.
inline constexpr int64_t kLongestTransform = int64_t{1} << 24;

/// A tensor of reals, or of pairs of real and imaginary parts, along one axis.
struct Line {
  int64_t dim = 1, inner = 1, parts = 1;  // inner: lines between two elements

  Line() = default;
  Line(const Shape& shape, size_t axis);
  /// Where element `i` of line `line` starts.
  HN_HD int64_t at(int64_t line, int64_t i) const {
    return ((line / inner * dim + i) * inner + line % inner) * parts;
  }
};

struct DftPlan {
  Line from, to;
  DType type = DType::kUndefined, result = DType::kUndefined;
  int64_t length = 0, bins = 0, lines = 0;
  bool inverse = false, mirrored = false;  // mirrored: a one-sided spectrum comes in

  /// Elements of a line that are read; those after them follow from the mirror, or are zero.
  HN_HD int64_t known() const { return mirrored ? length / 2 + 1 : length; }
};

/// Why there is none, or an empty string.
std::string plan_dft(const KernelCall& call, DftPlan& plan);

/// signal (batch, signal_length, 1 or 2) -> (batch, frames, bins, 2)
struct StftPlan {
  DType type = DType::kUndefined;
  int64_t batch = 0, signal_length = 0, parts = 1;
  int64_t frames = 0, step = 1, length = 0, bins = 0;
  bool windowed = false;

  /// The element of the signals at which a frame starts.
  HN_HD int64_t first(int64_t frame) const {
    return frame / frames * signal_length + frame % frames * step;
  }
};

/// Why there is none, or an empty string.
std::string plan_stft(const KernelCall& call, StftPlan& plan);

}  // namespace halfnote::cpu
