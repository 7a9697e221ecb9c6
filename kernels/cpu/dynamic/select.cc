// Picking elements by value: NonZero, Compress, Unique.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cpu/dynamic/parts.h"

namespace halfnote::cpu {

namespace {

Tensor ints(std::vector<int64_t> values) {
  return Tensor::of<int64_t>({static_cast<int64_t>(values.size())}, values);
}

/// (rank, found): the indices of the elements that are not zero, in row-major order.
std::vector<Tensor> run_non_zero(const DynamicCall& call) {
  const Tensor& x = required(call, 0);
  const Shape strides = strides_of(x.shape());
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.at_as_double(i) != 0) found.push_back(i);
  }
  Tensor result(DType::kI64,
                {static_cast<int64_t>(strides.size()), static_cast<int64_t>(found.size())});
  const auto to = result.mutable_data<int64_t>();
  for (size_t d = 0; d < strides.size(); ++d) {
    for (size_t i = 0; i < found.size(); ++i)
      to[d * found.size() + i] = found[i] / strides[d] % x.shape()[d];
  }
  return {result};
}

/// The tensor seen as (outer, dim, inner) along an axis.
struct Along {
  int64_t outer = 1, dim = 1, inner = 1;
  Along(const Shape& shape, int64_t axis) : dim(shape[static_cast<size_t>(axis)]) {
    const std::span<const int64_t> dims(shape);
    outer = element_count(dims.first(static_cast<size_t>(axis)));
    inner = element_count(dims.subspan(static_cast<size_t>(axis) + 1));
  }
};

/// The slices `picks` of an axis, in that order.
Tensor pick(const Tensor& x, int64_t axis, const std::vector<int64_t>& picks) {
  const Along along(x.shape(), axis);
  Shape shape = x.shape();
  shape[static_cast<size_t>(axis)] = static_cast<int64_t>(picks.size());
  Tensor result(x.dtype(), shape);
  const size_t bytes = static_cast<size_t>(along.inner) * size_of(x.dtype());
  std::byte* to = result.mutable_bytes();
  for (int64_t o = 0; o < along.outer; ++o) {
    for (const int64_t at : picks) {
      const auto from = static_cast<size_t>(o * along.dim + at);
      if (bytes > 0) std::memcpy(to, x.bytes() + from * bytes, bytes);
      to += bytes;
    }
  }
  return result;
}

std::vector<Tensor> run_compress(const DynamicCall& call) {
  const bool flat = !call.attributes.has("axis");
  const Tensor& given = required(call, 0);
  const Tensor x = flat ? given.reshaped({given.size()}) : given;
  const auto rank = static_cast<int64_t>(x.shape().size());
  const int64_t axis = normalize_axis(call.attributes.get_int("axis", 0), rank);
  const Tensor& condition = required(call, 1);
  std::vector<int64_t> picks;
  // Elements of the condition beyond the axis are ignored, missing ones are false.
  const int64_t count = std::min(condition.size(), x.shape()[static_cast<size_t>(axis)]);
  for (int64_t i = 0; i < count; ++i) {
    if (condition.at_as_int(i) != 0) picks.push_back(i);
  }
  return {pick(x, axis, picks)};
}

/// The order of two slices, element by element; NaN comes last.
int compare_slices(const Tensor& x, const Along& along, int64_t a, int64_t b) {
  for (int64_t o = 0; o < along.outer; ++o) {
    for (int64_t i = 0; i < along.inner; ++i) {
      const double left = x.at_as_double((o * along.dim + a) * along.inner + i);
      const double right = x.at_as_double((o * along.dim + b) * along.inner + i);
      if (std::isnan(left) || std::isnan(right)) {
        if (std::isnan(left) != std::isnan(right)) return std::isnan(left) ? 1 : -1;
      } else if (left != right) {
        return left < right ? -1 : 1;
      }
    }
  }
  return 0;
}

/// Unique slices: the first place of each, in sorted order or in that of first appearance.
std::vector<Tensor> run_unique(const DynamicCall& call) {
  const bool flat = !call.attributes.has("axis");
  const Tensor& given = required(call, 0);
  const Tensor x = flat ? given.reshaped({given.size()}) : given;
  const auto rank = static_cast<int64_t>(x.shape().size());
  const int64_t axis = normalize_axis(call.attributes.get_int("axis", 0), rank);
  const Along along(x.shape(), axis);
  std::vector<int64_t> order(static_cast<size_t>(along.dim));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return compare_slices(x, along, a, b) < 0; });
  std::vector<int64_t> first, inverse(order.size()), counts;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare_slices(x, along, order[i - 1], order[i]) != 0) {
      first.push_back(order[i]);
      counts.push_back(0);
    }
    inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(first.size()) - 1;
    ++counts.back();
  }
  if (call.attributes.get_int("sorted", 1) == 0) {
    std::vector<size_t> rank_of(first.size()), by_place(first.size());
    std::iota(by_place.begin(), by_place.end(), size_t{0});
    std::sort(by_place.begin(), by_place.end(),
              [&](size_t a, size_t b) { return first[a] < first[b]; });
    std::vector<int64_t> new_first, new_counts;
    for (size_t i = 0; i < by_place.size(); ++i) {
      rank_of[by_place[i]] = i;
      new_first.push_back(first[by_place[i]]);
      new_counts.push_back(counts[by_place[i]]);
    }
    for (int64_t& group : inverse)
      group = static_cast<int64_t>(rank_of[static_cast<size_t>(group)]);
    first = std::move(new_first);
    counts = std::move(new_counts);
  }
  return {pick(x, axis, first), ints(first), ints(inverse), ints(counts)};
}

bool is_number(const DynamicCall& call) {
  return call.has_input(0) && call.inputs[0].dtype() != DType::kString;
}

}  // namespace

std::vector<DynamicRow> select_dynamic_rows() {
  return {
      {"", "Compress", is_number, run_compress},
      {"", "NonZero", is_number, run_non_zero},
      {"", "Unique", is_number, run_unique},
  };
}

}  // namespace halfnote::cpu
