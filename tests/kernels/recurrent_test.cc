// RNN, GRU and LSTM kernels: the row on fast products against the reference, 16 bits against f32,
// threads, and the vectorised functions.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/cpu/fast/vector_math.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

struct Sizes {
  int64_t t = 5, b = 17, i = 24, h = 40;
};

/// X, W, R, B, sequence_lens, initial_h (and initial_c) of a bidirectional op; B in f32.
std::vector<Tensor> operands(const std::string& op, DType dtype, const Sizes& s) {
  const int64_t gates = op == "RNN" ? 1 : op == "GRU" ? 3 : 4;
  std::vector<int32_t> lengths(static_cast<size_t>(s.b));
  for (size_t row = 0; row < lengths.size(); ++row) {
    lengths[row] = 1 + static_cast<int32_t>(row) % static_cast<int32_t>(s.t);
  }
  std::vector<Tensor> inputs = {random_tensor(dtype, {s.t, s.b, s.i}, -1, 1, 1),
                                random_tensor(dtype, {2, gates * s.h, s.i}, -0.2, 0.2, 2),
                                random_tensor(dtype, {2, gates * s.h, s.h}, -0.2, 0.2, 3),
                                random_tensor(DType::kF32, {2, 2 * gates * s.h}, -0.2, 0.2, 4),
                                Tensor::of<int32_t>({s.b}, lengths),
                                random_tensor(dtype, {2, s.b, s.h}, -1, 1, 5)};
  if (op == "LSTM") inputs.push_back(random_tensor(dtype, {2, s.b, s.h}, -1, 1, 6));
  return inputs;
}

std::vector<OutputSpec> forward_outputs(const std::string& op, DType dtype, const Sizes& s) {
  const int64_t gates = op == "RNN" ? 1 : op == "GRU" ? 3 : 4;
  std::vector<OutputSpec> outputs = {{dtype, {s.t, 2, s.b, s.h}}, {dtype, {2, s.b, s.h}}};
  if (op == "LSTM") outputs.push_back({dtype, {2, s.b, s.h}});
  outputs.push_back({DType::kF32, {2, s.t, s.b, gates * s.h}});
  if (op == "LSTM") outputs.push_back({DType::kF32, {2, s.t, s.b, s.h}});
  return outputs;
}

const Attributes kBoth = {{"direction", std::string("bidirectional")}};

/// The operands of the gradient op after a forward run.
std::vector<Tensor> gradient_operands(const std::string& op, const std::vector<Tensor>& in,
                                      const std::vector<Tensor>& out) {
  const DType dtype = in[0].dtype();
  std::vector<Tensor> all = {in[0], in[1], in[2], in[4], in[5]};
  const size_t states = op == "LSTM" ? 3 : 2;
  if (op == "LSTM") all.insert(all.end(), {in[6], Tensor{}});
  all.insert(all.end(), {out[0], out[states]});
  if (op == "LSTM") all.push_back(out[4]);
  if (op == "GRU") all.emplace_back();
  for (size_t k = 0; k < states; ++k) {
    all.push_back(random_tensor(dtype, out[k].shape(), -1, 1, static_cast<uint32_t>(20 + k)));
  }
  return all;
}

std::vector<OutputSpec> gradient_outputs(const std::string& op, const std::vector<Tensor>& in) {
  const DType dtype = in[0].dtype();
  const Shape state = in[5].shape();
  std::vector<OutputSpec> outputs = {{dtype, in[0].shape()},
                                     {DType::kF32, in[1].shape()},
                                     {DType::kF32, in[2].shape()},
                                     {DType::kF32, in[3].shape()},
                                     {dtype, state}};
  if (op == "LSTM") outputs.push_back({dtype, state});
  return outputs;
}

std::string_view domain() { return "ai.halfnote"; }

