// Attention and AttentionGrad of ai.halfnote: the reference's gradient against central differences,
// the blockwise kernels against the reference on sizes around their tiles, and rows that a mask
// hides whole.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "harness.h"
#include "tests/sanitizer.h"

namespace halfnote::test {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct AttentionCase {
  const char* name;
  Shape batch;
  int64_t m, n, d, e;
  std::vector<Shape> terms = {};     // a shape with `hidden` is that of a bool term
  std::vector<float> hidden = {};    // 0: a float term
  size_t differentiated = SIZE_MAX;  // the term whose gradient is asked for
  bool causal = false, trans_k = false, nan_is_zero = false;
  float ratio = -1;   // of a dropout; below 0: none
  int64_t group = 1;  // heads of Q that read one of K and V
};

constexpr int64_t kDropSeed = (int64_t{5} << 32) + 9, kDropStep = 4, kDropNode = 3;

const AttentionCase kCases[] = {
    {"one_element", {1}, 1, 1, 1, 1},
    {"no_batch", {}, 5, 7, 3, 2},
    {"small", {2, 3}, 6, 6, 8, 8},
    {"odd", {2, 1}, 13, 17, 5, 3, {{17}}, {0}},
    {"keys_transposed", {2, 2}, 9, 20, 7, 8, {{2, 1, 1, 20}}, {0}, SIZE_MAX, false, true},
    {"causal", {1, 2}, 70, 70, 16, 16, {}, {}, SIZE_MAX, true},
    {"causal_tiles", {1}, 300, 300, 16, 20, {}, {}, SIZE_MAX, true, true},
    {"few_queries", {2}, 3, 400, 16, 8, {}, {}, SIZE_MAX, false},
    {"few_keys", {2}, 280, 5, 16, 8, {}, {}, SIZE_MAX, true},
    {"wide_head", {1, 2}, 66, 130, 80, 96},
    {"wide_value", {1}, 129, 65, 65, 129, {}, {}, SIZE_MAX, false, true},
    {"trained_bias", {3, 2}, 21, 33, 8, 8, {{1, 2, 21, 33}}, {0}, 0},
    {"bias_and_mask", {3, 2}, 33, 21, 8, 8, {{2, 33, 21}, {3, 1, 1, 21}}, {0, -1e9f}, 0},
    {"mask_then_bias", {2, 2}, 12, 14, 8, 8, {{2, 1, 12, 14}, {12, 14}}, {-3e38f, 0}, 1},
    {"bias_by_row", {2}, 12, 14, 8, 8, {{12, 1}}, {0}},
    {"hidden_rows", {2, 1}, 10, 12, 8, 8, {{2, 1, 10, 1}}, {-1e9f}},
    {"hidden_rows_to_nan", {2, 1}, 10, 12, 8, 8, {{2, 1, 10, 1}}, {kMinusInfinity}},
    {"nan_as_zero",
     {2, 1},
     10,
     12,
     8,
     8,
     {{2, 1, 10, 1}},
     {kMinusInfinity},
     SIZE_MAX,
     false,
     false,
     true},
    {"dropout", {2, 3}, 6, 8, 8, 8, {}, {}, SIZE_MAX, false, false, false, 0.25f},
    {"dropout_odd", {2, 1}, 13, 17, 5, 3, {{17}}, {0}, SIZE_MAX, false, false, false, 0.5f},
    {"dropout_tiles", {2}, 140, 270, 16, 20, {}, {}, SIZE_MAX, false, true, false, 0.1f},
    {"dropout_odd_tiles", {1, 2}, 131, 195, 8, 8, {}, {}, SIZE_MAX, false, false, false, 0.1f},
    {"dropout_causal", {1, 2}, 200, 200, 16, 16, {}, {}, SIZE_MAX, true, false, false, 0.1f},
    {"dropout_and_bias", {3, 2}, 21, 33, 8, 8, {{1, 2, 21, 33}}, {0}, 0, false, false, false, 0.3f},
    {"dropout_of_nothing", {2}, 9, 12, 8, 8, {}, {}, SIZE_MAX, false, false, false, 0.0f},
    {"dropout_of_all", {2}, 9, 12, 8, 8, {}, {}, SIZE_MAX, false, false, false, 1.0f},
    {"groups", {2, 4}, 9, 11, 8, 8, {}, {}, SIZE_MAX, false, false, false, -1, 2},
    {"one_head_of_keys", {3}, 70, 67, 16, 8, {}, {}, SIZE_MAX, true, false, false, -1, 3},
    {"groups_transposed", {2, 4}, 9, 20, 8, 8, {}, {}, SIZE_MAX, false, true, false, -1, 4},
    {"groups_and_all",
     {2, 4},
     13,
     17,
     8,
     8,
     {{4, 13, 17}, {2, 1, 1, 17}},
     {0, -1e9f},
     0,
     false,
     false,
     false,
     0.25f,
     2},
    {"dropout_of_nan",
     {2, 40},
     10,
     3,
     8,
     8,
     {{2, 1, 10, 1}},
     {kMinusInfinity},
     SIZE_MAX,
     false,
     false,
     false,
     0.5f},
};

Shape joined(Shape shape, std::initializer_list<int64_t> tail) {
  shape.insert(shape.end(), tail);
  return shape;
}

Attributes attributes_of(const AttentionCase& c) {
  Attributes attributes{{"scale", static_cast<float>(1 / std::sqrt(static_cast<double>(c.d)))},
                        {"hidden", c.hidden}};
  if (c.causal) attributes.set("is_causal", int64_t{1});
  if (c.trans_k) attributes.set("transK", int64_t{1});
  if (c.nan_is_zero) attributes.set("nan_is_zero", int64_t{1});
  if (c.ratio < 0) return attributes;
  attributes.set("ratio", c.ratio);
  attributes.set("node", kDropNode);
  return attributes;
}

Tensor random_mask(const Shape& shape) {
  const Tensor numbers = random_tensor(DType::kF64, shape, -1, 1, 9);
  Tensor mask(DType::kBool, shape);
  for (size_t i = 0; i < numbers.data<double>().size(); ++i)
    mask.mutable_data<bool>()[i] = numbers.data<double>()[i] > -0.3;
  return mask;
}

/// The batch dims of K and V.
Shape batch_read(const AttentionCase& c) {
  Shape batch = c.batch;
  if (!batch.empty()) batch.back() /= c.group;
  return batch;
}

/// Q, K, V, the terms, and seed and step of a dropout.
std::vector<Tensor> operands_of(const AttentionCase& c, DType type) {
  const Shape read = batch_read(c);
  const Shape k = c.trans_k ? joined(read, {c.d, c.n}) : joined(read, {c.n, c.d});
  std::vector<Tensor> all = {random_tensor(type, joined(c.batch, {c.m, c.d}), -2, 2, 1),
                             random_tensor(type, k, -2, 2, 2),
                             random_tensor(type, joined(read, {c.n, c.e}), -2, 2, 3)};
  const DType wide = type == DType::kF64 ? type : DType::kF32;
  for (size_t i = 0; i < c.terms.size(); ++i) {
    all.push_back(c.hidden[i] != 0 ? random_mask(c.terms[i])
                                   : random_tensor(wide, c.terms[i], -1, 1, 4));
  }
  if (c.ratio >= 0) all.insert(all.end(), {Tensor::scalar(kDropSeed), Tensor::scalar(kDropStep)});
  return all;
}

std::vector<Tensor> forward(const AttentionCase& c, const std::vector<Tensor>& operands,
                            std::string_view kernel, bool repeats = true) {
  const DType type = operands[0].dtype(), wide = type == DType::kF64 ? type : DType::kF32;
  return run_kernel(kOwn, "Attention", operands, attributes_of(c),
                    {{type, joined(c.batch, {c.m, c.e})},
                     {wide, joined(c.batch, {c.m})},
                     {wide, joined(c.batch, {c.m})}},
                    {.kernel = kernel,
                     .threads = 2,
                     .constants = false,
                     .check_repeats = repeats,
                     .check_device = repeats});
}

/// dQ, dK, dV and the gradient of the differentiated term.
std::vector<Tensor> backward(const AttentionCase& c, const std::vector<Tensor>& operands,
                             const std::vector<Tensor>& results, const Tensor& dy,
                             std::string_view kernel) {
  const DType type = dy.dtype(), wide = type == DType::kF64 ? type : DType::kF32;
  std::vector<Tensor> inputs = {dy,         operands[0], operands[1], operands[2],
                                results[0], results[1],  results[2]};
  inputs.insert(inputs.end(), operands.begin() + 3, operands.end());
  std::vector<OutputSpec> outputs;
  for (size_t i = 0; i < 3; ++i) outputs.push_back({type, operands[i].shape()});
  for (size_t i = 0; i < c.terms.size(); ++i) {
    outputs.push_back(i == c.differentiated ? OutputSpec{wide, c.terms[i]} : OutputSpec{});
  }
  return run_kernel(kOwn, "AttentionGrad", inputs, attributes_of(c), outputs,
                    {.kernel = kernel, .threads = 2, .constants = false});
}

double weighted_sum(const Tensor& y, const Tensor& dy) {
  double sum = 0;
  for (size_t i = 0; i < values<double>(y).size(); ++i)
    sum += y.data<double>()[i] * dy.data<double>()[i];
  return sum;
}

TEST(Attention, GradientOfTheReferenceIsThatOfCentralDifferences) {
  for (const AttentionCase& c : kCases) {
    if (c.m * c.n > 800 || (!c.hidden.empty() && c.hidden[0] == kMinusInfinity)) continue;
    SCOPED_TRACE(c.name);
    std::vector<Tensor> operands = operands_of(c, DType::kF64);
    const Tensor dy = random_tensor(DType::kF64, joined(c.batch, {c.m, c.e}), -1, 1, 8);
    const auto results = forward(c, operands, "reference");
    const auto gradients = backward(c, operands, results, dy, "reference");
    for (size_t k = 0; k < gradients.size(); ++k) {
      if (k >= 3 && k - 3 != c.differentiated) continue;
      for (size_t i = 0; i < values<double>(operands[k]).size(); i += 7) {
        constexpr double kStep = 1e-5;  // the error of the difference is near its square
        const double at = operands[k].data<double>()[i];
        operands[k].mutable_data<double>()[i] = at + kStep;
        const double above = weighted_sum(forward(c, operands, "reference", false)[0], dy);
        operands[k].mutable_data<double>()[i] = at - kStep;
        const double below = weighted_sum(forward(c, operands, "reference", false)[0], dy);
        operands[k].mutable_data<double>()[i] = at;
        EXPECT_NEAR(gradients[k].data<double>()[i], (above - below) / (2 * kStep), 1e-7)
            << "operand " << k << ", element " << i;
      }
    }
  }
}

TEST(Attention, BlockwiseKernelsAgreeWithTheReference) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    // Operands below 2, sums of up to 400 products: f32 rounds them a few times in another order.
    // bf16: P, dS and the results are rounded, each by half a spacing of its size.
    const double spacing = type == DType::kF32   ? std::ldexp(1, -23)
                           : type == DType::kF16 ? std::ldexp(1, -10)
                                                 : std::ldexp(1, -7);
    const double tolerance = (type == DType::kF32 ? 64 : 4) * spacing;
    for (const AttentionCase& c : kCases) {
      // The sanitizer sees the same loops in bf16.
      if (under_address_sanitizer() && type == DType::kF16 && c.m * c.n > 800) continue;
      SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)));
      const auto operands = operands_of(c, type);
      const Tensor dy = random_tensor(type, joined(c.batch, {c.m, c.e}), -1, 1, 8);
      const auto want = forward(c, operands, "reference"), got = forward(c, operands, "fast.");
      for (size_t k = 0; k < want.size(); ++k) {
        SCOPED_TRACE("result " + std::to_string(k));
        expect_close(got[k], want[k], tolerance, tolerance);
      }
      const auto slopes = backward(c, operands, want, dy, "reference");
      if (c.group > 1) continue;  // the gradient is the reference's
      const auto fast_slopes = backward(c, operands, want, dy, "fast.");
      for (size_t k = 0; k < slopes.size(); ++k) {
        SCOPED_TRACE("gradient " + std::to_string(k));
        expect_close(fast_slopes[k], slopes[k], tolerance, tolerance);
      }
    }
  }
}

