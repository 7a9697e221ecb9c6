// What the random training graphs (tests/random/) found, made small.
#include <cmath>

#include "compiler/ir/text.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

constexpr const char* kFindHeader = "<ir_version: 10, opset_import: [\"\" : 23]>\n";

struct Find {
  const char* name;
  const char* text;  // a model whose output 0 is its loss; parameters begin with w
};

Session find_session(const Find& find, DType precision, const std::string& kernels,
                     std::vector<std::string> skipped = {}) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.policy.scaler.init = 16.0f;
  options.train.loss_outputs = {"loss"};
  options.train.trainable = {"[wv].*"};
  options.train.optimizer.kind = "none";
  options.skip_passes = std::move(skipped);
  SessionOptions settings;
  settings.threads = 1;
  settings.kernels = kernels;
  const Model model = parse_model(kFindHeader + std::string(find.text), find.name);
  return Session(compile_model(model, options).model, settings);
}

std::vector<Tensor> find_inputs(const Session& session) {
  std::vector<Tensor> inputs;
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) shape.push_back(dim.known() ? dim.value : 3);
    inputs.push_back(uniform(shape, 5));
  }
  return inputs;
}

class RandomFind : public testing::TestWithParam<Find> {};

/// The gradient of f32, which central differences hold (tests/ops), and that of 16 bit are the same
/// but for rounding: 2 % of the largest element is 5 roundings of bf16.
TEST_P(RandomFind, HasTheGradientsOfF32InEveryPrecision) {
  for (const char* kernels : {"", "reference"}) {
    Session exact = find_session(GetParam(), DType::kF32, kernels);
    const std::vector<Tensor> inputs = find_inputs(exact);
    const double loss = exact.step(inputs).loss;
    const Tensor want = exact.output("grad/w");
    for (DType precision : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(std::string(short_name(precision)) + " " + kernels);
      Session low = find_session(GetParam(), precision, kernels);
      const StepResult result = low.step(inputs);
      EXPECT_TRUE(result.finite);
      EXPECT_NEAR(result.loss, loss, 0.02 * std::max(std::abs(loss), 0.1));  // sums may cancel
      const Tensor got = low.output("grad/w");
      ASSERT_EQ(got.shape(), want.shape());
      double largest = 0;
      for (int64_t i = 0; i < want.size(); ++i) {
        largest = std::max(largest, std::abs(want.at_as_double(i)));
      }
      for (int64_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(got.at_as_double(i), want.at_as_double(i), 0.02 * largest) << "at " << i;
      }
    }
  }
}

TEST_P(RandomFind, NeedsNoPassThatSimplifies) {
  Session all = find_session(GetParam(), DType::kF32, "reference");
  Session few = find_session(
      GetParam(), DType::kF32, "reference",
      {"fold-constants", "canonicalize", "eliminate-common", "eliminate-dead", "mend-constants",
       "fold-gradients", "merge-gradients", "simplify-gradients", "absorb-gradients"});
  EXPECT_EQ(few.step(find_inputs(few)).loss, all.step(find_inputs(all)).loss);
}

