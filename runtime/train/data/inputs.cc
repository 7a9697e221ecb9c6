#include "runtime/train/data/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <span>

#include "base/error.h"

namespace halfnote {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<float> numbers(std::string_view text, std::string_view whole) {
  std::vector<float> values;
  for (const std::string_view part : split(text, '/')) {
    float value = 0;
    const auto [end, status] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (status != std::errc() || end != part.data() + part.size() || !std::isfinite(value)) {
      throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", whole))
          .expected("MEAN,STD, each a number that FP32 holds, or one a channel with slashes",
                    fmt::format("\"{}\"", part));
    }
    values.push_back(value);
  }
  return values;
}

std::string names_of(const Dataset& data) {
  std::vector<std::string> names;
  for (const DataField& field : data.fields()) names.push_back(field.to_string());
  return fmt::format("{}", fmt::join(names, ", "));
}

size_t index_of(const Dataset& data, std::string_view name) {
  for (size_t i = 0; i < data.fields().size(); ++i) {
    if (data.fields()[i].name == name) return i;
  }
  return data.fields().size();
}

/// Throws unless every `--map` names an input and a field that exist.
void check_names(const Dataset& data, std::span<const ModelInput> inputs,
                 const InputOptions& options) {
  std::vector<std::string_view> input_names, field_names;
  for (const ModelInput& input : inputs) input_names.push_back(input.name);
  for (const DataField& field : data.fields()) field_names.push_back(field.name);
  std::set<std::string_view> mapped;
  for (const auto& [input, field] : options.names) {
    if (!mapped.insert(input).second) {
      throw Error(ErrorCode::kUsage, fmt::format("--map names input \"{}\" twice", input))
          .expected("one field for each input", "two");
    }
    const bool known =
        std::find(input_names.begin(), input_names.end(), input) != input_names.end();
    if (known && data.find(field) != nullptr) continue;
    const std::string_view wrong = known ? field : input;
    const std::string_view near = closest(wrong, known ? field_names : input_names);
    throw Error(ErrorCode::kUsage,
                fmt::format("--map {}={}: no such {}", input, field, known ? "field" : "input"))
        .expected(fmt::format("{}", fmt::join(known ? field_names : input_names, ", ")),
                  std::string(wrong))
        .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
  }
}

/// The field of every input: by `--map`, then by name, then the remaining ones in order.
std::vector<size_t> choose_fields(const Dataset& data, std::span<const ModelInput> inputs,
                                  const InputOptions& options) {
  const size_t none = data.fields().size();
  std::vector<size_t> chosen(inputs.size(), none);
  std::vector<bool> taken(none, false);
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::string_view wanted = inputs[i].name;
    for (const auto& [input, field] : options.names) {
      if (input == inputs[i].name) wanted = field;
    }
    chosen[i] = index_of(data, wanted);
    if (chosen[i] != none) taken[chosen[i]] = true;
  }
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (chosen[i] != none) continue;
    while (next < none && taken[next]) ++next;
    if (next == none) {
      throw Error(ErrorCode::kData, fmt::format("no data for input \"{}\"", inputs[i].name))
          .at({data.origin(), {}, {}})
          .expected(fmt::format("{} fields", inputs.size()), names_of(data));
    }
    taken[next] = true;
    chosen[i] = next;
  }
  return chosen;
}

/// The fields of the whole inputs. Throws for one that also feeds an input of samples.
std::vector<size_t> whole_fields(const Dataset& data, std::span<const size_t> fields,
                                 std::span<const ModelInput> inputs) {
  std::vector<size_t> whole;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].whole) whole.push_back(fields[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].whole || std::find(whole.begin(), whole.end(), fields[i]) == whole.end())
      continue;
    throw Error(ErrorCode::kUsage, fmt::format("field \"{}\" cannot be fed whole and by samples",
                                               data.fields()[fields[i]].name))
        .at({data.origin(), {}, {}})
        .expected(fmt::format("input \"{}\" fed whole too", inputs[i].name), "samples")
        .hint("--whole names every input that is fed whole");
  }
  return whole;
}

/// The first of `count` floats whose exponent bits are all set, that is Inf or NaN; `count` if
/// there is none. `exponent` masks these bits.
template <class Bits>
int64_t first_special(const std::byte* row, int64_t count, Bits exponent) {
  const auto* bits = reinterpret_cast<const Bits*>(row);
  const auto is_special = [exponent](Bits x) { return (x & exponent) == exponent; };
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= is_special(bits[i]);
  return any ? std::find_if(bits, bits + count, is_special) - bits : count;
}

int64_t first_special(DType dtype, const std::byte* row, int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return first_special<uint64_t>(row, count, 0x7ff0'0000'0000'0000u);
    case DType::kF32:
      return first_special<uint32_t>(row, count, 0x7f80'0000u);
    case DType::kF16:
      return first_special<uint16_t>(row, count, 0x7c00u);
    case DType::kBF16:
      return first_special<uint16_t>(row, count, 0x7f80u);
    default:
      return count;
  }
}

}  // namespace

