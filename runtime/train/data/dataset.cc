#include "runtime/train/data/dataset.h"

#include <fmt/format.h>
#include <cmath>

#include "base/error.h"
#include "base/system/mapped_files.h"

namespace halfnote {
namespace {

template <class T>
int64_t first_outside(std::span<const T> labels, int64_t classes, std::optional<int64_t> ignore) {
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool ignored =
        ignore && std::in_range<T>(*ignore) && labels[i] == static_cast<T>(*ignore);
    const bool inside = std::cmp_greater_equal(labels[i], 0) && std::cmp_less(labels[i], classes);
    if (!inside && !ignored) return static_cast<int64_t>(i);
  }
  return -1;
}

/// Of floats, which feed an integer input where they are whole.
int64_t first_outside_floats(const Tensor& labels, int64_t classes, std::optional<int64_t> ignore) {
  for (int64_t i = 0; i < labels.size(); ++i) {
    const double label = labels.at_as_double(i);
    const bool inside = label >= 0 && label < static_cast<double>(classes);
    const bool ignored = ignore && label == static_cast<double>(*ignore);
    if (!(inside || ignored) || label != std::trunc(label)) return i;
  }
  return -1;
}

int64_t first_outside(const Tensor& labels, int64_t classes, std::optional<int64_t> ignore) {
  if (is_float(labels.dtype())) return first_outside_floats(labels, classes, ignore);
  switch (labels.dtype()) {
    case DType::kU8:
      return first_outside(labels.data<uint8_t>(), classes, ignore);
    case DType::kI8:
      return first_outside(labels.data<int8_t>(), classes, ignore);
    case DType::kU16:
      return first_outside(labels.data<uint16_t>(), classes, ignore);
    case DType::kI16:
      return first_outside(labels.data<int16_t>(), classes, ignore);
    case DType::kU32:
      return first_outside(labels.data<uint32_t>(), classes, ignore);
    case DType::kI32:
      return first_outside(labels.data<int32_t>(), classes, ignore);
    case DType::kU64:
      return first_outside(labels.data<uint64_t>(), classes, ignore);
    case DType::kI64:
      return first_outside(labels.data<int64_t>(), classes, ignore);
    default:
      break;
  }
  throw Error(ErrorCode::kData, "labels of this type name no class")
      .expected("integers, or whole floats", std::string(short_name(labels.dtype())));
}

/// As text, because a u64 label may not fit an int64_t.
std::string element_text(const Tensor& tensor, int64_t index) {
  if (tensor.dtype() == DType::kU64) {
    return std::to_string(tensor.data<uint64_t>()[static_cast<size_t>(index)]);
  }
  if (is_float(tensor.dtype())) return fmt::format("{}", tensor.at_as_double(index));
  return std::to_string(tensor.at_as_int(index));
}

/// The first `bytes` bytes in another shape.
Tensor with_shape(const Tensor& tensor, Shape shape, size_t bytes) {
  return Tensor(tensor.dtype(), std::move(shape), tensor.storage(), bytes);
}

}  // namespace

std::string DataField::to_string() const {
  return fmt::format("{} {}{}", name, short_name(dtype()), halfnote::to_string(sample_shape()));
}

Dataset::Dataset(std::string origin, std::vector<DataField> fields)
    : origin_(std::move(origin)), fields_(std::move(fields)) {
  if (fields_.empty()) throw Error(ErrorCode::kData, "no arrays in the data").at({origin_, {}, {}});
  for (size_t i = 0; i < fields_.size(); ++i) {
    const DataField& field = fields_[i];
    for (size_t j = 0; j < i; ++j) {
      if (fields_[j].name != field.name) continue;
      throw Error(ErrorCode::kData, fmt::format("two arrays are named \"{}\"", field.name))
          .at({origin_, {}, {}});
    }
  }
  const Shape& first = fields_[0].data.shape();
  size_ = first.empty() ? 1 : first[0];
}

void Dataset::split_samples(std::span<const size_t> whole) {
  for (const size_t index : whole) {
    DataField& field = fields_[index];
    if (field.whole) continue;
    Shape shape = field.data.shape();
    shape.insert(shape.begin(), 1);
    field.data = with_shape(field.data, std::move(shape), field.data.byte_size());
    field.whole = true;
  }
  const DataField* first = nullptr;
  for (const DataField& field : fields_) {
    if (field.whole) continue;
    if (field.data.shape().empty()) {
      throw Error(ErrorCode::kData, fmt::format("array \"{}\" is a scalar", field.name))
          .at({origin_, {}, {}})
          .expected("a first dim that counts samples", "shape []");
    }
    if (first == nullptr) first = &field;
    const int64_t count = field.data.shape()[0];
    const int64_t expected = first->data.shape()[0];
    if (count == expected) continue;
    throw Error(ErrorCode::kData, "arrays hold different numbers of samples")
        .at({origin_, {}, {}})
        .expected(fmt::format("{} as in \"{}\"", expected, first->name),
                  fmt::format("{} in \"{}\"", count, field.name))
        .hint(expected > 0 && count > expected && count % expected == 0
                  ? fmt::format("if \"{}\" is flattened, give it the shape ({}, {}); --whole INPUT "
                                "feeds an array that holds no samples whole in every step",
                                field.name, expected, count / expected)
                  : "--whole INPUT feeds an array that holds no samples whole in every step");
  }
  size_ = first == nullptr ? 1 : first->data.shape()[0];
}

void Dataset::take_first(int64_t limit) {
  if (limit <= 0 || limit >= size_) return;
  for (DataField& field : fields_) {
    if (field.whole) continue;
    Shape shape = field.data.shape();
    shape[0] = limit;
    const size_t sample_bytes = field.data.byte_size() / static_cast<size_t>(size_);
    field.data =
        with_shape(field.data, std::move(shape), sample_bytes * static_cast<size_t>(limit));
  }
  size_ = limit;
}

const DataField* Dataset::find(std::string_view name) const {
  for (const DataField& field : fields_) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

void Dataset::release_pages() const {
  for (const DataField& field : fields_)
    release_mapped({field.data.bytes(), field.data.byte_size()});
}

void check_labels(const Dataset& data, const DataField& field, int64_t classes,
                  std::optional<int64_t> ignore_index) {
  const int64_t index = first_outside(field.data, classes, ignore_index);
  if (index < 0) return;
  const int64_t elements = field.data.size() / field.data.shape()[0];
  const double label = field.data.at_as_double(index);
  const bool whole = label == std::floor(label);
  const bool beside = ignore_index && (*ignore_index < 0 || *ignore_index >= classes);
  const std::string place =
      field.whole ? fmt::format("element {}", index) : fmt::format("sample {}", index / elements);
  throw Error(ErrorCode::kData, fmt::format("label out of range in \"{}\", {}", field.name, place))
      .at({data.origin(), {}, {}})
      .expected(fmt::format("{}0 to {}{}", whole ? "" : "a whole number from ", classes - 1,
                            beside ? fmt::format(" or {}", *ignore_index) : std::string()),
                element_text(field.data, index))
      .hint(!whole      ? "labels are numbers of classes; --loss mse, huber and l1 take any number"
            : label < 0 ? "if these labels are to be left out, compile with --ignore-index " +
                              element_text(field.data, index)
                        : "the model has fewer classes than the data, or the labels are wrong");
}

}  // namespace halfnote
