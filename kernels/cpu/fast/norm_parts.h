// What our fast normalizations share: pieces that stay in the first-level cache, moments that are
// merged from theirs, and parameters in f32.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/fast/vector_math.h"
#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu::fast {

/// A piece in f32.
using Room = std::array<float, kPiece>;

/// Calls `body(start, count)` for the pieces of `length` elements.
template <class Body>
void for_pieces(int64_t length, Body&& body) {
  for (int64_t at = 0; at < length; at += kPiece) body(at, std::min(kPiece, length - at));
}

/// The moments of pieces, merged in double (Chan's formula): a large mean costs no accuracy.
class MergedMoments {
 public:
  /// Elements in f32; count > 0.
  void add(const float* x, int64_t count) {
    double mean = 0, squares = 0;
    vector_math().moments(x, count, &mean, &squares);
    const auto added = static_cast<double>(count);
    const double distance = mean - mean_, total = count_ + added;
    mean_ += distance * added / total;
    squares_ += squares + distance * distance * count_ * added / total;
    count_ = total;
  }
  Moments result() const { return {mean_, squares_ / count_}; }

 private:
  double count_ = 0, mean_ = 0, squares_ = 0;
};

/// Of `length` contiguous elements, whose last piece is left in `room` (for 16 bits).
template <class T>
Moments contiguous_moments(const T* x, int64_t length, Room& room) {
  MergedMoments merged;
  for_pieces(length, [&](int64_t start, int64_t size) {
    merged.add(load_block(x + start, size, room.data()), size);
  });
  const Moments moments = merged.result();
  if (std::isfinite(moments.variance)) return moments;
  // Squares of finite numbers may be too large for f32.
  return moments_of(length, [x](int64_t i) { return static_cast<double>(load(x[i])); });
}

/// y = (x − mean)·inv_std·scale + bias for a line of T or f32; of 16 bits, its last piece lies in
/// `room` in f32.
template <class From, class T>
void write_line(const From* x, int64_t length, double mean, double inv_std, const float* scale,
                const float* bias, Room& room, T* y) {
  const VectorMath& math = vector_math();
  for_pieces(length, [&](int64_t at, int64_t size) {
    const float* shifts = bias ? bias + at : nullptr;
    if constexpr (std::is_same_v<T, float>) {
      math.normalize_line(x + at, size, mean, inv_std, scale + at, shifts, y + at);
    } else {
      const bool lies_there = !std::is_same_v<From, float> && length <= kPiece;
      const float* from = lies_there ? room.data() : load_block(x + at, size, room.data());
      math.scale_line(from, size, mean, static_cast<float>(inv_std), scale + at, shifts,
                      room.data());
      store_block(room.data(), size, y + at);
    }
  });
}

/// A parameter or statistic: its type, and where its f32 form goes.
struct Vector {
  DType dtype = DType::kUndefined;
  int64_t size = 0;
  size_t room = 0;

  Vector() = default;
  Vector(const Operand& operand, WorkspacePlan& workspace)
      : dtype(operand.dtype),
        size(operand.size()),
        room(workspace.add_elements<float>(room_for_reals<float>(operand))) {}
  const float* read(const KernelBuffers& buffers, size_t input) const {
    if (dtype == DType::kUndefined) return nullptr;
    return all_reals(buffers.inputs[input], dtype, size, part<float>(buffers, room), 1);
  }
};

/// Undefined where nobody asks for the output.
inline DType output_type(const KernelCall& call, size_t output) {
  return call.has_output(output) ? call.outputs[output].dtype : DType::kUndefined;
}

}  // namespace halfnote::cpu::fast
