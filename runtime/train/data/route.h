// How one field of a data set becomes one input of a model: which shape it gets and which
// arithmetic is done on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "base/system/mapped_files.h"
#include "runtime/train/data/dataset.h"
#include "runtime/train/data/input_options.h"

namespace halfnote {

/// Both ends belong to it.
struct Range {
  double least = 0, most = 0;
};

/// An input that takes data. The first dim of `shape` is the batch unless it is whole.
struct ModelInput {
  std::string name;
  DType dtype = DType::kUndefined;
  SymbolicShape shape;
  bool whole = false;      // takes its field as it is in every step, without a dim for the batch
  int64_t batch_axis = 0;  // where the model has the batch: samples are put side by side there
  /// What the loss compares with: numbers as they are, unless options name the input.
  bool target = false;
  std::optional<Range> range;  // of its numbers
  bool hides = false;          // a mask of scores: -Inf is a number of it (values/masks.h)
};

/// One planned conversion. Images are (channels, height, width); everything else is one plane of
/// one row.
struct Route {
  enum class Kind { kCopy, kNumber, kFloat };

  ModelInput input;
  size_t field = 0;
  Kind kind = Kind::kCopy;
  /// Of the field in a large mapped file: samples are read from there, since a look at the map
  /// brings megabytes around each of them into memory.
  std::optional<FilePlace> place;
  Shape shape;  // of one sample as the input takes it
  int64_t from_channels = 1, from_height = 1, from_width = 1;
  int64_t channels = 1, height = 1, width = 1;
  bool scaled = false, resized = false;
  std::vector<float> mean, deviation;  // one a channel, or empty
  Resizer resizer;
  std::vector<float> table;  // u8 that is not resized: 256 results a channel

  /// Of u8 elements.
  float divisor() const { return scaled ? 255.0f : 1.0f; }
  int64_t elements() const { return channels * height * width; }
  /// (x - mean) / std, in f32.
  float normalised(size_t channel, float value) const {
    return mean.empty() ? value : (value - mean[channel]) / deviation[channel];
  }
};

/// Plans the conversion of field `field`. A whole input comes with a first dim of 1, as its field
/// does. Throws Error(kData) naming both sides when they do not
/// fit.
Route make_route(const Dataset& data, size_t field, const ModelInput& input,
                 const InputOptions& options);

/// `image u8[28,28] -> x f32[3,32,32]: /255, resized (bilinear), grey to 3 channels`.
std::string describe(const Route& route, const Dataset& data, Resize resize);

/// What conversions need room for; kept by the caller, so that nothing is allocated after the first
/// call.
struct ConvertRoom {
  std::vector<float> floats;
  std::map<size_t, DataField> samples;  // read from files, by field
};

/// Converts one sample; `to` holds one row of the input. Throws Error(kData) with the sample's
/// index for a number that the input's type does not hold.
void convert_sample(const Route& route, const Dataset& data, int64_t sample, std::byte* to,
                    ConvertRoom& room);

}  // namespace halfnote
