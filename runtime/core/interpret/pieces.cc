// A tensor is seen as (outer, dim, inner); both ways copy blocks of dim × inner elements.
#include "runtime/core/interpret/pieces.h"

#include <cstring>

#include "base/error.h"

namespace halfnote {
namespace {

struct View {
  int64_t outer = 1, block = 1, inner = 1;  // block: elements of one outer position
};

View view_of(const Shape& shape, int64_t axis) {
  const std::span<const int64_t> dims(shape);
  const auto at = static_cast<size_t>(axis);
  const int64_t inner = element_count(dims.subspan(at + 1));
  return {element_count(dims.first(at)), shape[at] * inner, inner};
}

/// Collects elements of one type in order.
class Collector {
 public:
  Collector(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
    if (dtype_ == DType::kString) return;
    tensor_ = Tensor(dtype_, shape_);
    to_ = tensor_.mutable_bytes();
  }

  void add(const Tensor& from, int64_t begin, int64_t count) {
    if (dtype_ == DType::kString) {
      const auto first = from.string_data().begin() + begin;
      strings_.insert(strings_.end(), first, first + count);
      return;
    }
    const size_t unit = size_of(dtype_);
    const size_t bytes = static_cast<size_t>(count) * unit;
    if (bytes > 0) std::memcpy(to_, from.bytes() + static_cast<size_t>(begin) * unit, bytes);
    to_ += bytes;
  }

  Tensor finish() {
    if (dtype_ == DType::kString) return Tensor::strings(shape_, std::move(strings_));
    return std::move(tensor_);
  }

 private:
  DType dtype_;
  Shape shape_;
  Tensor tensor_;
  std::byte* to_ = nullptr;
  std::vector<std::string> strings_;
};

/// The shape of the whole; every piece must fit.
Shape joined_shape(std::span<const Tensor> pieces, int64_t axis) {
  if (pieces.empty()) throw Error(ErrorCode::kData, "nothing to put together");
  Shape whole = pieces[0].shape();
  const auto at = static_cast<size_t>(axis);
  for (size_t i = 1; i < pieces.size(); ++i) {
    Shape wanted = pieces[0].shape();
    if (wanted.size() == pieces[i].shape().size()) wanted[at] = pieces[i].shape()[at];
    if (wanted != pieces[i].shape() || pieces[i].dtype() != pieces[0].dtype()) {
      throw Error(ErrorCode::kData, "tensors that do not fit together")
          .expected(std::string(short_name(pieces[0].dtype())) + to_string(wanted),
                    std::string(short_name(pieces[i].dtype())) + to_string(pieces[i].shape()));
    }
    whole[at] = checked_add(whole[at], wanted[at]);
  }
  return whole;
}

}  // namespace

Tensor slice_along(const Tensor& tensor, int64_t axis, int64_t begin, int64_t end) {
  Shape shape = tensor.shape();
  const View view = view_of(shape, axis);
  shape[static_cast<size_t>(axis)] = end - begin;
  Collector collector(tensor.dtype(), std::move(shape));
  for (int64_t o = 0; o < view.outer; ++o) {
    collector.add(tensor, o * view.block + begin * view.inner, (end - begin) * view.inner);
  }
  return collector.finish();
}

Tensor take_along(const Tensor& tensor, int64_t axis, int64_t index) {
  Shape shape = tensor.shape();
  shape.erase(shape.begin() + axis);
  return slice_along(tensor, axis, index, index + 1).reshaped(std::move(shape));
}

Tensor concat_along(std::span<const Tensor> pieces, int64_t axis) {
  const Shape whole = joined_shape(pieces, axis);
  const int64_t outer = view_of(whole, axis).outer;
  Collector collector(pieces[0].dtype(), whole);
  for (int64_t o = 0; o < outer; ++o) {
    for (const Tensor& piece : pieces) {
      const int64_t block = view_of(piece.shape(), axis).block;
      collector.add(piece, o * block, block);
    }
  }
  return collector.finish();
}

Tensor stack_along(std::span<const Tensor> pieces, int64_t axis) {
  std::vector<Tensor> raised;
  for (const Tensor& piece : pieces) {
    Shape shape = piece.shape();
    shape.insert(shape.begin() + axis, 1);
    raised.push_back(piece.reshaped(std::move(shape)));
  }
  return concat_along(raised, axis);
}

}  // namespace halfnote