/// Both kernels on the same operands; sums of up to some hundred terms in another order, and in 16
/// bits a state that may round the other way and move what follows by a spacing.
void expect_products_agree(const std::string& op, DType dtype) {
  SCOPED_TRACE(op + " " + std::string(short_name(dtype)));
  const double spacing = dtype == DType::kF32 ? 0x1p-23 : dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
  const double bound = (dtype == DType::kF32 ? 256 : 4) * spacing;
  const Sizes s;
  const std::vector<Tensor> in = operands(op, dtype, s);
  RunOptions fast{.kernel = "fast.products"};
  fast.check_repeats = false;
  const auto outputs = forward_outputs(op, dtype, s);
  const auto want = run_kernel(domain(), op, in, kBoth, outputs);
  const auto got = run_kernel(domain(), op, in, kBoth, outputs, fast);
  for (size_t k = 0; k < want.size(); ++k) expect_close(got[k], want[k], bound, bound);

  const auto grad_in = gradient_operands(op, in, want);
  const auto grad_out = gradient_outputs(op, in);
  const auto want_grad = run_kernel(domain(), op + "Grad", grad_in, kBoth, grad_out);
  const auto got_grad = run_kernel(domain(), op + "Grad", grad_in, kBoth, grad_out, fast);
  for (size_t k = 0; k < want_grad.size(); ++k) {
    double largest = 0;
    for (int64_t i = 0; i < want_grad[k].size(); ++i) {
      ASSERT_TRUE(std::isfinite(want_grad[k].at_as_double(i))) << "result " << k << ", " << i;
      largest = std::max(largest, std::fabs(want_grad[k].at_as_double(i)));
    }
    expect_close(got_grad[k], want_grad[k], 0, bound * largest);
  }
}

TEST(Recurrent, FastProductsAgreeWithTheReference) {
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) expect_products_agree(op, dtype);
  }
}

TEST(Recurrent, OnnxFormGivesTheSameState) {
  const Sizes s;
  const std::vector<Tensor> in = operands("LSTM", DType::kF32, s);
  const auto all = run_kernel(domain(), "LSTM", in, kBoth, forward_outputs("LSTM", DType::kF32, s));
  const OutputSpec none{}, state{DType::kF32, {2, s.b, s.h}};
  const auto plain = run_kernel("", "LSTM", in, kBoth, {none, state, state});
  EXPECT_TRUE(identical(plain[1], all[1]));
  EXPECT_TRUE(identical(plain[2], all[2]));
}

TEST(Recurrent, WrongShapesAndLengthsAreErrors) {
  const Sizes s;
  const std::vector<Tensor> good = operands("LSTM", DType::kF32, s);
  const auto outputs = forward_outputs("LSTM", DType::kF32, s);
  for (size_t wrong : {0u, 1u, 2u, 3u, 4u, 5u, 6u}) {
    std::vector<Tensor> in = good;
    Shape shape = in[wrong].shape();
    shape.back() += 1;
    in[wrong] = Tensor(in[wrong].dtype(), shape);
    EXPECT_THROW(run_kernel(domain(), "LSTM", in, kBoth, outputs), Error) << wrong;
  }
  std::vector<Tensor> in = good;
  in[4] = Tensor::of<int32_t>({s.b}, std::vector<int32_t>(static_cast<size_t>(s.b), 6));
  EXPECT_THROW(run_kernel(domain(), "LSTM", in, kBoth, outputs), Error);
  EXPECT_THROW(run_kernel(domain(), "LSTM", good, {{"direction", std::string("up")}}, outputs),
               Error);
  EXPECT_THROW(
      run_kernel(domain(), "LSTM", good,
                 {{"activations", std::vector<std::string>{"Tanh", "Tanh", "Gelu"}}}, outputs),
      Error);
}

/// Both instruction sets, every exponent, against f64: two spacings of the result, or of 1 where
/// the function is flat.
TEST(Recurrent, VectorisedFunctions) {
  std::vector<float> x = {0, -0.0f, INFINITY, -INFINITY, 88, -88, 200, -200};
  for (float v = 1e-30f; v < 100; v *= 1.07f) x.insert(x.end(), {v, -v});
  std::vector<float> y(x.size());
  for (const auto* math : {&cpu::fast::kBaselineMath, &cpu::fast::vector_math()}) {
    SCOPED_TRACE(math->name);
    math->sigmoid(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = 1 / (1 + std::exp(-static_cast<double>(x[i])));
      ASSERT_NEAR(y[i], want, 0x1p-22 * want + 1e-37) << x[i];
    }
    math->tanh(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::tanh(static_cast<double>(x[i]));
      ASSERT_NEAR(y[i], want, 0x1p-22 * std::fabs(want)) << x[i];
    }
    const float nan = NAN;
    math->sigmoid(&nan, 1, y.data());
    EXPECT_TRUE(std::isnan(y[0]));
    math->tanh(&nan, 1, y.data());
    EXPECT_TRUE(std::isnan(y[0]));
  }
}

}  // namespace
}  // namespace halfnote::test
