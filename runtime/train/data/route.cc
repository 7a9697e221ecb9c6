#include "runtime/train/data/route.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr int64_t kMaxSide = 1 << 14;  // together 268 million pixels

bool trains_in(DType dtype) {
  return is_16bit_float(dtype) || dtype == DType::kF32 || dtype == DType::kF64;
}

/// The dims of one sample of an input; `?` for what the data decides.
std::string sample_text(const ModelInput& input) {
  std::string text = std::string(short_name(input.dtype)) + "[";
  for (size_t i = 1; i < input.shape.size(); ++i) {
    const Dim& dim = input.shape[i];
    text += (i > 1 ? "," : "") + (dim.known()          ? std::to_string(dim.value)
                                  : dim.symbol.empty() ? "?"
                                                       : dim.symbol.str());
  }
  return text + "]";
}

Error misfit(const Dataset& data, const Route& route, const std::string& why) {
  const std::string& name = route.input.name;
  return Error(ErrorCode::kData, fmt::format("the data does not fit input \"{}\" ({})", name, why))
      .at({data.origin(), {}, {}})
      .expected(sample_text(route.input) + (route.input.whole ? ", whole" : " a sample"),
                data.fields()[route.field].to_string())
      .hint(
          route.input.whole
              ? fmt::format("--batch-axis {}=0 if the first dim of the input counts samples", name)
              : "");
}

int64_t known_or(const Dim& dim, int64_t otherwise) { return dim.known() ? dim.value : otherwise; }

int64_t product(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

Shape without_ones(const Shape& shape) {
  Shape rest;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest),
               [](int64_t dim) { return dim != 1; });
  return rest;
}

/// The input's sample shape with unknown dims taken from the data, when both have the same rank and
/// agree.
bool same_dims(const SymbolicShape& input, const Shape& field, Shape& shape) {
  if (input.size() != field.size() + 1) return false;
  shape.clear();
  for (size_t i = 0; i < field.size(); ++i) {
    if (input[i + 1].known() && input[i + 1].value != field[i]) return false;
    shape.push_back(field[i]);
  }
  return true;
}

/// Dims of 1 added or dropped: labels (N,1) to (N).
bool same_but_for_ones(const SymbolicShape& input, const Shape& field, Shape& shape) {
  shape.clear();
  for (size_t i = 1; i < input.size(); ++i) {
    if (!input[i].known()) return false;
    shape.push_back(input[i].value);
  }
  return without_ones(shape) == without_ones(field);
}

bool flattened(const SymbolicShape& input, const Shape& field, Shape& shape) {
  if (input.size() != 2) return false;
  shape = {product(field)};
  return known_or(input[1], shape[0]) == shape[0];
}

/// Bool, an integer of 8 bits or more, or a float: what becomes any other of them where that is
/// exact.
bool is_number(DType dtype) {
  const bool whole = dtype == DType::kBool || (is_integer(dtype) && bits_of(dtype) >= 8);
  return whole || trains_in(dtype);
}

void fit_integers(const Dataset& data, Route& route) {
  const DataField& field = data.fields()[route.field];
  const bool same = field.dtype() == route.input.dtype;
  if (!same && !(is_number(field.dtype()) && is_number(route.input.dtype))) {
    throw misfit(data, route, "the types differ")
        .hint("bool, integers and floats become each other; convert the array");
  }
  route.kind = same ? Route::Kind::kCopy : Route::Kind::kNumber;
  const Shape from = field.sample_shape();
  if (!same_dims(route.input.shape, from, route.shape) &&
      !same_but_for_ones(route.input.shape, from, route.shape)) {
    const bool positions = route.input.shape.size() == 1 && !from.empty();
    throw misfit(data, route, "the shapes differ")
        .hint(positions ? "labels of the positions of a sample need scores (batch, T, C) and "
                          "compile --class-axis -1"
                        : "");
  }
  route.width = route.from_width = product(from);
}

/// Are these the input's dims but for one? That is no image of another size.
bool lacks_a_dim(const Shape& from, const SymbolicShape& to) {
  if (from.size() + 2 != to.size()) return false;
  for (size_t left_out = 1; left_out < to.size(); ++left_out) {
    bool same = true;
    for (size_t i = 0; i < from.size(); ++i) {
      const auto& dim = to[i + (i + 1 < left_out ? 1 : 2)];
      same &= dim.known() && dim.value == from[i];
    }
    if (same) return true;
  }
  return false;
}

