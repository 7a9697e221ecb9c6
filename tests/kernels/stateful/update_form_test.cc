// Optimizers as device passes call them: they give the bits that Cast and Mul in front of them and
// a Cast behind them would give, for every optimizer, on every row; and the judgement of gradients
// in one pass against that in two.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/harness.h"
#include "tests/sanitizer.h"

namespace halfnote::test {
namespace {

struct UpdateCase {
  const char* op;
  size_t slots;
  bool reads_step;
  Attributes attributes = {};
  std::vector<bool> present = {true, true, true};
};

const UpdateCase kUpdates[] = {
    {"SGD", 0, false, {{"weight_decay", 0.125f}}},
    {"Momentum", 1, true, {{"nesterov", int64_t{1}}}},
    {"Adam", 2, true, {{"weight_decay", 0.125f}}},
    {"AdamW", 2, true},
    {"Adagrad", 1, true, {{"lr_decay", 0.25f}}},
    {"RMSprop", 3, false, {{"momentum", 0.5f}}, {true, false, true}},
    {"RMSprop", 3, false, {{"centered", int64_t{1}}}, {true, true, false}},
    {"Lion", 1, false, {{"weight_decay", 0.125f}}},
    {"Lamb", 2, true, {{"weight_decay", 0.125f}}},
    {"Adafactor", 2, true, {}, {true, false}},
};

// Less than a piece, a piece and more, blocks and more.
constexpr int64_t kSizes[] = {1, 19, 2053, 32805};

struct Form {
  DType gradient;
  DType copy;  // kUndefined: none
  size_t factors;
};

constexpr Form kForms[] = {
    {DType::kF32, DType::kBF16, 0},      {DType::kF32, DType::kF16, 1},
    {DType::kBF16, DType::kBF16, 0},     {DType::kF16, DType::kF16, 2},
    {DType::kF32, DType::kUndefined, 2}, {DType::kBF16, DType::kUndefined, 0},
};

class UpdateForms : public testing::TestWithParam<const char*> {
 protected:
  RunOptions options() const {
    RunOptions run;
    run.kernel = GetParam();
    return run;
  }

  /// Whether the rows of this run know the op in this type.
  static bool has_row(const UpdateCase& test, DType dtype, std::string_view kernel) {
    const std::string_view op = test.op;
    return kernel == "reference" ||
           (dtype == DType::kF32 && (op.starts_with("Adam") || op == "Lamb" || op == "Adafactor"));
  }

  static Tensor number(DType dtype, double value) { return Tensor::scalar_of(dtype, value); }

  /// param, the gradient as it is read, states, lr, step, commit.
  static std::vector<Tensor> operands(const UpdateCase& test, DType dtype, const Tensor& gradient,
                                      bool commit) {
    const Shape shape = gradient.shape();
    std::vector<Tensor> inputs = {random_tensor(dtype, shape, -1, 1, 3), gradient};
    for (size_t i = 0; i < test.slots; ++i) {
      const auto seed = static_cast<uint32_t>(5 + i);
      inputs.push_back(test.present[i] ? random_tensor(dtype, shape, 0.5, 1, seed) : Tensor());
    }
    inputs.push_back(number(dtype, 0.0625));
    if (test.reads_step) inputs.push_back(Tensor::scalar<int64_t>(3));
    inputs.push_back(Tensor::scalar(commit));
    return inputs;
  }