/// (rows, columns) of batch `b` of a tensor, each as f64.
struct Matrix {
  const Tensor& of;
  int64_t b, rows, columns;

  double operator()(int64_t i, int64_t j) const {
    return of.at_as_double((b * rows + i) * columns + j);
  }
};

/// D(x) for x laid out as the probabilities, by the kernel of Dropout itself.
std::vector<double> dropped(const AttentionCase& c, const std::vector<double>& x) {
  Tensor all(DType::kF64, joined(c.batch, {c.m, c.n}));
  std::copy(x.begin(), x.end(), all.mutable_data<double>().begin());
  return values<double>(run_one(kOwn, "Dropout",
                                {all, Tensor::scalar(kDropSeed), Tensor::scalar(kDropStep)},
                                {{"ratio", c.ratio}, {"node", kDropNode}}));
}

/// What the graph without fusion computes, in f64: Y, dQ, dK and dV.
struct Unfused {
  std::vector<double> y, dq, dk, dv;
};

Unfused unfused(const AttentionCase& c, const std::vector<Tensor>& operands, const Tensor& dy) {
  const auto batches = static_cast<int64_t>(element_count(c.batch));
  const double scale = static_cast<double>(static_cast<float>(1 / std::sqrt(c.d)));
  std::vector<double> p(static_cast<size_t>(batches * c.m * c.n)), dp(p.size());
  const auto at = [&](int64_t b, int64_t i, int64_t j) {
    return static_cast<size_t>((b * c.m + i) * c.n + j);
  };
  for (int64_t b = 0; b < batches; ++b) {
    const Matrix q{operands[0], b, c.m, c.d}, k{operands[1], b, c.n, c.d},
        v{operands[2], b, c.n, c.e}, g{dy, b, c.m, c.e};
    for (int64_t i = 0; i < c.m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < c.n; ++j) {
        double score = 0;
        for (int64_t d = 0; d < c.d; ++d) score += q(i, d) * k(j, d);
        sum += p[at(b, i, j)] = c.causal && j > i ? 0 : std::exp(score * scale);
        for (int64_t e = 0; e < c.e; ++e) dp[at(b, i, j)] += g(i, e) * v(j, e);
      }
      for (int64_t j = 0; j < c.n; ++j) p[at(b, i, j)] /= sum;
    }
  }
  const std::vector<double> kept = dropped(c, p), kept_dp = dropped(c, dp);
  Unfused all{std::vector<double>(static_cast<size_t>(batches * c.m * c.e)),
              std::vector<double>(static_cast<size_t>(batches * c.m * c.d)),
              std::vector<double>(static_cast<size_t>(batches * c.n * c.d)),
              std::vector<double>(static_cast<size_t>(batches * c.n * c.e))};
  for (int64_t b = 0; b < batches; ++b) {
    const Matrix q{operands[0], b, c.m, c.d}, k{operands[1], b, c.n, c.d},
        v{operands[2], b, c.n, c.e}, g{dy, b, c.m, c.e};
    for (int64_t i = 0; i < c.m; ++i) {
      double dot = 0;
      for (int64_t j = 0; j < c.n; ++j) dot += p[at(b, i, j)] * kept_dp[at(b, i, j)];
      for (int64_t j = 0; j < c.n; ++j) {
        const double weight = kept[at(b, i, j)],
                     slope = p[at(b, i, j)] * (kept_dp[at(b, i, j)] - dot) * scale;
        for (int64_t e = 0; e < c.e; ++e) {
          all.y[static_cast<size_t>((b * c.m + i) * c.e + e)] += weight * v(j, e);
          all.dv[static_cast<size_t>((b * c.n + j) * c.e + e)] += weight * g(i, e);
        }
        for (int64_t d = 0; d < c.d; ++d) {
          all.dq[static_cast<size_t>((b * c.m + i) * c.d + d)] += slope * k(j, d);
          all.dk[static_cast<size_t>((b * c.n + j) * c.d + d)] += slope * q(i, d);
        }
      }
    }
  }
  return all;
}

