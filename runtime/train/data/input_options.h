// What the flags of a run say of the data on its way into the inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/train/data/image.h"

namespace halfnote {

/// What becomes of u8 data for a float input: divided by 255 (auto: where a sample has two dims or
/// more, as an image does), or kept as numbers from 0 to 255.
enum class Bytes : uint8_t { kAuto, kScale, kKeep };

/// `auto`, `scale`, `keep`; throws Error(kUsage) for other words.
Bytes bytes_from_name(std::string_view name);

/// What is done to the numbers of a float input.
struct Scaling {
  std::vector<float> mean, deviation;  // empty, one number, or one a channel
  std::optional<Bytes> bytes;
};

struct InputOptions {
  std::vector<std::pair<std::string, std::string>>
      names;                                          // input and field, stronger than any rule
  Scaling scaling;                                    // of float inputs but the loss's target
  std::map<std::string, Scaling, std::less<>> named;  // of single inputs, stronger
  Resize resize = Resize::kNone;  // what to do when image sizes differ; none: refuse
  int64_t limit = 0;              // only the first samples; 0: all

  /// `target`: the loss compares with the input. Its bytes are numbers unless it is named.
  Scaling scaling_of(const std::string& input, bool target) const;
};

/// `--normalize MEAN,STD`, per channel with slashes: `0.286,0.353` or
/// `0.49/0.48/0.45,0.25/0.24/0.26`; of one input: `INPUT=MEAN,STD`. Throws Error(kUsage).
void parse_normalize(std::string_view text, InputOptions& options);

/// `--bytes WORD` or `--bytes INPUT=WORD`. Throws Error(kUsage).
void parse_bytes(std::string_view text, InputOptions& options);

/// `--map INPUT=FIELD,…`. Appends to names; throws Error(kUsage).
void parse_input_names(std::string_view text, InputOptions& options);

}  // namespace halfnote
