// Updates of many parameters as one kernel: the results of each call alone, in the same launches
// however many there are; the states that a skipped step keeps; and the judgement of many
// gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/table.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

/// An optimizer and how its state looks: the shapes of the slots for a parameter's.
struct GroupRule {
  std::string_view op;
  std::vector<bool> slots;  // is it there?
  bool reads_step = false;
  Attributes attributes = {};
  uint64_t launches = 2;
  bool factored = false;  // slots are means of rows and columns
};

const GroupRule kGroupRules[] = {
    {"SGD", {}, false, {{"weight_decay", 0.125f}}},
    {"Momentum", {true}, true, {{"nesterov", int64_t{1}}}},
    {"Adam", {true, true}, true},
    {"AdamW", {true, true}, true, {{"weight_decay", 0.125f}}},
    {"Adagrad", {true}, true, {{"lr_decay", 0.25f}}},
    {"RMSprop", {true, false, false}},
    {"RMSprop", {true, true, true}, false, {{"centered", int64_t{1}}, {"momentum", 0.5f}}},
    {"Lion", {true}, false, {{"weight_decay", 0.125f}}},
    {"Lamb", {true, true}, true, {{"weight_decay", 0.125f}}, 4},
    {"Adafactor", {true, false}, true, {}, 5},
    {"Adafactor", {true, true}, true, {{"weight_decay", 0.125f}}, 8, true},
};

const std::vector<Shape> kSizes = {{1001}, {0}, {1}, {65537}, {16384}, {8}};
const std::vector<Shape> kMatrices = {{130, 67}, {0, 4, 3}, {1, 1}, {3, 2, 9}, {1, 300}, {70, 1}};

/// How the parameters of a group differ from the plain ones.
struct GroupKind {
  DType param = DType::kF32;
  DType gradient = DType::kUndefined;  // of every other parameter; undefined: that of the parameter
  DType copy = DType::kUndefined;      // of every third parameter; undefined: none
  bool commits = true;
  int factors = 0;
};

Shape slot_shape(const GroupRule& rule, const Shape& of, size_t slot) {
  if (!rule.factored) return of;
  Shape shape = of;
  shape.erase(slot == 0 ? shape.end() - 1 : shape.end() - 2);
  return shape;
}

Call call_of(const GroupRule& rule, const GroupKind& kind, const Shape& shape, uint32_t at) {
  const DType dtype = kind.param;
  const bool narrow = kind.gradient != DType::kUndefined && at % 2 == 0;
  const auto state = [&](const Shape& of, uint32_t seed) {
    return random(dtype, of, 0.25, 2, 100 * at + seed);
  };
  const Tensor gradient = random(narrow ? kind.gradient : dtype, shape, -1, 1, 100 * at + 2);
  Call call{kOwn, rule.op, {state(shape, 1), gradient}, rule.attributes, {}};
  call.outputs.push_back({dtype, shape});
  for (size_t k = 0; k < rule.slots.size(); ++k) {
    const Shape of = slot_shape(rule, shape, k);
    call.inputs.push_back(rule.slots[k] ? state(of, static_cast<uint32_t>(3 + k)) : Tensor());
    if (rule.slots[k]) call.outputs.push_back({dtype, of});
  }
  call.inputs.push_back(random(dtype, {}, 0.1, 0.1001));
  if (rule.reads_step) call.inputs.push_back(integers({3}, {}));
  call.inputs.push_back(Tensor::scalar(kind.commits));
  for (int k = 0; k < kind.factors; ++k) {
    call.inputs.push_back(random(dtype, {}, 0.5, 0.75, static_cast<uint32_t>(k + 1)));
  }
  if (kind.copy != DType::kUndefined && at % 3 == 0) call.outputs.push_back({kind.copy, shape});
  return call;
}

/// The gradient with an infinity or a NaN in front.
Tensor spoilt(const Tensor& gradient) {
  Tensor bad(DType::kF64, gradient.shape());
  const auto numbers = bad.mutable_data<double>();
  for (int64_t i = 0; i < gradient.size(); ++i)
    numbers[static_cast<size_t>(i)] = gradient.at_as_double(i);
  numbers[0] = gradient.size() % 2 == 0 ? INFINITY : NAN;
  return gradient.dtype() == DType::kF64 ? bad : bad.cast_to(gradient.dtype());
}

std::vector<Call> group_of(const GroupRule& rule, const GroupKind& kind) {
  std::vector<Call> calls;
  for (const Shape& shape : rule.factored ? kMatrices : kSizes)
    calls.push_back(call_of(rule, kind, shape, static_cast<uint32_t>(calls.size())));
  return calls;
}

/// The operands of all calls, one call behind the other, and the kernel of all.
struct Joined {
  std::vector<Tensor> inputs;
  std::vector<Operand> outputs;
  std::unique_ptr<Kernel> kernel;