void expect_near(const Tensor& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(static_cast<size_t>(got.size()), want.size());
  double largest = 0;
  for (const double x : want) largest = std::max(largest, std::abs(x));
  for (int64_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got.at_as_double(i), want[static_cast<size_t>(i)], tolerance * (1 + largest))
        << "element " << i;
  }
}

TEST(Attention, DropsWhatDropoutBetweenTheNodesWouldDrop) {
  const AttentionCase cases[] = {
      {"small", {2, 3}, 6, 8, 8, 8, {}, {}, SIZE_MAX, false, false, false, 0.5f},
      {"odd", {2}, 7, 9, 5, 3, {}, {}, SIZE_MAX, false, false, false, 0.25f},
      {"tiles", {1, 2}, 140, 132, 16, 16, {}, {}, SIZE_MAX, false, false, false, 0.1f},
      {"odd_tiles", {3}, 129, 70, 8, 8, {}, {}, SIZE_MAX, false, false, false, 0.1f},
      {"causal", {2}, 130, 130, 8, 8, {}, {}, SIZE_MAX, true, false, false, 0.1f}};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    // As above: f32 sums in another order; 16-bit operands, P and dS rounded by half a spacing.
    const double spacing = type == DType::kF32   ? std::ldexp(1, -23)
                           : type == DType::kF16 ? std::ldexp(1, -10)
                                                 : std::ldexp(1, -7);
    const double tolerance = (type == DType::kF32 ? 64 : 4) * spacing;
    for (const AttentionCase& c : cases) {
      const auto operands = operands_of(c, type);
      const Tensor dy = random_tensor(type, joined(c.batch, {c.m, c.e}), -1, 1, 8);
      const Unfused want = unfused(c, operands, dy);
      for (const std::string_view kernel : {"reference", "fast."}) {
        SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)) + " " +
                     std::string(kernel));
        const auto results = forward(c, operands, kernel);
        expect_near(results[0], want.y, tolerance);
        const auto slopes = backward(c, operands, results, dy, kernel);
        expect_near(slopes[0], want.dq, tolerance);
        expect_near(slopes[1], want.dk, tolerance);
        expect_near(slopes[2], want.dv, tolerance);
      }
    }
  }
}