  void check(const UpdateCase& test, DType dtype, const Form& form, int64_t size, bool commit) {
    const Tensor gradient = random_tensor(form.gradient, {size}, -64, 64, 7);
    const Tensor factors[] = {number(dtype, 1.0 / 3), number(dtype, 0.7)};
    Tensor plain = gradient.cast_to(dtype);
    for (size_t k = 0; k < form.factors; ++k) plain = run_one("", "Mul", {plain, factors[k]});
    std::vector<OutputSpec> outputs(1, {dtype, {size}});
    for (size_t i = 0; i < test.slots; ++i) {
      if (test.present[i]) outputs.push_back({dtype, {size}});
    }
    std::vector<Tensor> want = run_kernel(kOwn, test.op, operands(test, dtype, plain, commit),
                                          test.attributes, outputs, options());
    std::vector<Tensor> inputs = operands(test, dtype, gradient, commit);
    if (form.copy != DType::kUndefined) {
      outputs.push_back({form.copy, {size}});
      want.push_back(want[0].cast_to(form.copy));
    }
    for (size_t k = 0; k < form.factors; ++k) inputs.push_back(factors[k]);
    const auto got = run_kernel(kOwn, test.op, inputs, test.attributes, outputs, options());
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(identical(got[i], want[i])) << "output " << i << " of " << size;
  }
};

TEST_P(UpdateForms, HaveTheBitsOfTheNodesThatTheyReplace) {
  for (const UpdateCase& test : kUpdates) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      if (!has_row(test, dtype, GetParam())) continue;
      for (const Form& form : kForms) {
        SCOPED_TRACE(std::string(test.op) + " " + std::string(short_name(dtype)) + ", gradient " +
                     std::string(short_name(form.gradient)));
        for (const int64_t size : kSizes) {
          // Many threads with one of the forms are enough for the sanitizer.
          if (under_address_sanitizer() && size > 2053 && &form != std::begin(kForms)) continue;
          check(test, dtype, form, size, true);
        }
        check(test, dtype, form, 2053, false);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, UpdateForms, testing::Values("reference", "fast"),
                         [](const auto& test) { return std::string(test.param); });

TEST(UpdateForms, RefuseWhatDoesNotFit) {
  const Tensor p = random_tensor(DType::kF32, {4}, -1, 1), lr = Tensor::scalar(0.5f);
  const auto why = [&](const Tensor& gradient, OutputSpec copy, const Tensor& factor) {
    return refusals(kOwn, "SGD", {p, gradient, lr, Tensor(), factor}, {},
                    {{DType::kF32, {4}}, std::move(copy)});
  };
  const Tensor none;
  const OutputSpec copy = {DType::kBF16, {4}};
  const auto says = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_EQ(why(p, copy, none), "");
  EXPECT_TRUE(says(why(p.cast_to(DType::kF64), copy, none), "wider than the parameter"));
  EXPECT_TRUE(says(why(p, {DType::kF32, {4}}, none), "not the parameter in 16 bits"));
  EXPECT_TRUE(says(why(p, {DType::kBF16, {3}}, none), "not the parameter in 16 bits"));
  EXPECT_TRUE(says(why(p, copy, p), "a factor that is no number"));
  EXPECT_TRUE(says(why(Tensor(DType::kF32, {3}), copy, none), "different sizes"));
}

class Judgement : public testing::TestWithParam<const char*> {};

TEST_P(Judgement, NormAndCheckInOnePassAreThoseOfTwo) {
  RunOptions options;
  options.kernel = GetParam();
  const Tensor factor = Tensor::scalar(1.0f / 3);
  for (const float special : {0.0f, INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<Tensor> gradients = {random_tensor(DType::kF32, {40000}, -1, 1, 1),
                                     random_tensor(DType::kF16, {17}, -1, 1, 2),
                                     random_tensor(DType::kBF16, {16385}, -1, 1, 3)};
    if (special != 0.0f) gradients[0].mutable_data<float>()[39999] = special;
    std::vector<Tensor> scaled;
    for (const Tensor& gradient : gradients)
      scaled.push_back(run_one("", "Mul", {gradient.cast_to(DType::kF32), factor}));
    const Tensor norm = run_one(kOwn, "GlobalNorm", scaled, {}, {DType::kF32, {}}, options);
    const Tensor finite = run_one(kOwn, "AllFinite", gradients, {}, {DType::kBool, {}}, options);
    EXPECT_EQ(finite.data<bool>()[0], special == 0.0f);
    std::vector<Tensor> operands = gradients;
    operands.push_back(factor);
    const auto got = run_kernel(kOwn, "GlobalNorm", operands, {{"scaled", int64_t{1}}},
                                {{DType::kF32, {}}, {DType::kBool, {}}}, options);
    EXPECT_TRUE(identical(got[0], norm));
    EXPECT_TRUE(identical(got[1], finite));
  }
}

TEST_P(Judgement, AnAnswerFromBeforeCounts) {
  RunOptions options;
  options.kernel = GetParam();
  const Tensor x = random_tensor(DType::kF32, {5}, -1, 1);
  for (const bool before : {true, false}) {
    const Tensor finite =
        run_one(kOwn, "AllFinite", {Tensor::scalar(true), x, Tensor::scalar(before)}, {},
                {DType::kBool, {}}, options);
    EXPECT_EQ(finite.data<bool>()[0], before);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Judgement, testing::Values("reference", "fast"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace halfnote::test