// The first seven: the gradient looked for the f32 operand in the maximum of rounded ones, did not
// find it, and was 0/0. Then: the slice behind a product, moved through a pool that runs along what
// was padded. The rest: sizes of 0 that ONNX's Conv and Reshape read otherwise, and a gradient that
// is zero throughout.
const Find kFinds[] = {
    {"MaxOfARoundedInput", R"(
g (float[4,8] x) => (float loss) <float[8] w = {0.3,-0.7,0.11,0.9,-0.2,0.05,-0.33,0.6},
                                  float[8,8] m = {%M}> {
  a = Max (x, w)
  p = MatMul (a, m)
  loss = ReduceMean <keepdims = 0> (p)
})"},
    {"MinOfThree", R"(
g (float[4,8] x) => (float loss) <float[8] w = {0.3,-0.7,0.11,0.9,-0.2,0.05,-0.33,0.6},
                                  float[8,8] m = {%M}> {
  a = Min (x, w, x)
  p = MatMul (a, m)
  loss = ReduceMean <keepdims = 0> (p)
})"},
    {"LargestOfALine", R"(
g (float[4,8] x) => (float loss) <float[8] w = {0.3,-0.7,0.11,0.9,-0.2,0.05,-0.33,0.6},
                                  float[8,8] m = {%M}, int64[1] axis = {0}> {
  s = Mul (x, w)
  a = ReduceMax <keepdims = 1> (s, axis)
  p = MatMul (a, m)
  loss = ReduceMean <keepdims = 0> (p)
})"},
    {"SmallestOfALineMovedInF32", R"(
g (float[3,5] x) => (float loss) <float[1,5] w = {0.2578,-0.4084,0.0545,-0.4023,0.1299},
                                  float[5] m = {-0.4295,0.4104,-0.4011,0.4254,-0.3201},
                                  int64[1,1] row = {2}, int64[1] last = {-1}> {
  s = ScatterND (x, row, w)
  a = MatMul (s, m)
  b = ReduceMin <keepdims = 0> (s, last)
  c = ReduceMean <keepdims = 0> (a)
  d = ReduceMean <keepdims = 0> (b)
  loss = Add (c, d)
})"},
    {"MaxInABody", R"(
g (float[8,8] x, float[T,8] s) => (float loss) <float[1,8] w = {0.3,-0.7,0.11,0.9,-0.2,0.05,-0.33,0.6}> {
  last, rows = Scan (x, s) <num_scan_inputs = 1,
      body = body (float[8,8] before, float[8] row) => (float[8,8] after, float[8] total) {
    a = Max (before, before)
    t = Transpose (w)
    p = MatMul (a, t)
    m = ReduceMean <keepdims = 0> (p)
    after = Sub (before, m)
    total = Mul (row, m)
  }>
  b = ReduceMean <keepdims = 0> (last)
  c = ReduceSum <keepdims = 0> (rows)
  loss = Add (b, c)
})"},
    {"SmallestScattered", R"(
g (float[2,6,1] x) => (float loss) <float[1,1] w = {-0.98506783}, int64[1,2] at = {1, 5},
                                   float[1,2] m = {-0.45239884, -0.30970883}> {
  s = ScatterND <reduction = "min"> (x, at, w)
  p = MatMul (s, m)
  loss = ReduceMean <keepdims = 0> (p)
})"},
    {"LargestScattered", R"(
g (float[2,6] x) => (float loss) <float[1,2] w = {0.98506783, 0.9523145}, int64[1,2] at = {1, 0},
                                  float[6,2] m = {0.5,-0.3,0.1,0.7,0.2,0.9,-0.6,0.25,0.33,-0.4,0.8,0.15}> {
  s = ScatterElements <axis = 0, reduction = "max"> (x, at, w)
  p = MatMul (s, m)
  loss = ReduceMean <keepdims = 0> (p)
})"},
    {"PoolAlongPaddedColumns", R"(
g (float[1,1,2,7] x) => (float loss) <float[7,9] w = {%P}, float[7,2] m = {%Q}> {
  a = MatMul (x, w)
  p = AveragePool <kernel_shape = [1, 3]> (a)
  q = MatMul (p, m)
  loss = ReduceMean <keepdims = 0> (q)
})"},
    {"ConvolutionWithoutPlaces", R"(
g (float[2,3,1,5] x) => (float loss) <float[4,3,2,3] w = {%W}, float[3,1,1] s = {0.5,0.25,1}> {
  y = Mul (x, s)
  c = Conv (y, w)
  l = ReduceSum <keepdims = 0> (c)
  k = ReduceMean <keepdims = 0> (w)
  loss = Add (l, k)
})"},
    {"TransposedConvolutionOfNoPlaces", R"(
g (float[1,1,2,0] x) => (float loss) <float[1,1,3,3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[1] w = {0.5}> {
  y = ConvTranspose <kernel_shape = [3, 3], strides = [2, 2], output_padding = [0, 1]> (x, v, w)
  k = ReduceMean <keepdims = 0> (v)
  l = ReduceMean <keepdims = 0> (y)
  loss = Add (k, l)
})"},
    {"PoolOfNoChannels", R"(
g (float[1,2,16] x) => (float loss) <float[2,1] w = {0.5,-0.25}, int64[2] parts = {0, 2}> {
  y = Mul (x, w)
  none, all = Split <axis = 1> (y, parts)
  p = MaxPool <kernel_shape = [3], strides = [2]> (none)
  q = AveragePool <kernel_shape = [3], strides = [2]> (none)
  a = ReduceSum <keepdims = 0> (p)
  b = ReduceSum <keepdims = 0> (q)
  c = ReduceMean <keepdims = 0> (all)
  loss = Sum (a, b, c)
})"},
    {"RecurrenceWithoutInput", R"(
g (float[4,3,0] x) => (float loss) <float[1,6,0] w_in = {}, float[1,6,2] w = {%R},
                                      float[1,12] s = {%S}> {
  y, last = GRU <hidden_size = 2, linear_before_reset = 1> (x, w_in, w, s)
  loss = ReduceMean <keepdims = 0> (y)
})"},
    {"ProductOverNothing", R"(
g (float[2,2,1,0] x) => (float loss) <float[8] w = {0.3,-0.7,0.11,0.9,-0.2,0.05,-0.33,0.6},
                                      float[0,8] w_none = {}> {
  m = MatMul (x, w_none)
  a = Add (m, w)
  loss = ReduceMean <keepdims = 0> (a)
})"},
    {"UnpoolOfAStatedSize", R"(
g (float[2,1,4,6] x) => (float loss) <float[1] w = {1.5}, int64[4] s = {2, 1, 5, 7}> {
  y = Mul (x, w)
  p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (y)
  u = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (p, i, s)
  t = Tanh (u)
  loss = ReduceMean <keepdims = 0> (t)
})"},
    {"NothingComesBackThroughAScan", R"(
g (float[T,1] s) => (float loss) <float[1,1,2] w = {-0.18, 0.09}, float zero = {0},
                                  float[1,1,5] k = {0.09, -0.02, -1.38, 0.39, 1.41}> {
  rows = Scan (s) <num_scan_inputs = 1, body = body (float[1] row) => (float[1,1,6] part) {
    part = ConvTranspose <kernel_shape = [2]> (k, w)
  }>
  total = ReduceSum <keepdims = 0> (rows)
  loss = Mul (total, zero)
})"},
};

/// `%M` and its kin become numbers.
std::vector<Find> with_numbers() {
  static std::vector<std::string> texts;
  texts.reserve(std::size(kFinds));
  std::vector<Find> finds;
  for (const Find& find : kFinds) {
    std::string text = find.text;
    for (const auto& [mark, count] :
         {std::pair("%M", 64), std::pair("%W", 72), std::pair("%P", 63), std::pair("%Q", 14),
          std::pair("%R", 12), std::pair("%S", 12)}) {
      const size_t at = text.find(mark);
      if (at == std::string::npos) continue;
      std::string numbers;
      for (int i = 0; i < count; ++i) {
        numbers += (i > 0 ? ", " : "") + std::to_string((i * 37 % 64 - 31) / 64.0);
      }
      text.replace(at, 2, numbers);
    }
    texts.push_back(text);
    finds.push_back({find.name, texts.back().c_str()});
  }
  return finds;
}

INSTANTIATE_TEST_SUITE_P(All, RandomFind, testing::ValuesIn(with_numbers()),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace halfnote::test