/// Image planes: (H,W) or (C,H,W) to (C,H,W), and (H,W) to (H,W).
void fit_planes(const Dataset& data, Route& route, const InputOptions& options) {
  const Shape from = data.fields()[route.field].sample_shape();
  const SymbolicShape& to = route.input.shape;
  const size_t rank = to.size() - 1;
  const bool has_channels = from.size() == 3;
  route.from_channels = has_channels ? from[0] : 1;
  route.from_height = from[from.size() - 2];
  route.from_width = from[from.size() - 1];
  route.channels = rank == 3 ? known_or(to[1], route.from_channels) : 1;
  route.height = known_or(to[rank - 1], route.from_height);
  route.width = known_or(to[rank], route.from_width);
  if (route.channels != route.from_channels && !(route.from_channels == 1 && route.channels == 3)) {
    const bool last = has_channels && from[2] == route.channels;
    throw misfit(data, route, "the channels differ")
        .hint(last ? "the data has its channels last: transpose it to (N, C, H, W)"
                   : "grey is replicated to 3 channels, nothing else is converted");
  }
  route.resized = route.height != route.from_height || route.width != route.from_width;
  if (route.resized && (route.height > kMaxSide || route.width > kMaxSide))
    throw misfit(data, route, "the image is too large");
  if (route.resized &&
      (options.resize == Resize::kNone || route.from_height == 0 || route.from_width == 0)) {
    if (lacks_a_dim(from, to)) throw misfit(data, route, "a dim is missing");
    throw misfit(data, route, "the sizes differ")
        .hint("of images, --resize bilinear (or nearest) makes others while loading");
  }
  if (route.resized) {
    route.resizer =
        Resizer(options.resize, route.from_height, route.from_width, route.height, route.width);
  }
  route.shape = {route.height, route.width};
  if (rank == 3) route.shape.insert(route.shape.begin(), route.channels);
}

/// Bytes are numbers from 0 to 1 in an image, and what they are elsewhere.
bool scales(const Route& route, const Shape& sample, const Scaling& scaling) {
  const Bytes bytes = scaling.bytes.value_or(Bytes::kAuto);
  if (bytes != Bytes::kAuto) return bytes == Bytes::kScale;
  return !route.input.whole && !route.input.target && sample.size() >= 2;
}

/// Pictures of bytes that a loss compares with may be meant from 0 to 1, as the outputs of most
/// models, or from 0 to 255. Where the loss itself bounds them, what is out of range is told.
void refuse_unclear_bytes(const Dataset& data, const Route& route, const InputOptions& options) {
  const ModelInput& input = route.input;
  const DataField& field = data.fields()[route.field];
  const auto named = options.named.find(input.name);
  const bool said = named != options.named.end() && named->second.bytes.has_value();
  const bool picture = field.dtype() == DType::kU8 && field.sample_shape().size() >= 2;
  if (!input.target || input.whole || input.range || said || !picture) return;
  throw Error(ErrorCode::kUsage,
              fmt::format("it is not clear what the bytes of \"{}\" are to the loss", input.name))
      .at({data.origin(), {}, {}})
      .expected(fmt::format("--bytes {0}=scale (numbers from 0 to 1) or --bytes {0}=keep (from 0 "
                            "to 255)",
                            input.name),
                field.to_string());
}

void fit_floats(const Dataset& data, Route& route, const InputOptions& options) {
  refuse_unclear_bytes(data, route, options);
  const DataField& field = data.fields()[route.field];
  const Shape from = field.sample_shape();
  const bool bytes = field.dtype() == DType::kU8;
  route.scaled =
      bytes && scales(route, from, options.scaling_of(route.input.name, route.input.target));
  if (!is_number(field.dtype())) {
    throw misfit(data, route, "the types differ")
        .hint("bool, integers and floats become each other; convert the array");
  }
  route.kind = Route::Kind::kFloat;
  const size_t rank = route.input.shape.size() - 1;
  const bool image = !route.input.whole && (!route.input.target || options.resize != Resize::kNone);
  const bool planes = image && (from.size() == 2 || from.size() == 3);
  if (planes && (rank == 3 || (rank == 2 && from.size() == 2))) {
    fit_planes(data, route, options);
    return;
  }
  if (!same_dims(route.input.shape, from, route.shape) &&
      !flattened(route.input.shape, from, route.shape) &&
      !same_but_for_ones(route.input.shape, from, route.shape)) {
    throw misfit(data, route, "the shapes differ");
  }
  if (from.size() == 3) route.channels = route.from_channels = from[0];
  route.width = route.from_width = from.size() == 3 ? from[1] * from[2] : product(from);
}