Tensor turned(const Tensor& x) {
  Shape shape = x.shape();
  std::swap(shape[shape.size() - 2], shape[shape.size() - 3]);
  Attributes attributes{{"perm", std::vector<int64_t>{}}};
  std::vector<int64_t> perm;
  for (size_t i = 0; i < shape.size(); ++i) perm.push_back(static_cast<int64_t>(i));
  std::swap(perm[perm.size() - 2], perm[perm.size() - 3]);
  attributes.set("perm", perm);
  return run_kernel("", "Transpose", {x}, attributes, {{x.dtype(), shape}}, {})[0];
}

/// The call with every operand and result in `first` stored with its rows before the heads; its
/// results with their heads first again.
std::vector<Tensor> run_rows_first(const char* op, const AttentionCase& c,
                                   std::vector<Tensor> inputs, std::vector<OutputSpec> outputs,
                                   const std::vector<std::pair<size_t, size_t>>& in,
                                   const std::vector<std::pair<size_t, size_t>>& out,
                                   const std::vector<int64_t>& first, std::string_view kernel) {
  Attributes attributes = attributes_of(c);
  attributes.set("rows_first", first);
  for (const auto& [slot, flag] : in) {
    if (first[flag] != 0) inputs[slot] = turned(inputs[slot]);
  }
  for (const auto& [slot, flag] : out) {
    Shape& shape = outputs[slot].shape;
    if (first[flag] != 0) std::swap(shape[shape.size() - 2], shape[shape.size() - 3]);
  }
  // On the device each flag is met in two of the combinations.
  const bool device = first == std::vector<int64_t>{1, 0, 1, 0} ||
                      first == std::vector<int64_t>{0, 1, 0, 1} ||
                      first == std::vector<int64_t>{1, 1, 1, 1};
  auto results =
      run_kernel(kOwn, op, inputs, attributes, outputs,
                 {.kernel = kernel, .threads = 2, .constants = false, .check_device = device});
  for (const auto& [slot, flag] : out) {
    if (first[flag] != 0) results[slot] = turned(results[slot]);
  }
  return results;
}