  explicit Joined(const std::vector<Call>& calls) {
    std::vector<KernelCall> all;
    for (const Call& call : calls) {
      all.push_back(kernel_call(call));
      inputs.insert(inputs.end(), call.inputs.begin(), call.inputs.end());
      outputs.insert(outputs.end(), all.back().outputs.begin(), all.back().outputs.end());
    }
    const auto device = test::open_tested_device();
    const KernelRow* row = device->kernels().rows_of(all[0].domain, all[0].op).front();
    Prepared prepared = row->group.prepare(all);
    EXPECT_TRUE(prepared) << prepared.refusal;
    kernel = std::move(prepared.kernel);
  }
};

/// What the group must give, bit for bit: of rules that go element by element, under the emulation,
/// the reference's results; of others, and on a GPU, which contracts products and sums, those of
/// each call alone.
std::vector<Tensor> wanted_of(const GroupRule& rule, const std::vector<Call>& calls) {
  const bool exact = rule.launches == 2 && test::tested_device() == "cuda-emulated";
  std::vector<Tensor> wanted;
  for (const Call& call : calls) {
    for (Tensor& result : exact ? on_cpu(call) : on_device(call))
      wanted.push_back(std::move(result));
  }
  return wanted;
}

void check_group(const GroupRule& rule, const GroupKind& kind) {
  const std::vector<Call> calls = group_of(rule, kind);
  const Joined joined(calls);
  ASSERT_TRUE(joined.kernel);
  const std::vector<Tensor> wanted = wanted_of(rule, calls);
  const auto device = test::open_tested_device();
  const test::Placing placings[] = {{}, {.in_place = true}, {.in_place = true, .offset = 8}};
  uint64_t seed = 0;
  for (const test::Placing& placing : placings) {
    emulation::set_emulation_seed(++seed);
    const auto got =
        test::run_kernel(*device, *joined.kernel, joined.outputs, joined.inputs, placing);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(identical(got[i], wanted[i]))
          << rule.op << " of " << short_name(kind.param) << ", gradient "
          << short_name(kind.gradient) << ", copy " << short_name(kind.copy) << ", commit "
          << kind.commits << ", output " << i << ", placing " << seed;
    }
  }
  emulation::set_emulation_seed(1);
}

TEST(UpdateGroup, HasTheResultsOfEachCallAlone) {
  for (const GroupRule& rule : kGroupRules) {
    for (const DType param : {DType::kF32, DType::kF64}) {
      for (const DType gradient : {DType::kUndefined, DType::kF32, DType::kF16, DType::kBF16}) {
        const DType copy = gradient == DType::kF16   ? DType::kBF16
                           : gradient == DType::kF32 ? DType::kUndefined
                                                     : DType::kF16;
        check_group(rule, {param, gradient, copy, true, gradient == DType::kF16 ? 2 : 1});
      }
    }
  }
}

/// The results begin with the parameter and the slots as the call was given them.
void expect_old(const Call& call, std::span<const Tensor> results) {
  EXPECT_TRUE(identical(results[0], call.inputs[0])) << call.op;
  const size_t states = call.outputs.size();
  size_t result = 1;
  for (size_t i = 2; i < call.inputs.size() && result < states; ++i) {
    if (!call.inputs[i].defined()) continue;
    if (call.outputs[result].dtype != call.inputs[i].dtype()) break;  // the copy
    EXPECT_TRUE(identical(results[result++], call.inputs[i])) << call.op;
  }
}

TEST(UpdateGroup, KeepsAllStatesOfAStepThatDoesNotCommit) {
  for (const GroupRule& rule : kGroupRules) {
    for (const DType param : {DType::kF32, DType::kF64}) {
      GroupKind kind{param, DType::kBF16, DType::kBF16, false, 2};
      check_group(rule, kind);
      std::vector<Call> calls = group_of(rule, kind);
      for (Call& call : calls) {
        if (call.inputs[1].size() == 0) continue;
        call.inputs[1] = spoilt(call.inputs[1]);
      }
      const Joined joined(calls);
      const auto device = test::open_tested_device();
      const auto got = test::run_kernel(*device, *joined.kernel, joined.outputs, joined.inputs);
      size_t output = 0;
      for (const Call& call : calls) {
        expect_old(call, std::span(got).subspan(output));
        output += call.outputs.size();
      }
    }
  }
}

