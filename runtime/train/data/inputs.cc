#include "runtime/train/data/inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "base/error.h"

namespace halfnote {
namespace {

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

bool takes_bytes_of(const Dataset& data, const Route& route) {
  return is_float(route.input.dtype) && data.fields()[route.field].data.dtype() == DType::kU8;
}

/// Throws for a flag that names an input which has no use for it, and for one that names none
/// where several could be meant.
void check_scaling(const Dataset& data, std::span<const Route> routes,
                   const InputOptions& options) {
  std::vector<std::string_view> names, floats;
  for (const Route& route : routes) {
    names.push_back(route.input.name);
    const bool general = !route.input.target && !options.named.contains(route.input.name);
    if (is_float(route.input.dtype) && general) floats.push_back(route.input.name);
  }
  if (!options.scaling.mean.empty() && floats.size() > 1) {
    throw Error(ErrorCode::kUsage, "--normalize MEAN,STD does not say which input is meant")
        .expected("one input of floats", fmt::format("{}", fmt::join(floats, ", ")))
        .hint(fmt::format("name it: --normalize {}=MEAN,STD, once for each", floats[0]));
  }
  for (const auto& [name, scaling] : options.named) {
    const char* flag = scaling.bytes ? "--bytes" : "--normalize";
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      const std::string_view near = closest(name, names);
      throw Error(ErrorCode::kUsage, fmt::format("{} {}=…: no such input", flag, name))
          .expected(fmt::format("{}", fmt::join(names, ", ")), name)
          .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
    }
    const Route& route = routes[static_cast<size_t>(at - names.begin())];
    const bool idle = scaling.bytes ? !takes_bytes_of(data, route) : !is_float(route.input.dtype);
    if (!idle) continue;
    throw Error(ErrorCode::kUsage, fmt::format("{} {}=… does nothing here", flag, name))
        .expected(scaling.bytes ? "data of type u8 for an input of floats" : "an input of floats",
                  fmt::format("{} for {}", data.fields()[route.field].to_string(),
                              short_name(route.input.dtype)));
  }
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

double number_at(DType dtype, const std::byte* row, int64_t index) {
  const auto at = [&](auto zero) {
    decltype(zero) value;
    std::memcpy(&value, row + static_cast<size_t>(index) * sizeof value, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kF64:
      return at(double{});
    case DType::kF16:
      return to_f32(at(Half{}));
    case DType::kBF16:
      return to_f32(at(BFloat16{}));
    default:
      return at(float{});
  }
}

/// Puts a sample into row `row` along the axis of the batch.
void put_at(const Route& route, int64_t row, std::span<const std::byte> sample, Tensor& batch) {
  const auto axis = static_cast<size_t>(route.input.batch_axis);
  const auto rows = static_cast<size_t>(batch.shape()[axis]);
  const Shape behind(route.shape.begin() + route.input.batch_axis, route.shape.end());
  const size_t piece = static_cast<size_t>(element_count(behind)) * size_of(route.input.dtype);
  std::byte* to = batch.mutable_bytes() + static_cast<size_t>(row) * piece;
  for (size_t from = 0; from < sample.size(); from += piece, to += rows * piece) {
    std::memcpy(to, sample.data() + from, piece);
  }
}

}  // namespace

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
    if (!input.whole) {
      const Tensor& samples = data_.fields()[fields[i]].data;
      routes_.back().place = find_mapping({samples.bytes(), samples.byte_size()});
      continue;
    }
    ConvertRoom room;
    whole_[i] = Tensor(input.dtype, sample_shape(i));
    fill(i, 0, 0, whole_[i], room);
  }
  check_scaling(data_, routes_, options);
}

Shape InputMap::batch_shape(size_t index, int64_t rows) const {
  Shape shape = sample_shape(index);
  if (!is_whole(index)) shape.insert(shape.begin() + input(index).batch_axis, rows);
  return shape;
}

int64_t InputMap::row_of(size_t index, int64_t element, int64_t rows) const {
  const Shape& sample = sample_shape(index);
  const Shape behind(sample.begin() + input(index).batch_axis, sample.end());
  return element / std::max<int64_t>(element_count(behind), 1) % rows;
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
  return std::any_of(routes_.begin(), routes_.end(),
                     [&](const Route& route) { return takes_bytes_of(data_, route); });
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
                    ConvertRoom& room) const {
  const Route& route = routes_[index];
  const size_t row_bytes = static_cast<size_t>(route.elements()) * size_of(route.input.dtype);
  const bool floats = is_float(data_.fields()[route.field].data.dtype());
  if (route.input.batch_axis == 0) {
    std::byte* target = batch.mutable_bytes() + static_cast<size_t>(row) * row_bytes;
    convert_sample(route, data_, sample, target, room);
    if (floats) check_finite(route, sample, target);
    check_range(route, sample, target);
    return;
  }
  std::vector<std::byte> alone(row_bytes);
  convert_sample(route, data_, sample, alone.data(), room);
  if (floats) check_finite(route, sample, alone.data());
  check_range(route, sample, alone.data());
  put_at(route, row, alone, batch);
}

void InputMap::check_range(const Route& route, int64_t sample, const std::byte* row) const {
  if (!route.input.range) return;
  const auto [least, most] = *route.input.range;
  for (int64_t i = 0; i < route.elements(); ++i) {
    const double value = number_at(route.input.dtype, row, i);
    if (value >= least && value <= most) continue;
    const DataField& field = data_.fields()[route.field];
    const bool bytes = field.data.dtype() == DType::kU8 && most == 1 && value <= 255;
    throw Error(ErrorCode::kData,
                fmt::format("sample {} of \"{}\" is no target of the loss", sample, field.name))
        .at({data_.origin(), {}, {}})
        .expected(std::isinf(most) ? fmt::format("numbers of {} or more", least)
                                   : fmt::format("numbers from {} to {}", least, most),
                  fmt::format("{} in element {}", value, i))
        .hint(bytes ? fmt::format("--bytes {}=scale divides by 255", route.input.name) : "");
  }
}

void InputMap::check_finite(const Route& route, int64_t sample, const std::byte* row) const {
  int64_t bad = first_special(route.input.dtype, row, route.elements());
  if (route.input.hides) {
    const auto hidden = [&](int64_t i) {
      return number_at(route.input.dtype, row, i) == -HUGE_VAL;
    };
    const auto special = [&](int64_t i) {
      return !std::isfinite(number_at(route.input.dtype, row, i));
    };
    while (bad < route.elements() && (hidden(bad) || !special(bad))) ++bad;
  }
  if (bad == route.elements()) return;
  const DataField& field = data_.fields()[route.field];
  const std::string what =
      std::isnan(number_at(route.input.dtype, row, bad))
          ? std::string("NaN")
          : fmt::format("Inf, or too large a number for {},", short_name(route.input.dtype));
  throw Error(ErrorCode::kData, route.input.whole ? fmt::format("\"{}\" is not finite", field.name)
                                                  : fmt::format("sample {} of \"{}\" is not finite",
                                                                sample, field.name))
      .at({data_.origin(), {}, {}})
      .expected(route.input.hides ? "finite numbers, or -Inf" : "finite numbers",
                fmt::format("{} in element {}", what, bad))
      .hint("clean the data: one such sample costs every update that it is in");
}

}  // namespace halfnote
