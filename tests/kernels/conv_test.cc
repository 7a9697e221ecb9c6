// Conv, ConvTranspose and the gradients of Conv: against the sum of its definition in f64, every
// gradient as the transpose of that sum, on the reference kernels and on oneDNN.
#include <gtest/gtest.h>

#include "base/error.h"
#include "exact.h"

namespace halfnote::test {
namespace {

struct ConvCase {
  const char* name;
  Shape x, w, y;
  std::vector<int64_t> strides, dilations, pads;
  int64_t group = 1;
};

const ConvCase kConvCases[] = {
    {"plain", {2, 3, 7, 6}, {4, 3, 3, 3}, {2, 4, 5, 4}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"padded", {1, 2, 5, 5}, {3, 2, 3, 3}, {1, 3, 5, 5}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"lopsided", {2, 2, 6, 7}, {3, 2, 3, 2}, {2, 3, 4, 3}, {2, 3}, {1, 1}, {2, 0, 1, 1}},
    {"dilated", {1, 2, 9, 8}, {2, 2, 3, 2}, {1, 2, 5, 6}, {1, 1}, {3, 2}, {1, 0, 1, 0}},
    {"grouped", {2, 6, 5, 5}, {4, 3, 3, 3}, {2, 4, 5, 5}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 2},
    {"depthwise", {2, 5, 6, 6}, {5, 1, 3, 3}, {2, 5, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 5},
    {"pointwise", {2, 5, 4, 3}, {7, 5, 1, 1}, {2, 7, 4, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"strided_pointwise", {2, 5, 5, 5}, {7, 5, 1, 1}, {2, 7, 3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
    {"leftover", {1, 1, 8, 8}, {2, 1, 3, 3}, {1, 2, 3, 3}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
    {"line", {2, 3, 11}, {4, 3, 4}, {2, 4, 5}, {2}, {1}, {0, 1}},
    {"volume",
     {1, 2, 4, 5, 3},
     {3, 2, 2, 3, 2},
     {1, 3, 3, 5, 4},
     {1, 1, 1},
     {1, 1, 1},
     {0, 1, 1, 0, 1, 1}},
    {"wide", {1, 1, 1, 1100}, {1, 1, 1, 5}, {1, 1, 1, 1100}, {1, 1}, {1, 1}, {0, 2, 0, 2}},
    {"kernel_over_input", {1, 1, 2, 2}, {1, 1, 5, 5}, {1, 1, 2, 2}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
};

/// Calls `body(x index, w index, y index)` for each product of the convolution.
template <class Body>
void for_products(const ConvCase& c, Body&& body) {
  const size_t spatial = c.x.size() - 2;
  const Shape out(c.y.begin() + 2, c.y.end()), kernel(c.w.begin() + 2, c.w.end());
  const int64_t filters = c.w[0], channels = c.w[1], per_group = filters / c.group;
  for (int64_t y = 0; y < element_count(c.y); ++y) {
    const int64_t o = y % element_count(out), m = y / element_count(out) % filters;
    const int64_t n = y / element_count(out) / filters;
    for (int64_t k = 0; k < channels * element_count(kernel); ++k) {
      int64_t rest_o = o, rest_k = k % element_count(kernel), position = 0, step = 1;
      bool inside = true;
      for (size_t d = spatial; d-- > 0;) {
        const int64_t at =
            rest_o % out[d] * c.strides[d] + rest_k % kernel[d] * c.dilations[d] - c.pads[d];
        inside = inside && at >= 0 && at < c.x[2 + d];
        position += at * step;
        step *= c.x[2 + d];
        rest_o /= out[d];
        rest_k /= kernel[d];
      }
      if (!inside) continue;
      const int64_t channel = m / per_group * channels + k / element_count(kernel);
      body((n * c.x[1] + channel) * step + position, m * channels * element_count(kernel) + k, y);
    }
  }
}

Attributes attributes_of(const ConvCase& c) {
  return {{"strides", c.strides}, {"dilations", c.dilations}, {"pads", c.pads}, {"group", c.group}};
}

struct Triple {
  Tensor x, w, dy;
  std::vector<double> vx, vw, vy;
};

Triple random_triple(const ConvCase& c, DType type) {
  Triple t{random_tensor(type, c.x, -1, 1, 1),
           random_tensor(type, c.w, -1, 1, 2),
           random_tensor(type, c.y, -1, 1, 3),
           {},
           {},
           {}};
  t.vx = doubles(t.x);
  t.vw = doubles(t.w);
  t.vy = doubles(t.dy);
  return t;
}

double at(const std::vector<double>& values, int64_t index) {
  return values[static_cast<size_t>(index)];
}

void check_forward(const ConvCase& c, DType type, const RunOptions& options) {
  const Triple t = random_triple(c, type);
  const DType math = sum_type(options.kernel, type);
  const Tensor bias = random_tensor(type, {c.w[0]}, -1, 1, 4);
  Exact exact(c.y);
  exact.terms = element_count(c.w) / c.w[0] + 1;
  for_products(c,
               [&](int64_t x, int64_t w, int64_t y) { exact.add(y, at(t.vx, x) * at(t.vw, w)); });
  expect_sums(run_one("", "Conv", {t.x, t.w}, attributes_of(c), {type, c.y}, options), exact, math);
  const int64_t plane = element_count(c.y) / c.y[0] / c.y[1];
  for (int64_t i = 0; i < element_count(c.y); ++i)
    exact.add(i, bias.at_as_double(i / plane % c.y[1]));
  expect_sums(run_one("", "Conv", {t.x, t.w, bias}, attributes_of(c), {type, c.y}, options), exact,
              math);
}

void check_gradients(const ConvCase& c, DType type, const RunOptions& options) {
  const Triple t = random_triple(c, type);
  const DType math = sum_type(options.kernel, type);
  Exact dx(c.x), dw(c.w);
  dx.terms = element_count(c.w) / c.w[1];
  dw.terms = element_count(c.y) / c.y[1];
  for_products(c, [&](int64_t x, int64_t w, int64_t y) {
    dx.add(x, at(t.vw, w) * at(t.vy, y));
    dw.add(w, at(t.vx, x) * at(t.vy, y));
  });
  const auto rank = static_cast<int64_t>(c.x.size());
  const Tensor shape = Tensor::of<int64_t>({rank}, std::span<const int64_t>(c.x));
  expect_sums(
      run_one(kOwn, "ConvGradInput", {t.dy, t.w, shape}, attributes_of(c), {type, c.x}, options),
      dx, math);
  Attributes attributes = attributes_of(c);
  attributes.set("kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end()));
  for (const DType out : {type, DType::kF32}) {
    attributes.set("out_dtype", static_cast<int64_t>(out));
    const std::string why =
        refusals(kOwn, "ConvGradWeight", {t.dy, t.x}, attributes, {{out, c.w}}, options);
    if (why.find("a tap that meets nothing but padding") != std::string::npos) {
      EXPECT_EQ(type, DType::kBF16);
      continue;
    }
    expect_sums(run_one(kOwn, "ConvGradWeight", {t.dy, t.x}, attributes, {out, c.w}, options), dw,
                math);
  }
}

TEST(Conv, ReferenceIsTheSumOfItsDefinition) {
  for (const ConvCase& c : kConvCases) {
    SCOPED_TRACE(c.name);
    for (const DType type : kFloatTypes) check_forward(c, type, {});
  }
}

TEST(Conv, ReferenceGradientsAreItsTranspose) {
  for (const ConvCase& c : kConvCases) {
    SCOPED_TRACE(c.name);
    for (const DType type : kFloatTypes) check_gradients(c, type, {});
  }
}

TEST(Conv, OneDnnAgrees) {
  for (const ConvCase& c : kConvCases) {
    SCOPED_TRACE(c.name);
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      const RunOptions options{.kernel = "onednn", .threads = 2, .check_repeats = false};
      check_forward(c, type, options);
      check_gradients(c, type, options);
    }
  }
}

/// By the library, where that takes the call.
Tensor transposed(const Tensor& x, const Tensor& w, const Attributes& attributes,
                  const OutputSpec& y) {
  const RunOptions library{.kernel = "onednn"};
  const bool taken = refusals("", "ConvTranspose", {x, w}, attributes, {y}, library).empty();
  return run_kernel("", "ConvTranspose", {x, w}, attributes, {y},
                    taken ? library : RunOptions{})[0];
}

/// Each tap lies on one side of the only element, or of the only result: oneDNN's plan for AMX
/// ended with a signal.
TEST(Conv, WindowsThatMeetNothingButPaddingGiveZeros) {
  const Shape x{2, 64, 1, 4, 4}, w{64, 64, 2, 1, 1};
  Attributes attributes{{"dilations", std::vector<int64_t>{2, 1, 1}},
                        {"pads", std::vector<int64_t>{1, 0, 0, 1, 0, 0}},
                        {"kernel_shape", std::vector<int64_t>{2, 1, 1}}};
  const Tensor x_shape = Tensor::of<int64_t>({5}, x);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor images = random_tensor(type, x, -1, 1, 1),
                 weights = random_tensor(type, w, -1, 1, 2);
    const RunOptions library{.kernel = "onednn"};
    EXPECT_NE(refusals("", "Conv", {images, weights}, attributes, {{type, x}}, library), "");
    for (const Tensor& zeros :
         {run_kernel("", "Conv", {images, weights}, attributes, {{type, x}})[0],
          transposed(images, weights, attributes, {type, x}),
          run_kernel("ai.halfnote", "ConvGradInput", {images, weights, x_shape}, attributes,
                     {{type, x}})[0],
          run_kernel("ai.halfnote", "ConvGradWeight", {images, images}, attributes,
                     {{type, w}})[0]}) {
      for (int64_t i = 0; i < zeros.size(); ++i) ASSERT_EQ(zeros.at_as_double(i), 0) << i;
    }
  }
}

/// With strides the elements of x lie apart: one of two planes of y meets none of them.
TEST(Conv, TransposedWindowsBetweenTheElementsGiveZeros) {
  const Shape x{2, 64, 1, 4, 4}, w{64, 64, 2, 3, 3}, y{2, 64, 1, 4, 4};
  const Attributes attributes{{"strides", std::vector<int64_t>{2, 1, 1}},
                              {"dilations", std::vector<int64_t>{2, 1, 1}},
                              {"pads", std::vector<int64_t>{1, 1, 1, 1, 1, 1}},
                              {"kernel_shape", std::vector<int64_t>{2, 3, 3}}};
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor images = random_tensor(type, x, -1, 1, 1),
                 weights = random_tensor(type, w, -1, 1, 2);
    const Tensor zeros = transposed(images, weights, attributes, {type, y});
    for (int64_t i = 0; i < zeros.size(); ++i) ASSERT_EQ(zeros.at_as_double(i), 0) << i;
  }
}

/// oneDNN left numbers of up to 1e35 where a tap meets nothing but padding.
TEST(ConvGradWeight, TapsThatMeetNothingButPaddingHaveNoGradient) {
  for (const int64_t height : {15, 16, 17}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::to_string(height) + " " + std::string(short_name(type)));
      const Shape x{2, 24, height, 1}, y{2, 24, height / 2 + 1, 1}, w{24, 24, 2, 2};
      const Attributes attributes{{"strides", std::vector<int64_t>{2, 2}},
                                  {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                                  {"kernel_shape", std::vector<int64_t>{2, 2}},
                                  {"out_dtype", int64_t{1}}};
      const Tensor dw =
          run_kernel("ai.halfnote", "ConvGradWeight",
                     {random_tensor(type, y, -1, 1, 1), random_tensor(type, x, -1, 1, 2)},
                     attributes, {{DType::kF32, w}})[0];
      for (int64_t i = 0; i < dw.size(); i += 2) ASSERT_EQ(dw.at_as_double(i), 0) << i;
    }
  }
}

/// A volume one deep whose only window lies before it: depthwise kernels took it for an image.
TEST(Conv, DepthwiseWindowsBeforeAVolumeGiveZeros) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor x = random_tensor(type, {2, 15, 1, 5, 2}, -1, 1, 1),
                 w = random_tensor(type, {15, 1, 1, 1, 2}, -1, 1, 2);
    const Attributes attributes{{"strides", std::vector<int64_t>{3, 1, 3}},
                                {"pads", std::vector<int64_t>{1, 0, 3, 1, 0, 3}},
                                {"group", int64_t{15}},
                                {"kernel_shape", std::vector<int64_t>{1, 1, 2}}};
    const Tensor y = run_kernel("", "Conv", {x, w}, attributes, {{type, {2, 15, 1, 5, 3}}})[0];
    for (int64_t i = 0; i < y.size(); ++i) ASSERT_EQ(y.at_as_double(i), 0) << i;
  }
}

TEST(Conv, SumsInF64RoundOnce) {
  for (const ConvCase& c : kConvCases) {
    SCOPED_TRACE(c.name);
    check_forward(c, DType::kF32, {.kernel = "fast", .threads = 2});
    check_gradients(c, DType::kF32, {.kernel = "fast", .threads = 2});
  }
}

TEST(Conv, SumsInF64AreForSmallCalls) {
  const Tensor x(DType::kF32, {32, 16, 16, 16}), w(DType::kF32, {16, 16, 3, 3});
  const Tensor small(DType::kF32, {2, 6, 8, 8}), small_w(DType::kF32, {16, 6, 3, 3});
  const Attributes attributes{{"pads", std::vector<int64_t>{1, 1, 1, 1}},
                              {"kernel_shape", std::vector<int64_t>{3, 3}}};
  const auto reason = [&](std::string_view op, const Tensor& a, const Tensor& b, Shape out) {
    return refusals(op == "Conv" ? "" : kOwn, op, {a, b}, attributes, {{DType::kF32, out}},
                    {.kernel = "fast"});
  };
  EXPECT_EQ(reason("Conv", small, small_w, {2, 16, 8, 8}), "");
  for (const std::string& above :
       {reason("Conv", x, w, x.shape()), reason("ConvGradWeight", x, x, w.shape())})
    EXPECT_NE(above.find("18874368 multiply-adds, above the 131072"), std::string::npos) << above;
  const Tensor half(DType::kBF16, x.shape()), half_w(DType::kBF16, w.shape());
  EXPECT_NE(reason("Conv", half, half_w, x.shape()).find("type bf16"), std::string::npos);
}

TEST(Conv, AutoPadIsExplicitPadding) {
  const Tensor x = random_tensor(DType::kF32, {1, 2, 6, 7}, -1, 1, 1),
               w = random_tensor(DType::kF32, {3, 2, 3, 4}, -1, 1, 2);
  struct Entry {
    const char* mode;
    std::vector<int64_t> pads;
    Shape y;
  };
  const Entry entries[] = {{"SAME_UPPER", {0, 1, 1, 2}, {1, 3, 3, 4}},
                           {"SAME_LOWER", {1, 2, 0, 1}, {1, 3, 3, 4}},
                           {"VALID", {0, 0, 0, 0}, {1, 3, 2, 2}}};
  const std::vector<int64_t> strides{2, 2};
  for (const Entry& entry : entries) {
    const OutputSpec y{DType::kF32, entry.y};
    const Tensor padded =
        run_one("", "Conv", {x, w}, {{"strides", strides}, {"pads", entry.pads}}, y);
    for (const char* kernel : {"reference", "onednn", "fast"}) {
      const Tensor same =
          run_one("", "Conv", {x, w}, {{"strides", strides}, {"auto_pad", std::string(entry.mode)}},
                  y, {.kernel = kernel, .check_repeats = false});
      expect_close(same, padded, 1e-5, 1e-6);
    }
  }
}

TEST(Conv, OfNothing) {
  const Tensor none(DType::kF32, {0, 2, 5, 5}), w = random_tensor(DType::kF32, {3, 2, 3, 3}, -1, 1);
  EXPECT_EQ(run_one("", "Conv", {none, w}, {}, {DType::kF32, {0, 3, 3, 3}}).size(), 0);
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>{3, 3}}};
  const Tensor dw = run_one(kOwn, "ConvGradWeight", {Tensor(DType::kF32, {0, 3, 3, 3}), none},
                            attributes, {DType::kF32, {3, 2, 3, 3}});
  for (const float element : dw.data<float>()) EXPECT_EQ(element, 0);
}

TEST(Conv, RejectsWhatDoesNotFit) {
  const Tensor x(DType::kF32, {1, 4, 5, 5}), w(DType::kF32, {2, 4, 3, 3});
  const OutputSpec y{DType::kF32, {1, 2, 3, 3}};
  const std::vector<int64_t> zero{0, 1}, one{1}, negative{-1, 0, 0, 0};
  EXPECT_NO_THROW(run_one("", "Conv", {x, w}, {}, y));
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"strides", zero}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"strides", one}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"pads", negative}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"group", int64_t{3}}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"group", int64_t{0}}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"auto_pad", std::string("BOTH")}}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {{"kernel_shape", std::vector<int64_t>{2, 2}}}, y),
               Error);
  EXPECT_THROW(run_one("", "Conv", {x, w}, {}, {DType::kF32, {1, 2, 4, 3}}), Error);
  EXPECT_THROW(run_one("", "Conv", {x, w, Tensor(DType::kF32, {3})}, {}, y), Error);
  EXPECT_THROW(run_one("", "Conv", {x, Tensor(DType::kF32, {2})}, {}, y), Error);
  EXPECT_NE(refusals("", "Conv", {Tensor(DType::kF32, {1, 4}), w}, {}, {y}), "");
}

