// From the fields of a data set to the inputs of a model.
//
// A whole input takes its field as it is in every step; the other fields are samples.
// A field goes to the input of the same name; inputs without a namesake take the remaining fields
// in order. Types and shapes must then agree, up to these conversions, which `describe` tells and a
// run prints:
//   labels, tokens   any integer type to any integer type, range checked
//   numbers          between the float types, through f32
//   images           u8 to float divided by 255; resized; a channel dim added; grey replicated to 3
//   channels;
//                    normalised as (x - mean) / std; flattened when the input is a vector
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/train/data/dataset.h"
#include "runtime/train/data/route.h"

namespace halfnote {

class InputMap {
 public:
  /// Throws Error(kData) naming input and field when they do not fit, Error(kUsage) for names that
  /// do not exist and for a field that feeds a whole input and one that is not.
  InputMap(Dataset data, std::span<const ModelInput> inputs, const InputOptions& options = {});

  const Dataset& data() const { return data_; }
  /// Number of inputs.
  size_t size() const { return routes_.size(); }
  const ModelInput& input(size_t index) const { return routes_[index].input; }
  /// The field that feeds an input.
  const DataField& field(size_t index) const { return data_.fields()[routes_[index].field]; }
  bool is_whole(size_t index) const { return routes_[index].input.whole; }
  /// The shape of one sample, or of the whole, as the input takes it; symbolic dims have the data's
  /// sizes.
  const Shape& sample_shape(size_t index) const { return routes_[index].shape; }
  /// The shape of the input in a batch of `rows` samples.
  Shape batch_shape(size_t index, int64_t rows) const;
  /// Bytes of all inputs of such a batch.
  size_t batch_bytes(int64_t rows) const;
  /// The row of a batch of `rows` samples that an element of the input belongs to.
  int64_t row_of(size_t index, int64_t element, int64_t rows) const;
  /// How many of the input's rows belong to the first `count` samples: all of a whole input.
  int64_t rows_of(size_t index, int64_t count) const;
  /// Is an input normalised? Does a float input take bytes?
  bool normalises() const;
  bool takes_bytes() const;
  bool resizes() const;
  /// One line an input, and one for the fields that nothing uses.
  std::vector<std::string> describe() const;

  /// What a whole input takes, converted once.
  const Tensor& whole(size_t index) const { return whole_[index]; }
  /// Room for `rows` samples of an input that is not whole.
  Tensor make_batch(size_t index, int64_t rows) const;
  /// Converts sample `sample` of the data into row `row` of such a tensor; see convert_sample.
  /// Throws Error(kData) for a float that is not finite, in the data or in the input's type (a mask
  /// of scores may have -Inf), and for one that is out of the input's range.
  void fill(size_t index, int64_t sample, int64_t row, Tensor& batch, ConvertRoom& room) const;

 private:
  void check_finite(const Route& route, int64_t sample, const std::byte* row) const;
  void check_range(const Route& route, int64_t sample, const std::byte* row) const;

  Dataset data_;
  std::vector<Route> routes_;
  std::vector<Tensor> whole_;  // one an input; undefined where it takes samples
  Resize resize_ = Resize::kNone;
};

}  // namespace halfnote
