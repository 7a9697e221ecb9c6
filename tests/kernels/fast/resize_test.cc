// Our own Resize and its gradient against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

struct ResizeCase {
  const char* name;
  Shape x, y;
  std::string mode = "linear", coordinates = "half_pixel";
  bool antialias = false;
};

const ResizeCase kResizes[] = {
    {"twice", {2, 3, 8, 8}, {2, 3, 16, 16}},
    {"twice_odd", {2, 3, 7, 5}, {2, 3, 14, 10}},
    {"twice_aligned", {1, 5, 16, 17}, {1, 5, 32, 34}, "linear", "align_corners"},
    {"four_times", {2, 2, 9, 21}, {2, 2, 36, 84}},
    {"half", {2, 3, 16, 20}, {2, 3, 8, 10}},
    {"antialiased", {2, 3, 16, 21}, {2, 3, 5, 8}, "linear", "half_pixel", true},
    {"other_scale", {1, 2, 10, 33}, {1, 2, 17, 50}, "linear", "asymmetric"},
    {"nearest", {2, 3, 8, 9}, {2, 3, 16, 18}, "nearest", "asymmetric"},
    {"nearest_other_scale", {2, 3, 8, 9}, {2, 3, 13, 40}, "nearest"},
    {"cubic", {1, 3, 9, 8}, {1, 3, 18, 16}, "cubic"},
    {"one_element", {2, 2, 1, 1}, {2, 2, 3, 2}},
    {"to_one_element", {2, 2, 5, 4}, {2, 2, 1, 1}, "linear", "align_corners"},
    {"height_alone", {2, 3, 6, 20}, {2, 3, 12, 20}},
    {"width_alone", {2, 3, 6, 20}, {2, 3, 6, 33}},
    {"one_dim", {3, 5, 33}, {3, 5, 66}},
    {"three_dims", {1, 2, 3, 5, 6}, {1, 2, 6, 10, 12}},
    {"columns_of_one", {2, 3, 8, 1}, {2, 3, 16, 3}, "cubic"},
    {"columns_of_one_down", {1, 20, 30, 1}, {1, 20, 7, 2}},
    {"all_axes", {2, 3, 4, 5}, {3, 5, 7, 9}},
    {"large", {1, 1, 40, 70}, {1, 1, 80, 140}},
};

Attributes resize_attributes(const ResizeCase& c) {
  Attributes attributes{{"mode", c.mode}, {"coordinate_transformation_mode", c.coordinates}};
  if (c.antialias) attributes.set("antialias", int64_t{1});
  return attributes;
}

Tensor shape_tensor(const Shape& shape) {
  return Tensor::of<int64_t>({static_cast<int64_t>(shape.size())}, std::span<const int64_t>(shape));
}

std::vector<Tensor> resize_inputs(const ResizeCase& c, const Tensor& x) {
  return {x, Tensor(), Tensor(), shape_tensor(c.y)};
}

TEST(FastResize, AgreesWithTheReference) {
  const RunOptions fast{.kernel = "fast"};
  for (const ResizeCase& c : kResizes) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)));
      Attributes attributes = resize_attributes(c);
      const Tensor x = random_tensor(type, c.x, -1, 1, 1), dy = random_tensor(type, c.y, -1, 1, 2);
      const OutputSpec y{type, c.y}, dx{type, c.x};
      // Each pass rounds weights, products and sums of some numbers of about 1 (gradients: of as
      // many as the scale says, twice).
      const double store = 2 * unit_roundoff(type), sums = 256 * 0x1p-24;
      expect_close(run_one("", "Resize", resize_inputs(c, x), attributes, y, fast),
                   run_one("", "Resize", resize_inputs(c, x), attributes, y), store, sums);
      attributes.set("sizes", c.y);
      expect_close(run_one(kOwn, "ResizeGrad", {dy, shape_tensor(c.x)}, attributes, dx, fast),
                   run_one(kOwn, "ResizeGrad", {dy, shape_tensor(c.x)}, attributes, dx), store,
                   sums);
    }
  }
}

/// What is not finite goes where the reference brings it, and nowhere else.
TEST(FastResize, KeepsNonFiniteNumbersInTheirPlaces) {
  for (const ResizeCase& c : kResizes) {
    SCOPED_TRACE(c.name);
    Tensor x = random_tensor(DType::kF32, c.x, -1, 1, 1);
    auto values = x.mutable_data<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % 17 == 3) values[i] = std::numeric_limits<float>::infinity();
      if (i % 23 == 5) values[i] = std::nanf("");
    }
    const Attributes attributes = resize_attributes(c);
    const OutputSpec y{DType::kF32, c.y};
    expect_close(run_one("", "Resize", resize_inputs(c, x), attributes, y, {.kernel = "fast"}),
                 run_one("", "Resize", resize_inputs(c, x), attributes, y), 0x1p-22, 256 * 0x1p-24);
  }
}

TEST(FastResize, IsExactForTheNearest) {
  const Attributes attributes{{"mode", std::string("nearest")}};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Tensor x = random_tensor(type, {2, 3, 7, 19}, -1, 1, 1);
    const std::vector<Tensor> inputs{x, Tensor(), Tensor(), shape_tensor({2, 3, 14, 38})};
    const OutputSpec y{type, {2, 3, 14, 38}};
    EXPECT_TRUE(identical(run_one("", "Resize", inputs, attributes, y, {.kernel = "fast"}),
                          run_one("", "Resize", inputs, attributes, y)));
  }
}

TEST(FastResize, SaysWhatItDoesNotTake) {
  const Tensor x(DType::kF32, {1, 1, 4, 4});
  const auto reason = [&](const Tensor& of, const Shape& to, const Attributes& attributes) {
    return refusals("", "Resize", {of, Tensor(), Tensor(), shape_tensor(to)}, attributes,
                    {{of.dtype(), to}}, {.kernel = "fast"});
  };
  EXPECT_NE(reason(x, x.shape(), {}).find("nothing to resize"), std::string::npos);
  EXPECT_NE(reason(Tensor(DType::kF64, {1, 1, 4, 4}), {1, 1, 8, 8}, {}).find("f64"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