void parse_normalize(std::string_view text, InputOptions& options) {
  const std::vector<std::string_view> parts = split(text, ',');
  if (parts.size() != 2) {
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("MEAN,STD", fmt::format("{} parts", parts.size()))
        .hint("separate the channels with slashes: 0.49/0.48/0.45,0.25/0.24/0.26");
  }
  options.mean = numbers(parts[0], text);
  options.deviation = numbers(parts[1], text);
  if (options.mean.size() != options.deviation.size()) {
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("as many means as deviations",
                  fmt::format("{} and {}", options.mean.size(), options.deviation.size()));
  }
  for (const float value : options.deviation) {
    if (value > 0) continue;
    throw Error(ErrorCode::kUsage, fmt::format("--normalize {}", text))
        .expected("deviations above 0", fmt::format("{}", value));
  }
}

void parse_input_names(std::string_view text, InputOptions& options) {
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == part.size()) {
      throw Error(ErrorCode::kUsage, fmt::format("--map {}", text))
          .expected("INPUT=FIELD", fmt::format("\"{}\"", part));
    }
    options.names.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
}

InputMap::InputMap(Dataset data, std::span<const ModelInput> inputs, const InputOptions& options)
    : data_(std::move(data)), resize_(options.resize) {
  check_names(data_, inputs, options);
  const std::vector<size_t> fields = choose_fields(data_, inputs, options);
  data_.split_samples(whole_fields(data_, fields, inputs));
  data_.take_first(options.limit);
  whole_.resize(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    ModelInput input = inputs[i];
    if (input.whole) input.shape.insert(input.shape.begin(), Dim(1));
    routes_.push_back(make_route(data_, fields[i], input, options));
    if (!input.whole) continue;
    std::vector<float> scratch;
    whole_[i] = Tensor(input.dtype, sample_shape(i));
    fill(i, 0, 0, whole_[i], scratch);
  }
}

Shape InputMap::batch_shape(size_t index, int64_t rows) const {
  Shape shape = sample_shape(index);
  if (!is_whole(index)) shape.insert(shape.begin(), rows);
  return shape;
}

size_t InputMap::batch_bytes(int64_t rows) const {
  size_t bytes = 0;
  for (size_t i = 0; i < size(); ++i) {
    const auto elements = static_cast<size_t>(element_count(batch_shape(i, rows)));
    bytes += elements * size_of(input(i).dtype);
  }
  return bytes;
}

int64_t InputMap::rows_of(size_t index, int64_t count) const {
  if (!is_whole(index)) return count;
  return sample_shape(index).empty() ? 1 : sample_shape(index)[0];
}

bool InputMap::normalises() const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [](const Route& route) { return !route.mean.empty(); });
}

bool InputMap::takes_bytes() const {
  return std::any_of(routes_.begin(), routes_.end(), [&](const Route& route) {
    return is_float(route.input.dtype) && data_.fields()[route.field].data.dtype() == DType::kU8;
  });
}

bool InputMap::resizes() const {
  return std::any_of(routes_.begin(), routes_.end(),
                     [](const Route& route) { return route.resized; });
}

std::vector<std::string> InputMap::describe() const {
  std::vector<std::string> lines;
  std::vector<bool> used(data_.fields().size(), false);
  for (const Route& route : routes_) {
    used[route.field] = true;
    lines.push_back(halfnote::describe(route, data_, resize_));
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) lines.push_back(data_.fields()[i].to_string() + " is not used");
  }
  return lines;
}

Tensor InputMap::make_batch(size_t index, int64_t rows) const {
  return Tensor(input(index).dtype, batch_shape(index, rows));
}

void InputMap::fill(size_t index, int64_t sample, int64_t row, Tensor& batch,
                    std::vector<float>& scratch) const {
  const Route& route = routes_[index];
  const size_t row_bytes = static_cast<size_t>(route.elements()) * size_of(route.input.dtype);
  std::byte* target = batch.mutable_bytes() + static_cast<size_t>(row) * row_bytes;
  convert_sample(route, data_, sample, target, scratch);
  if (is_float(data_.fields()[route.field].data.dtype())) check_finite(route, sample, target);
}

void InputMap::check_finite(const Route& route, int64_t sample, const std::byte* row) const {
  const int64_t bad = first_special(route.input.dtype, row, route.elements());
  if (bad == route.elements()) return;
  const DataField& field = data_.fields()[route.field];
  Tensor value(route.input.dtype, {});
  std::memcpy(value.mutable_bytes(), row + static_cast<size_t>(bad) * size_of(value.dtype()),
              value.byte_size());
  const std::string what =
      std::isnan(value.at_as_double(0))
          ? std::string("NaN")
          : fmt::format("Inf, or too large a number for {},", short_name(value.dtype()));
  throw Error(ErrorCode::kData, route.input.whole ? fmt::format("\"{}\" is not finite", field.name)
                                                  : fmt::format("sample {} of \"{}\" is not finite",
                                                                sample, field.name))
      .at({data_.origin(), {}, {}})
      .expected("finite numbers", fmt::format("{} in element {}", what, bad))
      .hint("clean the data: one such sample costs every update that it is in");
}

}  // namespace halfnote