void expect_same_bits(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(got[k].shape(), want[k].shape()) << k;
    const size_t bytes = static_cast<size_t>(want[k].size()) * size_of(want[k].dtype());
    if (bytes == 0) continue;  // no bytes, and then no address that memcmp may be given
    EXPECT_EQ(std::memcmp(got[k].bytes(), want[k].bytes(), bytes), 0) << "result " << k;
  }
}

TEST(Attention, RowsBeforeHeadsHaveTheSameBits) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const AttentionCase& c : kCases) {
      if (c.batch.empty() || c.m * c.n > 3000) continue;
      const auto operands = operands_of(c, type);
      const Tensor dy = random_tensor(type, joined(c.batch, {c.m, c.e}), -1, 1, 8);
      for (const std::string_view kernel : {"reference", "fast."}) {
        const auto want = forward(c, operands, kernel);
        const std::string_view of_slopes = c.group > 1 ? "reference" : kernel;
        const auto slopes = backward(c, operands, want, dy, of_slopes);
        // Each flag alone, in two pairs, all.
        for (const int bits : {1, 2, 4, 8, 5, 10, 15}) {
          const std::vector<int64_t> first = {bits & 1, (bits >> 1) & 1, (bits >> 2) & 1,
                                              bits >> 3};
          if (c.trans_k && first[1] != 0) continue;
          SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)) + " " +
                       std::string(kernel) + " " + std::to_string(bits));
          std::vector<OutputSpec> outputs;
          for (const Tensor& y : want) outputs.push_back({y.dtype(), y.shape()});
          expect_same_bits(run_rows_first("Attention", c, operands, outputs,
                                          {{0, 0}, {1, 1}, {2, 2}}, {{0, 3}}, first, kernel),
                           want);
          std::vector<Tensor> inputs = {dy,      operands[0], operands[1], operands[2],
                                        want[0], want[1],     want[2]};
          inputs.insert(inputs.end(), operands.begin() + 3, operands.end());
          outputs.clear();
          for (size_t i = 0; i < 3; ++i) outputs.push_back({type, operands[i].shape()});
          for (size_t i = 0; i < c.terms.size(); ++i) {
            outputs.push_back(i == c.differentiated ? OutputSpec{DType::kF32, c.terms[i]}
                                                    : OutputSpec{});
          }
          expect_same_bits(run_rows_first("AttentionGrad", c, inputs, outputs,
                                          {{0, 3}, {1, 0}, {2, 1}, {3, 2}, {4, 3}},
                                          {{0, 0}, {1, 1}, {2, 2}}, first, of_slopes),
                           slopes);
        }
      }
    }
  }
}

