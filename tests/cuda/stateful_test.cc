// The CUDA kernels of the stateful family against the CPU's reference: every optimizer, committed
// or not, and what judges the gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

struct Rule {
  std::string_view op;
  std::vector<bool> slots;  // is it there?
  bool reads_step = false;
  Attributes attributes = {};
};

const Rule kRules[] = {
    {"SGD", {}, false, {{"weight_decay", 0.125f}}},
    {"Momentum", {true}, true, {{"nesterov", int64_t{1}}}},
    {"Adam", {true, true}, true},
    {"AdamW", {true, true}, true},
    {"Adagrad", {true}, true, {{"lr_decay", 0.25f}, {"weight_decay", 0.125f}}},
    {"RMSprop", {true, false, false}},
    {"RMSprop", {true, false, true}, false, {{"momentum", 0.5f}}},
    {"RMSprop", {true, true, false}, false, {{"centered", int64_t{1}}}},
    {"RMSprop", {true, true, true}, false, {{"centered", int64_t{1}}, {"momentum", 0.5f}}},
    {"Lion", {true}, false, {{"weight_decay", 0.125f}}},
    {"Lamb", {true, true}, true, {{"weight_decay", 0.125f}, {"max_ratio", 0.5f}}},
    {"Lamb", {true, true}, true, {{"lamb_mode", int64_t{1}}}},
    {"Adafactor", {true, false}, true},
};

/// One step of the rule from states of these shapes.
void check_step(const Rule& rule, DType dtype, const Shape& shape, const std::vector<Shape>& slots,
                bool commits) {
  const auto state = [&](const Shape& of, uint32_t seed) {
    return random(dtype, of, 0.25, 2, seed);
  };
  Call call{kOwn, rule.op, {state(shape, 1), random(dtype, shape, -1, 1, 2)}, rule.attributes, {}};
  call.outputs.push_back({dtype, shape});
  for (size_t k = 0; k < rule.slots.size(); ++k) {
    const auto seed = static_cast<uint32_t>(3 + k);
    call.inputs.push_back(rule.slots[k] ? state(slots[k], seed) : Tensor());
    if (rule.slots[k]) call.outputs.push_back({dtype, slots[k]});
  }
  call.inputs.push_back(random(dtype, {}, 0.1, 0.1001));
  if (rule.reads_step) call.inputs.push_back(integers({3}, {}));
  call.inputs.push_back(Tensor::scalar(commits));
  check(call);
}

TEST(CudaStateful, Optimizers) {
  for (const Rule& rule : kRules) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const int64_t size : {0, 1, 1001, 65537}) {
        const std::vector<Shape> slots(rule.slots.size(), Shape{size});
        for (const bool commits : {false, true}) check_step(rule, dtype, {size}, slots, commits);
      }
    }
  }
}

TEST(CudaStateful, AdafactorKeepsMeansOfRowsAndColumns) {
  struct Shapes {
    Shape param, row, column;
  };
  const Shapes all[] = {{{1, 1}, {1}, {1}},          {{7, 5}, {7}, {5}},
                        {{3, 2, 9}, {3, 2}, {3, 9}}, {{70, 1}, {70}, {1}},
                        {{1, 300}, {1}, {300}},      {{130, 67}, {130}, {67}},
                        {{0, 4, 3}, {0, 4}, {0, 3}}};
  for (const Shapes& s : all) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      for (const bool commits : {false, true}) {
        check_step({"Adafactor", {true, true}, true}, dtype, s.param, {s.row, s.column}, commits);
        check_step({"Adafactor",
                    {true, true},
                    true,
                    {{"relative_step", int64_t{0}},
                     {"scale_parameter", int64_t{0}},
                     {"weight_decay", 0.125f}}},
                   dtype, s.param, {s.row, s.column}, commits);
      }
    }
  }
}

TEST(CudaStateful, UpdatesUnscaleAndCopy) {
  const Tensor lr = random(DType::kF32, {}, 0.1, 0.1001), step = integers({3}, {});
  const Tensor unscale = random(DType::kF32, {}, 0.125, 0.126), clip = random(DType::kF32, {});
  const Result same = {DType::kF32, {1001}};
  const auto state = [&](uint32_t seed) { return random(DType::kF32, {1001}, 0.1, 2, seed); };
  for (const DType gradient : kStored) {
    for (const DType copy : {DType::kF16, DType::kBF16}) {
      for (const double commits : {0.0, 1.0}) {
        const Tensor commit = random(DType::kF64, {}, commits, commits).cast_to(DType::kBool);
        const Tensor grad = random(gradient, {1001}), none;
        const Result rounded = {copy, {1001}};
        check({kOwn, "SGD", {state(1), grad, lr, commit, unscale}, {}, {same, rounded}});
        check({kOwn,
               "Momentum",
               {state(1), grad, state(3), lr, step, commit, unscale, clip},
               {},
               {same, same, rounded}});
        for (const std::string_view op : {"Adam", "AdamW"}) {
          check({kOwn,
                 op,
                 {state(1), grad, state(3), state(4), lr, step, commit, unscale, clip},
                 {},
                 {same, same, same, rounded}});
          check({kOwn,
                 op,
                 {state(1), grad, state(3), state(4), lr, step, none},
                 {},
                 {same, same, same}});
        }
      }
    }
  }
}

TEST(CudaStateful, FiniteAndNorm) {
  for (const DType dtype : kFloats) {
    const Tensor x = random(dtype, {1}), y = random(dtype, {40000});
    const DType norm = dtype == DType::kF64 ? dtype : DType::kF32;
    check({kOwn, "AllFinite", {x, y}, {}, {{DType::kBool, {}}}});
    check({kOwn, "GlobalNorm", {x, y}, {}, {{norm, {}}}});
    Tensor bad = random(DType::kF64, {300});
    bad.mutable_data<double>()[299] = INFINITY;
    check({kOwn, "AllFinite", {x, bad.cast_to(dtype)}, {}, {{DType::kBool, {}}}});
  }
}

TEST(CudaStateful, NormScalesAndJudges) {
  const Attributes scaled = {{"scaled", int64_t{1}}};
  const Result norm = {DType::kF32, {}}, finite = {DType::kBool, {}};
  const Tensor factor = random(DType::kF32, {}, 0.25, 0.26);
  const Tensor a = random(DType::kF16, {1001}), b = random(DType::kBF16, {40000}),
               c = random(DType::kF32, {0});
  check({kOwn, "GlobalNorm", {a, b, c, factor}, scaled, {norm, finite}});
  check({kOwn, "GlobalNorm", {a, b, c}, {}, {norm, finite}});
  check({kOwn, "GlobalNorm", {Tensor(DType::kF32, {0, 3})}, {}, {norm, finite}});
  for (const float special : {INFINITY, -INFINITY, NAN}) {
    Tensor bad = random(DType::kF64, {70000});
    bad.mutable_data<double>()[69999] = special;
    check({kOwn, "GlobalNorm", {a, bad.cast_to(DType::kF32), factor}, scaled, {norm, finite}});
    check({kOwn, "GlobalNorm", {bad}, {}, {{DType::kF64, {}}, finite}});
  }
  // Finite, but for what the factor makes of them.
  const Tensor huge = random(DType::kF32, {5}, 1e38, 2e38);
  check({kOwn, "GlobalNorm", {huge, random(DType::kF32, {}, 1e9, 1e9)}, scaled, {norm, finite}});
}

}  // namespace
}  // namespace halfnote::cuda_emulated
