#include "base/ops/resample.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace halfnote {
namespace {

[[noreturn]] void invalid(const char* attribute, const std::string& value) {
  throw Error(ErrorCode::kModel, std::string("invalid attribute ") + attribute + " of Resize")
      .expected("a value that ONNX knows", value);
}

/// The place in the input that result `i` stands for.
double source_of(const std::string& mode, const AxisResize& axis, int64_t i) {
  const auto at = static_cast<double>(i), input = static_cast<double>(axis.input);
  const double length = axis.scale * input;  // of the result, not rounded
  if (mode == "half_pixel") return (at + 0.5) / axis.scale - 0.5;
  if (mode == "asymmetric") return at / axis.scale;
  if (mode == "align_corners") return length == 1 ? 0 : at * (input - 1) / (length - 1);
  if (mode == "pytorch_half_pixel") return length == 1 ? 0 : (at + 0.5) / axis.scale - 0.5;
  if (mode == "half_pixel_symmetric") {
    const double offset = input / 2 * (1 - static_cast<double>(axis.output) / length);
    return offset + (at + 0.5) / axis.scale - 0.5;
  }
  if (mode == "tf_crop_and_resize") {
    const double region = (axis.end - axis.begin) * (input - 1);
    const double step = length == 1 ? region / 2 : at * region / (length - 1);
    return step + axis.begin * (input - 1);
  }
  invalid("coordinate_transformation_mode", mode);
}

int64_t nearest(const std::string& mode, double x) {
  const double low = std::floor(x), part = x - low;
  double index = low;
  if (mode == "round_prefer_floor") {
    index = part <= 0.5 ? low : low + 1;
  } else if (mode == "round_prefer_ceil") {
    index = part < 0.5 ? low : low + 1;
  } else if (mode == "ceil") {
    index = std::ceil(x);
  } else if (mode != "floor") {
    invalid("nearest_mode", mode);
  }
  return static_cast<int64_t>(index);
}

double cubic(double a, double x) {
  x = std::fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

double linear(double x) { return std::max(0.0, 1 - std::fabs(x)); }

/// Adds a row to `taps`.
class RowWriter {
 public:
  RowWriter(const Attributes& attributes, const AxisResize& axis, Taps& taps)
      : axis_(axis),
        taps_(taps),
        mode_(attributes.get_string("mode", "nearest")),
        nearest_(attributes.get_string("nearest_mode", "round_prefer_floor")),
        a_(attributes.get_float("cubic_coeff_a", -0.75f)),
        exclude_(attributes.get_int("exclude_outside", 0) != 0) {
    if (mode_ != "nearest" && mode_ != "linear" && mode_ != "cubic") invalid("mode", mode_);
    // A filter that shrinks is widened, so that it sees every element.
    const bool widened = attributes.get_int("antialias", 0) != 0 && mode_ != "nearest";
    stretch_ = widened ? std::min(axis.scale, 1.0) : 1.0;
  }

  void write(double x) {
    if (mode_ == "nearest") return add(nearest(nearest_, x), 1);
    // Elements from the first to the last in reach, those beyond the border too.
    const double reach = (mode_ == "cubic" ? 2.0 : 1.0) / stretch_;
    const auto first = static_cast<int64_t>(std::ceil(x - reach));
    const auto last = static_cast<int64_t>(std::floor(x + reach));
    double sum = 0;
    for (int64_t i = first; i <= last; ++i) sum += weight(i, x);
    for (int64_t i = first; i <= last && sum != 0; ++i) {
      const double share = weight(i, x) / sum;
      if (share != 0) add(i, share);
    }
  }

 private:
  double weight(int64_t i, double x) const {
    if (exclude_ && (i < 0 || i >= axis_.input)) return 0;
    const double distance = (static_cast<double>(i) - x) * stretch_;
    return mode_ == "cubic" ? cubic(a_, distance) : linear(distance);
  }

  /// Elements beyond the border are those at it.
  void add(int64_t source, double weight) {
    taps_.sources.push_back(std::clamp<int64_t>(source, 0, axis_.input - 1));
    taps_.weights.push_back(weight);
  }

  const AxisResize& axis_;
  Taps& taps_;
  const std::string mode_, nearest_;
  const double a_;
  const bool exclude_;
  double stretch_ = 1;
};

/// One value per axis of X, `other` for the axes that `axes` leaves out.
std::vector<double> per_axis(const std::vector<double>& values, const std::vector<int64_t>& axes,
                             size_t rank, size_t from, double other) {
  std::vector<double> all(rank, other);
  for (size_t i = 0; i < axes.size() && !values.empty(); ++i) {
    all[static_cast<size_t>(axes[i])] = values[from + i];
  }
  return all;
}

void require_count(size_t count, size_t wanted, const char* what) {
  if (count == 0 || count == wanted) return;
  throw Error(ErrorCode::kModel, std::string(what) + " of Resize has the wrong number of elements")
      .expected(std::to_string(wanted), std::to_string(count));
}

std::vector<int64_t> axes_of(const Attributes& attributes, size_t rank) {
  std::vector<int64_t> all;
  for (size_t i = 0; i < rank; ++i) all.push_back(static_cast<int64_t>(i));
  std::vector<int64_t> axes = attributes.get_ints("axes", all);
  for (int64_t& axis : axes) axis = normalize_axis(axis, static_cast<int64_t>(rank));
  return axes;
}

/// Sizes, or one common scale of them where the aspect ratio is kept.
std::vector<double> scales_of(const Attributes& attributes, const ResizeOperands& operands,
                              const std::vector<int64_t>& axes, const Shape& input,
                              const Shape& output) {
  if (!operands.scales.empty()) return per_axis(operands.scales, axes, input.size(), 0, 1);
  std::vector<double> scales(input.size(), 1);
  const std::string policy = attributes.get_string("keep_aspect_ratio_policy", "stretch");
  const bool stretch = policy == "stretch" || operands.sizes.empty();
  double common = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes[i]);
    if (stretch) {
      scales[axis] = static_cast<double>(output[axis]) / static_cast<double>(input[axis]);
      continue;
    }
    const double own = static_cast<double>(operands.sizes[i]) / static_cast<double>(input[axis]);
    common = i == 0                    ? own
             : policy == "not_larger"  ? std::min(common, own)
             : policy == "not_smaller" ? std::max(common, own)
                                       : -1;
  }
  if (common < 0) invalid("keep_aspect_ratio_policy", policy);
  for (size_t i = 0; i < axes.size() && !stretch; ++i)
    scales[static_cast<size_t>(axes[i])] = common;
  return scales;
}

}  // namespace

