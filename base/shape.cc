// Every product of dims is checked before it is used: shapes come from files.
#include "base/shape.h"

#include <algorithm>

#include "base/error.h"

namespace halfnote {

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    throw Error(ErrorCode::kModel, "a size does not fit into 64 bits")
        .expected("a smaller product", std::to_string(a) + " times " + std::to_string(b));
  }
  return result;
}

int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    throw Error(ErrorCode::kModel, "a size does not fit into 64 bits")
        .expected("a smaller sum", std::to_string(a) + " plus " + std::to_string(b));
  }
  return result;
}

int64_t element_count(std::span<const int64_t> shape) {
  int64_t count = 1, without_zeros = 1;
  for (const int64_t dim : shape) {
    if (dim < 0) throw Error(ErrorCode::kModel, "a negative dim in shape " + to_string(shape));
    if (without_zeros > kMaxElements / std::max<int64_t>(dim, 1)) {
      throw Error(ErrorCode::kModel, "a tensor is too large")
          .expected("at most 2^40 elements", "shape " + to_string(shape));
    }
    without_zeros *= std::max<int64_t>(dim, 1);
    count *= dim;
  }
  return count;
}

Shape strides_of(std::span<const int64_t> shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = checked_mul(strides[i], shape[i]);
  return strides;
}

std::string to_string(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  }
  return text + "]";
}

int64_t normalize_axis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    throw Error(ErrorCode::kModel, "axis out of range")
        .expected("an axis in [" + std::to_string(-rank) + ", " + std::to_string(rank) + ")",
                  std::to_string(axis));
  }
  return axis < 0 ? axis + rank : axis;
}

Shape broadcast_shapes(std::span<const int64_t> a, std::span<const int64_t> b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t x = i < result.size() - a.size() ? 1 : a[i - (result.size() - a.size())];
    const int64_t y = i < result.size() - b.size() ? 1 : b[i - (result.size() - b.size())];
    if (x != y && x != 1 && y != 1) {
      throw Error(ErrorCode::kModel, "shapes do not broadcast")
          .expected("dims that are equal or 1", to_string(a) + " and " + to_string(b));
    }
    result[i] = x == 1 ? y : x;
  }
  return result;
}

bool is_concrete(const SymbolicShape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](const Dim& dim) { return dim.known(); });
}

Shape concrete(const SymbolicShape& shape) {
  Shape result;
  for (const Dim& dim : shape) result.push_back(dim.value);
  return result;
}

SymbolicShape symbolic(std::span<const int64_t> shape) { return {shape.begin(), shape.end()}; }

std::string to_string(const SymbolicShape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ",";
    text += shape[i].known() ? std::to_string(shape[i].value)
                             : (shape[i].symbol.empty() ? "?" : shape[i].symbol.str());
  }
  return text + "]";
}

}  // namespace halfnote
