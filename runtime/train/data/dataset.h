// A data set in memory: named arrays whose first dim counts the samples, but for those that are
// one value for all of them (the edges of a graph, a table of anchors).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"

namespace halfnote {

/// One array of a data set, (samples, sample shape…), or (1, shape…) if it is whole.
struct DataField {
  std::string name;
  Tensor data;
  bool whole = false;  // the same for every sample; see Dataset::split_samples

  DType dtype() const { return data.dtype(); }
  /// The shape of one sample; empty for a scalar.
  Shape sample_shape() const { return {data.shape().begin() + 1, data.shape().end()}; }
  /// `image u8[28,28]`.
  std::string to_string() const;
};

/// The arrays share their bytes with every copy of the data set, so copying one is cheap.
class Dataset {
 public:
  Dataset() = default;
  /// Throws Error(kData) naming `origin` for no field or a name used twice.
  Dataset(std::string origin, std::vector<DataField> fields);

  /// Says which fields are whole: no samples, but one value for all; they get a first dim of 1.
  /// Throws Error(kData) if one of the others is a scalar or they hold unequal numbers of samples.
  void split_samples(std::span<const size_t> whole);
  /// Keeps the first `limit` samples (0: all), sharing their bytes.
  void take_first(int64_t limit);

  /// Number of samples; 1 if every field is whole. Known once the samples are split.
  int64_t size() const { return size_; }
  std::span<const DataField> fields() const { return fields_; }
  /// The field of this name; null if there is none.
  const DataField* find(std::string_view name) const;
  /// Where it came from, for messages.
  const std::string& origin() const { return origin_; }
  /// The pages of files that fields are maps of leave the process; they come back when they are
  /// read. Data can be larger than memory.
  void release_pages() const;

 private:
  std::string origin_;
  std::vector<DataField> fields_;
  int64_t size_ = 0;
};

/// Checks that every element of a field of integers or whole floats is a class in [0, classes) or
/// `ignore_index`. Throws Error(kData) with the index of the first sample that is not.
void check_labels(const Dataset& data, const DataField& field, int64_t classes,
                  std::optional<int64_t> ignore_index = std::nullopt);

}  // namespace halfnote