/// (…, rows, 3, heads, size) of three (…, heads, rows, size) in f32.
Tensor packed(const Tensor& q, const Tensor& k, const Tensor& v) {
  Shape shape = turned(q).shape();
  const int64_t row = shape[shape.size() - 1] * shape[shape.size() - 2];
  shape.insert(shape.end() - 2, 3);
  Tensor all(DType::kF32, shape);
  const Tensor parts[] = {turned(q), turned(k), turned(v)};
  for (int64_t i = 0; i < all.size(); ++i) {
    const auto from = static_cast<size_t>(i / (3 * row) * row + i % row);
    all.mutable_data<float>()[static_cast<size_t>(i)] =
        parts[static_cast<size_t>(i / row % 3)].data<float>()[from];
  }
  return all;
}

TEST(Attention, PackedOperandsHaveTheSameBits) {
  for (const AttentionCase& c :
       {AttentionCase{"small", {2, 3}, 6, 6, 8, 8},
        AttentionCase{"causal", {1, 2}, 70, 70, 16, 16, {}, {}, SIZE_MAX, true},
        AttentionCase{"bias", {2}, 9, 9, 8, 8, {{2, 9, 9}}, {0}, 0}}) {
    SCOPED_TRACE(c.name);
    const auto operands = operands_of(c, DType::kF32);
    const Tensor dy = random_tensor(DType::kF32, joined(c.batch, {c.m, c.e}), -1, 1, 8);
    Attributes attributes = attributes_of(c);
    attributes.set("rows_first", std::vector<int64_t>{1, 1, 1, 0});
    attributes.set("packed", int64_t{1});
    const Tensor all = packed(operands[0], operands[1], operands[2]);
    for (const std::string_view kernel : {"reference", "fast."}) {
      const auto want = forward(c, operands, kernel);
      std::vector<OutputSpec> outputs;
      for (const Tensor& y : want) outputs.push_back({y.dtype(), y.shape()});
      std::vector<Tensor> inputs = {all, all, all};
      inputs.insert(inputs.end(), operands.begin() + 3, operands.end());
      expect_same_bits(run_kernel(kOwn, "Attention", inputs, attributes, outputs,
                                  {.kernel = kernel, .threads = 2, .constants = false}),
                       want);
      const auto slopes = backward(c, operands, want, dy, kernel);
      inputs = {dy, all, all, all, want[0], want[1], want[2]};
      inputs.insert(inputs.end(), operands.begin() + 3, operands.end());
      outputs = {{DType::kF32, all.shape()}};
      if (!c.terms.empty()) outputs.insert(outputs.end(), {{}, {}, {DType::kF32, c.terms[0]}});
      const auto got = run_kernel(kOwn, "AttentionGrad", inputs, attributes, outputs,
                                  {.kernel = kernel, .threads = 2, .constants = false});
      expect_same_bits({got[0]}, {packed(slopes[0], slopes[1], slopes[2])});
      if (!c.terms.empty()) expect_same_bits({got[3]}, {slopes[3]});
    }
  }
}