struct TransposeCase {
  const char* name;
  Attributes attributes;
  Shape y;
  std::vector<int64_t> pads;  // that the attributes come to
  std::vector<int64_t> strides{2, 3};
  std::vector<int64_t> dilations{1, 1};
};

const std::vector<int64_t> kTwoThree{2, 3};
const TransposeCase kTransposes[] = {
    {"plain", {{"strides", kTwoThree}}, {1, 4, 7, 11}, {0, 0, 0, 0}},
    {"pads",
     {{"strides", kTwoThree}, {"pads", std::vector<int64_t>{1, 0, 0, 2}}},
     {1, 4, 6, 9},
     {1, 0, 0, 2}},
    {"output_padding",
     {{"strides", kTwoThree}, {"output_padding", std::vector<int64_t>{1, 2}}},
     {1, 4, 8, 13},
     {0, 0, 0, 0}},
    {"output_shape",
     {{"strides", kTwoThree}, {"output_shape", std::vector<int64_t>{6, 8}}},
     {1, 4, 6, 8},
     {1, 2, 0, 1}},
    {"larger_output_shape",
     {{"strides", kTwoThree}, {"output_shape", std::vector<int64_t>{9, 12}}},
     {1, 4, 9, 12},
     {0, 0, 0, 0}},
    {"same_upper",
     {{"strides", kTwoThree}, {"auto_pad", std::string("SAME_UPPER")}},
     {1, 4, 6, 12},
     {0, 0, 1, 0}},
    {"same_lower",
     {{"strides", kTwoThree}, {"auto_pad", std::string("SAME_LOWER")}},
     {1, 4, 6, 12},
     {1, 0, 0, 0}},
    {"dilated", {{"dilations", kTwoThree}}, {1, 4, 7, 7}, {0, 0, 0, 0}, {1, 1}, {2, 3}},
};