TEST(UpdateGroup, TakesTheSameLaunchesForAnyNumberOfParameters) {
  for (const GroupRule& rule : kGroupRules) {
    const GroupKind kind{DType::kF32, DType::kBF16, DType::kBF16, true, 1};
    const std::vector<Call> few = group_of(rule, kind);
    std::vector<Call> many;
    for (int i = 0; i < 20; ++i) many.insert(many.end(), few.begin(), few.end());
    for (const std::vector<Call>& calls : {few, many}) {
      const Joined joined(calls);
      const auto device = test::open_tested_device();
      const uint64_t before = device->counters().launches;
      test::run_kernel(*device, *joined.kernel, joined.outputs, joined.inputs);
      EXPECT_EQ(device->counters().launches - before, rule.launches) << rule.op;
    }
  }
}

TEST(UpdateGroup, RefusesWhatDoesNotFit) {
  const Call f32 = call_of(kGroupRules[2], {DType::kF32}, {3}, 1);
  const Call f64 = call_of(kGroupRules[2], {DType::kF64}, {3}, 2);
  Call short_of_lr = f32;
  short_of_lr.inputs.resize(4);
  const KernelRow* row = kernel_table().rows_of(kOwn, "Adam").front();
  const std::vector<KernelCall> fits = {kernel_call(f32), kernel_call(f32)};
  const std::vector<KernelCall> types = {kernel_call(f32), kernel_call(f64)};
  const std::vector<KernelCall> lacks = {kernel_call(f32), kernel_call(short_of_lr)};
  EXPECT_TRUE(row->group.prepare(fits));
  EXPECT_EQ(row->group.prepare(types).refusal, "parameters of different types");
  EXPECT_EQ(row->group.prepare(lacks).refusal, "an operand is missing");
}

Call kept_state(DType dtype, const Shape& shape, bool condition, uint32_t seed) {
  const auto state = [&](uint32_t own) {
    const Tensor numbers = random(DType::kF32, shape, 0, 100, seed + own);
    return dtype == DType::kF32 ? numbers : numbers.cast_to(dtype);
  };
  return {"", "Where", {Tensor::scalar(condition), state(1), state(2)}, {}, {{dtype, shape}}};
}

TEST(KeptStates, AreOneLaunchInAllTypes) {
  for (const bool condition : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16, DType::kI64,
                              DType::kU8, DType::kBool}) {
      std::vector<Call> calls;
      std::vector<Tensor> wanted;
      for (const Shape& shape : kSizes) {
        calls.push_back(kept_state(dtype, shape, condition, static_cast<uint32_t>(calls.size())));
        wanted.push_back(on_cpu(calls.back())[0]);
      }
      const Joined joined(calls);
      ASSERT_TRUE(joined.kernel);
      const auto device = test::open_tested_device();
      const test::Placing placings[] = {{}, {.in_place = true}, {.in_place = true, .offset = 8}};
      for (const test::Placing& placing : placings) {
        const uint64_t before = device->counters().launches;
        const auto got =
            test::run_kernel(*device, *joined.kernel, joined.outputs, joined.inputs, placing);
        EXPECT_EQ(device->counters().launches - before, 1u);
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(identical(got[i], wanted[i])) << short_name(dtype) << ", output " << i;
      }
    }
  }
}

TEST(KeptStates, LeaveOtherChoicesToTheRowOfAnyElements) {
  Call wide = kept_state(DType::kF32, {8}, true, 1);
  wide.inputs[0] = Tensor::full(DType::kBool, {8}, 1);
  Call scalar = kept_state(DType::kF32, {8}, true, 1);
  scalar.inputs[2] = Tensor::scalar(3.0f);
  for (const Call& call : {wide, scalar}) {
    EXPECT_EQ(row_of(call), "own.where");
    check(call);
  }
}

TEST(GradientJudgement, IsTwoLaunchesForAnyNumberOfGradients) {
  for (const std::string_view op : {"AllFinite", "GlobalNorm"}) {
    for (const int copies : {1, 30}) {
      Call call{kOwn, op, {}, {}, {}};
      for (int i = 0; i < copies; ++i) {
        for (const DType dtype : kStored) {
          for (const int64_t size : {0, 1, 1001, 16385})
            call.inputs.push_back(random(dtype, {size}, -1, 1, static_cast<uint32_t>(i + 1)));
        }
      }
      if (op == "GlobalNorm") call.outputs.push_back({DType::kF32, {}});
      call.outputs.push_back({DType::kBool, {}});
      check(call);
      call.inputs[7] = Tensor::full(DType::kF16, {16385}, INFINITY);
      check(call);
      const auto device = test::open_tested_device();
      const KernelChoice choice = device->kernels().choose(kernel_call(call));
      const uint64_t before = device->counters().launches;
      const auto got = test::run_kernel(*device, *choice.kernel, kernel_call(call).outputs,
                                        call.inputs, {.offset = 8});
      EXPECT_EQ(device->counters().launches - before, 2u) << op;
      EXPECT_EQ(got.back().at_as_double(0), 0) << op << " has seen the infinities";
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