Taps transposed(const Taps& taps) {
  Taps result;
  result.inputs = taps.outputs();
  result.starts.assign(static_cast<size_t>(taps.inputs) + 1, 0);
  for (int64_t source : taps.sources) ++result.starts[static_cast<size_t>(source) + 1];
  for (size_t i = 1; i < result.starts.size(); ++i) result.starts[i] += result.starts[i - 1];
  std::vector<int64_t> next(result.starts.begin(), result.starts.end() - 1);
  result.sources.resize(taps.sources.size());
  result.weights.resize(taps.weights.size());
  for (int64_t row = 0; row < taps.outputs(); ++row) {
    const auto end = static_cast<size_t>(taps.starts[static_cast<size_t>(row) + 1]);
    for (auto k = static_cast<size_t>(taps.starts[static_cast<size_t>(row)]); k < end; ++k) {
      const auto to = static_cast<size_t>(next[static_cast<size_t>(taps.sources[k])]++);
      result.sources[to] = row;
      result.weights[to] = taps.weights[k];
    }
  }
  return result;
}

std::vector<AxisResize> resized_axes(const Attributes& attributes, const ResizeOperands& operands,
                                     const Shape& input, const Shape& output) {
  const std::vector<int64_t> axes = axes_of(attributes, input.size());
  require_count(operands.scales.size(), axes.size(), "operand scales");
  require_count(operands.sizes.size(), axes.size(), "operand sizes");
  const bool crops =
      attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize";
  std::vector<double> begin(input.size(), 0), end(input.size(), 1);
  if (crops) {
    require_count(std::max<size_t>(operands.roi.size(), 1), 2 * axes.size(), "operand roi");
    begin = per_axis(operands.roi, axes, input.size(), 0, 0);
    end = per_axis(operands.roi, axes, input.size(), axes.size(), 1);
  }
  const std::vector<double> scales = scales_of(attributes, operands, axes, input, output);
  std::vector<AxisResize> resized;
  for (size_t axis = 0; axis < input.size(); ++axis) {
    const bool whole = begin[axis] == 0 && end[axis] == 1;
    if (input[axis] == output[axis] && std::fabs(scales[axis] - 1) < 1e-9 && whole) continue;
    if (input[axis] < 1 || scales[axis] <= 0) {
      throw Error(ErrorCode::kModel, "Resize of an empty axis, or by a scale that is not positive")
          .expected("dim " + std::to_string(axis) + " of 1 or more, and a positive scale",
                    std::to_string(input[axis]) + " and " + std::to_string(scales[axis]));
    }
    resized.push_back({axis, input[axis], output[axis], scales[axis], begin[axis], end[axis]});
  }
  return resized;
}

Taps resize_taps(const Attributes& attributes, const AxisResize& axis) {
  const std::string mode = attributes.get_string("coordinate_transformation_mode", "half_pixel");
  const bool extrapolates = mode == "tf_crop_and_resize";
  Taps taps;
  taps.inputs = axis.input;
  taps.starts.push_back(0);
  RowWriter rows(attributes, axis, taps);
  for (int64_t i = 0; i < axis.output; ++i) {
    const double x = source_of(mode, axis, i);
    const bool outside = extrapolates && (x < 0 || x > static_cast<double>(axis.input - 1));
    if (extrapolates) taps.outside.push_back(outside ? 1 : 0);
    if (!outside) rows.write(x);
    taps.starts.push_back(static_cast<int64_t>(taps.sources.size()));
  }
  return taps;
}

}  // namespace halfnote