/// One number a channel, from one for all or one for each.
std::vector<float> per_channel(const Dataset& data, const Route& route,
                               const std::vector<float>& values) {
  const auto channels = static_cast<size_t>(route.channels);
  if (values.size() == channels) return values;
  if (values.size() == 1) return std::vector<float>(channels, values[0]);
  throw Error(ErrorCode::kUsage,
              fmt::format("mean and std do not fit input \"{}\"", route.input.name))
      .at({data.origin(), {}, {}})
      .expected(channels == 1 ? "1 number each" : fmt::format("1 or {} numbers each", channels),
                std::to_string(values.size()));
}

void finish_floats(const Dataset& data, Route& route, const InputOptions& options) {
  const Scaling scaling = options.scaling_of(route.input.name, route.input.target);
  if (!scaling.mean.empty()) {
    route.mean = per_channel(data, route, scaling.mean);
    route.deviation = per_channel(data, route, scaling.deviation);
  }
  const bool same_type = data.fields()[route.field].dtype() == route.input.dtype;
  if (same_type && !route.resized && route.mean.empty() && route.channels == route.from_channels) {
    route.kind = Route::Kind::kCopy;
  }
  const bool bytes = data.fields()[route.field].dtype() == DType::kU8;
  if (!bytes || route.resized) return;
  for (size_t channel = 0; channel < static_cast<size_t>(route.channels); ++channel) {
    for (int value = 0; value < 256; ++value) {
      route.table.push_back(route.normalised(channel, static_cast<float>(value) / route.divisor()));
    }
  }
}

/// Does every value of one type fit into another?
bool holds_all(DType to, DType from) {
  if (from == DType::kBool) return true;
  if (to == DType::kBool || trains_in(from)) return false;
  if (trains_in(to)) return size_of(from) <= 2;
  const auto is_unsigned = [](DType type) { return short_name(type).starts_with("u"); };
  if (is_unsigned(to) != is_unsigned(from)) {
    return is_unsigned(from) && size_of(from) < size_of(to);
  }
  return size_of(from) <= size_of(to);
}

std::vector<std::string> steps_of(const Route& route, const Dataset& data, Resize resize) {
  const DType from = data.fields()[route.field].dtype();
  std::vector<std::string> steps;
  if (route.input.whole) steps.push_back("whole");
  if (route.input.batch_axis > 0)
    steps.push_back(fmt::format("samples along axis {}", route.input.batch_axis));
  if (route.scaled) steps.push_back("/255");
  const bool to_float = route.kind == Route::Kind::kFloat;
  if (to_float && is_integer(from) && !route.scaled) steps.push_back("not scaled");
  if (route.resized) steps.push_back(fmt::format("resized ({})", resize_name(resize)));
  if (route.channels != route.from_channels) steps.push_back("grey to 3 channels");
  if (!route.mean.empty()) steps.push_back("normalised");
  const bool changes = route.kind == Route::Kind::kNumber || (to_float && !trains_in(from));
  if (changes && !holds_all(route.input.dtype, from))
    steps.push_back("refused where it does not fit");
  const bool through_f32 =
      to_float && trains_in(from) && from != DType::kF32 && route.input.dtype != DType::kF32;
  if (through_f32) steps.push_back("through f32");
  return steps;
}

}  // namespace

Route make_route(const Dataset& data, size_t field, const ModelInput& input,
                 const InputOptions& options) {
  Route route;
  route.input = input;
  route.field = field;
  if (input.shape.empty()) throw misfit(data, route, "a scalar has no dim for the batch");
  if (trains_in(input.dtype)) {
    fit_floats(data, route, options);
    finish_floats(data, route, options);
    return route;
  }
  if (!is_integer(input.dtype) && input.dtype != DType::kBool) {
    throw misfit(data, route, "no data becomes this type");
  }
  fit_integers(data, route);
  return route;
}

std::string describe(const Route& route, const Dataset& data, Resize resize) {
  const std::vector<std::string> steps = steps_of(route, data, resize);
  return fmt::format("{} -> {} {}{}{}{}", data.fields()[route.field].to_string(), route.input.name,
                     short_name(route.input.dtype), to_string(route.shape),
                     steps.empty() ? "" : ": ", fmt::join(steps, ", "));
}

}  // namespace halfnote