TEST(ConvTranspose, IsTheTransposeOfConv) {
  for (const TransposeCase& entry : kTransposes) {
    for (const DType type : kFloatTypes) {
      SCOPED_TRACE(std::string(entry.name) + " " + std::string(short_name(type)));
      // As a convolution from y (1, 4, …) to x (1, 6, 3, 4), in two groups: w is (6, 2, 3, 2).
      const ConvCase c{entry.name,    entry.y,         {6, 2, 3, 2}, {1, 6, 3, 4},
                       entry.strides, entry.dilations, entry.pads,   2};
      const Triple t = random_triple(c, type);
      const Tensor bias = random_tensor(type, {4}, -1, 1, 5);
      Exact exact(entry.y);
      exact.terms = 3 * 6 + 1;
      for_products(
          c, [&](int64_t x, int64_t w, int64_t y) { exact.add(x, at(t.vw, w) * at(t.vy, y)); });
      Attributes attributes = entry.attributes;
      attributes.set("group", int64_t{2});
      const OutputSpec y{type, entry.y};
      expect_sums(run_one("", "ConvTranspose", {t.dy, t.w}, attributes, y), exact, type);
      const int64_t plane = entry.y[2] * entry.y[3];
      for (int64_t i = 0; i < element_count(entry.y); ++i)
        exact.add(i, bias.at_as_double(i / plane % 4));
      const RunOptions fast{.kernel = "onednn", .check_repeats = false};
      const std::string why =
          refusals("", "ConvTranspose", {t.dy, t.w, bias}, attributes, {y}, fast);
      const bool accepted = why.empty();
      const bool reaches = std::string_view(entry.name) != "larger_output_shape";
      // In 16 bits also where no input reaches some output between the strides.
      const bool unreached = why.find("an output that no input reaches") != std::string::npos;
      EXPECT_TRUE((is_16bit_float(type) && unreached) ||
                  accepted == (type != DType::kF64 && reaches))
          << why;
      for (const RunOptions& options : {RunOptions{}, fast}) {
        if (options.kernel == fast.kernel && !accepted) continue;
        expect_sums(run_one("", "ConvTranspose", {t.dy, t.w, bias}, attributes, y, options), exact,
                    type);
      }
      if (type != DType::kF32) continue;
      expect_sums(run_one("", "ConvTranspose", {t.dy, t.w, bias}, attributes, y,
                          {.kernel = "fast", .threads = 2}),
                  exact, DType::kF64);
    }
  }
}

}  // namespace
}  // namespace halfnote::test