TEST(Attention, ARowThatIsHiddenWholeIsWhatSoftmaxMakesOfIt) {
  AttentionCase c{"hidden", {1}, 2, 3, 2, 2, {{2, 1}}, {-1e9f}};
  std::vector<Tensor> operands = operands_of(c, DType::kF32);
  operands[3] = Tensor::of<bool>({2, 1}, {false, true});
  const auto v = values<float>(operands[2]);
  for (const std::string_view kernel : {"reference", "fast."}) {
    const auto mean = values<float>(forward(c, operands, kernel)[0]);
    EXPECT_NEAR(mean[0], (v[0] + v[2] + v[4]) / 3, 1e-6);  // all keys alike
    AttentionCase none = c;
    none.hidden = {kMinusInfinity};
    EXPECT_TRUE(std::isnan(values<float>(forward(none, operands, kernel)[0])[0]));
    none.nan_is_zero = true;
    EXPECT_EQ(values<float>(forward(none, operands, kernel)[0])[0], 0.0f);
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const AttentionCase c{"small", {2}, 3, 4, 2, 2};
  std::vector<Tensor> operands = operands_of(c, DType::kF32);
  operands[1] = random_tensor(DType::kF32, {2, 4, 3}, -1, 1);
  EXPECT_THROW(forward(c, operands, "fast."), Error);
  operands = operands_of(c, DType::kF32);
  operands.push_back(random_tensor(DType::kF32, {5}, -1, 1));
  EXPECT_THROW(forward(c, operands, "reference"), Error);
  operands = operands_of(c, DType::kF32);
  operands[2] = random_tensor(DType::kF16, {2, 4, 2}, -1, 1);
  EXPECT_THROW(forward(c, operands, ""), Error);
}

TEST(Attention, RefusesADropoutThatIsNone) {
  AttentionCase c{"small", {2}, 3, 4, 2, 2};
  c.ratio = 0.5f;
  const std::vector<Tensor> operands = operands_of(c, DType::kF32);
  const std::vector<Tensor> none(operands.begin(), operands.begin() + 3);
  EXPECT_THROW(forward(c, none, "reference"), Error);
  std::vector<Tensor> floats = operands;
  floats[3] = Tensor::scalar(1.0f);
  EXPECT_THROW(forward(c, floats, ""), Error);
  c.ratio = 1.5f;
  EXPECT_THROW(forward(c, operands, "reference"), Error);
}

}  // namespace
}  // namespace halfnote::test
