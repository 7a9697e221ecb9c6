// Kernels on channel blocks against their plain forms: the same bits where nothing is summed, else
// within the rounding of sums in another order.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_info.h"
#include "kernels/layout.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

constexpr DType kBlockedTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

bool cpu_has_blocks() { return fits_channel_blocks({DType::kF32, {1, 16, 2, 2}, {}, nullptr}); }

#define NEEDS_BLOCKS() \
  if (!cpu_has_blocks()) GTEST_SKIP() << "no kernels on channel blocks on this CPU"

Operand operand_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.dtype(), tensor.shape(), {}, tensor.dtype() == DType::kI64 ? &tensor : nullptr};
}

void run_bound(const Kernel& kernel, const std::vector<const std::byte*>& from,
               const std::vector<std::byte*>& to) {
  std::vector<std::byte> room(kernel.workspace_bytes() + 64, std::byte{0x5a});
  auto* aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
  kernel.run({from, to, aligned});
}

Tensor reordered(const Tensor& tensor, bool to_blocks) {
  KernelCall call;
  call.op = reorder_row().op;
  call.inputs = call.outputs = {operand_of(tensor)};
  (to_blocks ? call.outputs : call.inputs)[0].layout = channel_blocks();
  const Prepared prepared = reorder_row().prepare(call);
  EXPECT_TRUE(prepared) << prepared.refusal;
  Tensor result(tensor.dtype(), tensor.shape());
  run_bound(*prepared.kernel, {tensor.bytes()}, {result.mutable_bytes()});
  return result;
}

struct BlockedCall {
  std::string_view domain, op, plain;  // `plain`: the name that the plain row starts with
  std::vector<Tensor> inputs;
  Attributes attributes;
  std::vector<OutputSpec> outputs;
};

KernelCall kernel_call_of(const BlockedCall& c, int threads) {
  KernelCall call;
  call.domain = c.domain;
  call.op = c.op;
  call.attributes = &c.attributes;
  call.threads = threads;
  for (const Tensor& input : c.inputs) call.inputs.push_back(operand_of(input));
  for (const OutputSpec& output : c.outputs)
    call.outputs.push_back({output.dtype, output.shape, {}, nullptr});
  return call;
}

/// The results of the blocked form, plain again, from as many blocked operands as `mask` leaves;
/// none if the row has no blocked operands for the call. The same bits on one to three threads.
std::vector<Tensor> run_blocked(const BlockedCall& c, uint32_t input_mask = ~0u,
                                uint32_t output_mask = ~0u) {
  std::vector<Tensor> first;
  for (int threads = 1; threads <= 3; ++threads) {
    KernelCall call = kernel_call_of(c, threads);
    const KernelChoice choice = cpu_kernels().choose(call, c.plain);
    EXPECT_NE(choice.row, nullptr) << c.op;
    if (choice.row == nullptr) return {};
    const std::vector<const BlockedRow*> rows = blocked_rows_of(*choice.row);
    if (rows.empty()) return {};
    const BlockedOperands blocked = rows.back()->operands(call);
    if (!blocked.any()) return {};
    std::vector<Tensor> inputs = c.inputs, results;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if ((blocked.inputs & input_mask) >> i & 1) {
        inputs[i] = reordered(inputs[i], true);
        call.inputs[i].layout = channel_blocks();
      }
    }
    for (size_t i = 0; i < c.outputs.size(); ++i) {
      if ((blocked.outputs & output_mask) >> i & 1) call.outputs[i].layout = channel_blocks();
      results.emplace_back(c.outputs[i].dtype, c.outputs[i].shape);
    }
    Prepared prepared;
    const BlockedRow* row = nullptr;
    for (size_t i = 0; i < rows.size() && !prepared; ++i) {
      row = rows[i];
      prepared = row->row.prepare(call);
    }
    EXPECT_TRUE(prepared) << prepared.refusal;
    if (!prepared) return {};
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (const Tensor& input : inputs) from.push_back(input.defined() ? input.bytes() : nullptr);
    for (Tensor& result : results) to.push_back(result.mutable_bytes());
    run_bound(*prepared.kernel, from, to);
    for (size_t i = 0; i < results.size(); ++i) {
      if (is_blocked(call.outputs[i])) results[i] = reordered(results[i], false);
    }
    if (threads == 1) first = results;
    const std::string_view name = row->row.name;
    const bool exact_on_any = name != "blocked.conv" && name != "blocked.conv_few_positions";
    for (size_t i = 0; exact_on_any && i < results.size(); ++i) {
      EXPECT_TRUE(identical(results[i], first[i])) << c.op << " output " << i << ", " << threads;
    }
  }
  return first;
}

std::vector<Tensor> run_plain(const BlockedCall& c) {
  return run_kernel(c.domain, c.op, c.inputs, c.attributes, c.outputs,
                    {.kernel = c.plain, .check_repeats = false});
}

TEST(ChannelBlocks, ReorderIsWhereItIsSaidToBe) {
  NEEDS_BLOCKS();
  for (const DType type : kBlockedTypes) {
    for (const Shape& shape : {Shape{2, 32, 5, 7}, Shape{1, 16, 4, 8}, Shape{3, 48, 17}}) {
      const Tensor x = random_tensor(type, shape, -4, 4);
      const Tensor y = reordered(x, true);
      int64_t pixels = 1;
      for (size_t d = 2; d < shape.size(); ++d) pixels *= shape[d];
      const size_t size = size_of(type);
      for (int64_t at = 0; at < element_count(shape); ++at) {
        const int64_t n = at / (shape[1] * pixels), c = at / pixels % shape[1], p = at % pixels;
        const int64_t to = ((n * (shape[1] / 16) + c / 16) * pixels + p) * 16 + c % 16;
        ASSERT_EQ(std::memcmp(x.bytes() + static_cast<size_t>(at) * size,
                              y.bytes() + static_cast<size_t>(to) * size, size),
                  0)
            << at;
      }
      EXPECT_TRUE(identical(reordered(y, false), x));
    }
  }
}

TEST(ChannelBlocks, OnlyWholeBlocksOfSmallFloats) {
  EXPECT_FALSE(fits_channel_blocks({DType::kF32, {2, 24, 4, 4}, {}, nullptr}));
  EXPECT_FALSE(fits_channel_blocks({DType::kF32, {2, 32, 1, 1}, {}, nullptr})) << "one pixel";
  EXPECT_FALSE(fits_channel_blocks({DType::kF32, {2, 32}, {}, nullptr}));
  EXPECT_FALSE(fits_channel_blocks({DType::kF64, {2, 32, 4, 4}, {}, nullptr}));
  EXPECT_FALSE(fits_channel_blocks({DType::kF32, {0, 32, 4, 4}, {}, nullptr}));
  NEEDS_BLOCKS();
  EXPECT_TRUE(fits_channel_blocks({DType::kBF16, {2, 32, 4}, {}, nullptr}));
}

struct BlockedPoolCase {
  Shape x, y;
  std::vector<int64_t> kernel, strides, pads;
};

TEST(ChannelBlocks, MaxPoolIsThePlainOneBitForBit) {
  NEEDS_BLOCKS();
  const BlockedPoolCase cases[] = {
      {{2, 32, 8, 10}, {2, 32, 4, 5}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
      {{2, 16, 9, 11}, {2, 16, 5, 6}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
      {{1, 48, 7, 5}, {1, 48, 5, 3}, {3, 3}, {1, 1}, {0, 0, 0, 0}},
  };
  for (const BlockedPoolCase& c : cases) {
    for (const DType type : kBlockedTypes) {
      // Few different values, so that windows have ties; some NaN and infinities.
      Tensor wide = random_tensor(DType::kF64, c.x, -3, 3);
      auto data = wide.mutable_data<double>();
      for (size_t i = 0; i < data.size(); ++i) {
        data[i] = i % 37 == 5 ? std::nan("") : i % 41 == 7 ? -INFINITY : std::round(data[i]);
      }
      // Multiples of 1/8, whose sums are exact: the plain one adds in another order.
      Tensor eighths = random_tensor(DType::kF64, c.y, -8, 8, 2);
      for (double& value : eighths.mutable_data<double>()) value = std::round(value) / 8 + 0.0;
      const Tensor x = wide.cast_to(type), dy = eighths.cast_to(type);
      const Attributes attributes{
          {"kernel_shape", c.kernel}, {"strides", c.strides}, {"pads", c.pads}};
      const BlockedCall forward{"", "MaxPool", "fast", {x}, attributes, {{type, c.y}}};
      const BlockedCall backward{kOwn, "MaxPoolGrad", "fast", {dy, x}, attributes, {{type, c.x}}};
      for (const BlockedCall& call : {forward, backward}) {
        const std::vector<Tensor> got = run_blocked(call);
        ASSERT_EQ(got.size(), 1u);
        EXPECT_TRUE(identical(got[0], run_plain(call)[0])) << call.op << " " << short_name(type);
      }
    }
  }
}

/// Units of rounding of the type, and of f32 sums of a few thousand elements inside.
double bound_of_statistics(DType type) { return 4 * unit_roundoff(type) + 64 * 0x1p-24; }

TEST(ChannelBlocks, BatchNormalizationAgreesWithTheReference) {
  NEEDS_BLOCKS();
  for (const Shape& shape : {Shape{4, 32, 6, 7}, Shape{3, 16, 20, 20}, Shape{70, 48, 4, 4}}) {
    for (const DType type : kBlockedTypes) {
      SCOPED_TRACE(std::string(short_name(type)) + " " + std::to_string(shape[0]));
      const Shape c{shape[1]};
      // A mean far from 0: sums of squares would lose it.
      const Tensor x = random_tensor(type, shape, 40, 44, 1);
      const Tensor scale = random_tensor(DType::kF32, c, 0.5, 2, 2),
                   bias = random_tensor(DType::kF32, c, -1, 1, 3),
                   mean = random_tensor(DType::kF32, c, -1, 1, 4),
                   variance = random_tensor(DType::kF32, c, 0.5, 2, 5);
      const OutputSpec f32{DType::kF32, c};
      BlockedCall call{kOwn,   "BatchNormalization",
                       "fast", {x, scale, bias, mean, variance},
                       {},     {{type, shape}, f32, f32, f32, f32}};
      const std::vector<Tensor> y = run_blocked(call);
      ASSERT_EQ(y.size(), 5u);
      call.plain = "reference";
      const std::vector<Tensor> wanted = run_plain(call);
      for (size_t i = 0; i < 5; ++i)
        expect_close(y[i], wanted[i], bound_of_statistics(type), bound_of_statistics(type));
      // f32 results are rounded once.
      if (type == DType::kF32) expect_close(y[0], wanted[0], 2 * 0x1p-24, 0x1p-22);

      BlockedCall inference{"", "BatchNormalization", "fast", call.inputs, {}, {{type, shape}}};
      const std::vector<Tensor> inferred = run_blocked(inference);
      ASSERT_EQ(inferred.size(), 1u);
      inference.plain = "reference";
      expect_close(inferred[0], run_plain(inference)[0], 2 * unit_roundoff(type), 0x1p-20);

      const Tensor dy = random_tensor(type, shape, -1, 1, 6);
      BlockedCall gradient{kOwn,   "BatchNormalizationGrad",
                           "fast", {dy, x, scale, wanted[3], wanted[4]},
                           {},     {{type, shape}, f32, f32}};
      const std::vector<Tensor> dx = run_blocked(gradient);
      ASSERT_EQ(dx.size(), 3u);
      gradient.plain = "reference";
      const std::vector<Tensor> exact = run_plain(gradient);
      // Sums of up to 1,200 products below 3, in f32 lanes; dX inherits their error.
      const double sums = 1200 * 3 * 4 * 0x1p-24;
      expect_close(dx[0], exact[0], bound_of_statistics(type),
                   8 * unit_roundoff(type) + 64 * 0x1p-24);
      expect_close(dx[1], exact[1], bound_of_statistics(DType::kF32), sums);
      expect_close(dx[2], exact[2], bound_of_statistics(DType::kF32), sums);
    }
  }
}

TEST(ChannelBlocks, ReduceSumOverAllButTheChannels) {
  NEEDS_BLOCKS();
  for (const DType type : kBlockedTypes) {
    const Tensor x = random_tensor(type, {9, 32, 5, 6}, -1, 1);
    const int64_t all[] = {0, 2, 3}, some[] = {2, 3};
    const Tensor axes = Tensor::of<int64_t>({3}, all), other = Tensor::of<int64_t>({2}, some);
    const BlockedCall call{
        "", "ReduceSum", "fast", {x, axes}, {{"keepdims", int64_t{0}}}, {{type, {32}}}};
    const std::vector<Tensor> got = run_blocked(call);
    ASSERT_EQ(got.size(), 1u);
    // Both sum in f64 and round once; they may fall on different sides of a tie.
    expect_close(got[0], run_plain(call)[0], 2 * unit_roundoff(type), 0x1p-40);
    const BlockedCall planes{
        "", "ReduceSum", "fast", {x, other}, {{"keepdims", int64_t{0}}}, {{type, {9, 32}}}};
    EXPECT_TRUE(run_blocked(planes).empty()) << "sums of planes stay plain";
  }
}

TEST(ChannelBlocks, ElementsMeetTheirLikes) {
  NEEDS_BLOCKS();
  const Shape shape{2, 32, 5, 3};
  for (const DType type : kBlockedTypes) {
    const Tensor a = random_tensor(type, shape, -2, 2, 1), b = random_tensor(type, shape, -2, 2, 2),
                 one = random_tensor(type, {}, -2, 2, 3), line = random_tensor(type, {3}, -2, 2, 4);
    const Tensor channels = random_tensor(type, {32, 1, 1}, -2, 2, 5),
                 gates = random_tensor(type, {2, 32, 1, 1}, -2, 2, 6),
                 shared = random_tensor(type, {1, 32, 1, 1}, -2, 2, 7);
    for (const Tensor& other : {b, one, channels, gates, shared}) {
      for (const bool first : {false, true}) {
        const BlockedCall call{"",     "Sub",
                               "fast", first ? std::vector{other, a} : std::vector{a, other},
                               {},     {{type, shape}}};
        const std::vector<Tensor> got = run_blocked(call);
        ASSERT_EQ(got.size(), 1u);
        EXPECT_TRUE(identical(got[0], run_plain(call)[0])) << to_string(other.shape());
      }
    }
    const BlockedCall broadcast{"", "Mul", "fast", {a, line}, {}, {{type, shape}}};
    EXPECT_TRUE(run_blocked(broadcast).empty()) << "a line lies otherwise in blocks";
    const BlockedCall cast{"",
                           "Cast",
                           "reference",
                           {a},
                           {{"to", static_cast<int64_t>(DType::kF32)}},
                           {{DType::kF32, shape}}};
    const std::vector<Tensor> wide = run_blocked(cast);
    ASSERT_EQ(wide.size(), 1u);
    EXPECT_TRUE(identical(wide[0], run_plain(cast)[0]));
  }
}

struct BlockedConvCase {
  Shape x, w, y;
  std::vector<int64_t> strides, pads;
  int64_t group = 1;
  const char* plain = "onednn.conv";
};

using OperandMasks = std::vector<uint32_t>;

/// What it drops is decided by the place of an element, in the plain layout.
TEST(ChannelBlocks, AProgramWithADropoutStaysPlain) {
  NEEDS_BLOCKS();
  const Tensor x = random_tensor(DType::kF32, {2, 16, 3, 4}, -4, 4);
  BlockedCall call{"ai.halfnote", "Pointwise", "fast.pointwise", {x, x}, {}, {}};
  call.outputs = {{DType::kF32, {2, 16, 3, 4}}};
  call.attributes = {{"program", "t0:f32 = Add(x0, x1); out t0"}};
  EXPECT_FALSE(run_blocked(call).empty());
  call.inputs = {x, Tensor::scalar(int64_t{1}), Tensor::scalar(int64_t{2})};
  call.attributes = {{"program", "t0:f32 = Dropout[0.5, 1](x0, x1, x2); out t0"}};
  EXPECT_TRUE(run_blocked(call).empty());
}

/// Operands one by one and all together: a convolution takes each as it comes.
TEST(ChannelBlocks, ConvolutionsAgreeWithTheReference) {
  NEEDS_BLOCKS();
  const BlockedConvCase cases[] = {
      {{1, 32, 6, 5}, {48, 32, 3, 3}, {1, 48, 6, 5}, {1, 1}, {1, 1, 1, 1}},
      {{2, 3, 8, 8}, {16, 3, 5, 5}, {2, 16, 4, 4}, {2, 2}, {2, 2, 2, 2}},
      {{2, 64, 5, 5}, {32, 64, 1, 1}, {2, 32, 5, 5}, {1, 1}, {0, 0, 0, 0}},
      {{2, 32, 21, 21}, {48, 32, 1, 1}, {2, 48, 21, 21}, {1, 1}, {0, 0, 0, 0}},
      {{1, 32, 47, 43}, {16, 32, 1, 1}, {1, 16, 24, 22}, {2, 2}, {0, 0, 0, 0}},
      {{1, 64, 45, 45}, {16, 64, 1, 1}, {1, 16, 45, 45}, {1, 1}, {0, 0, 0, 0}},
      {{2, 32, 6, 6}, {32, 1, 3, 3}, {2, 32, 6, 6}, {1, 1}, {1, 1, 1, 1}, 32},
      {{2, 32, 19}, {16, 32, 3}, {2, 16, 19}, {1}, {1, 1}},
      {{2, 32, 9, 9}, {3, 32, 5, 5}, {2, 3, 9, 9}, {1, 1}, {2, 2, 2, 2}},  // swapped
      {{2, 256, 3, 3},
       {1040, 256, 1, 1},
       {2, 1040, 3, 3},
       {1, 1},
       {0, 0, 0, 0},
       1,
       "fast.conv_few"},
      {{3, 160, 5, 4}, {192, 160, 3, 3}, {3, 192, 3, 2}, {2, 2}, {1, 1, 1, 1}, 1, "fast.conv_few"},
  };
  for (const BlockedConvCase& c : cases) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::string(short_name(type)) + " " + to_string(c.w));
      const Attributes attributes{{"strides", c.strides}, {"pads", c.pads}, {"group", c.group}};
      const Tensor x = random_tensor(type, c.x, -1, 1, 1), w = random_tensor(type, c.w, -1, 1, 2),
                   dy = random_tensor(type, c.y, -1, 1, 3);
      const BlockedCall forward{"", "Conv", c.plain, {x, w}, attributes, {{type, c.y}}};
      const Tensor x_shape = Tensor::of<int64_t>({static_cast<int64_t>(c.x.size())}, c.x);
      const BlockedCall grad_input{kOwn,       "ConvGradInput", c.plain, {dy, w, x_shape},
                                   attributes, {{type, c.x}}};
      BlockedCall grad_weight{kOwn, "ConvGradWeight", c.plain, {dy, x}, attributes, {{type, c.w}}};
      grad_weight.attributes.set("kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end()));
      for (BlockedCall call : {forward, grad_input, grad_weight}) {
        if (!cpu_kernels().choose(kernel_call_of(call, 1), call.plain).row) continue;
        BlockedCall reference = call;
        reference.plain = "reference";
        const Tensor wanted = run_plain(reference)[0];
        // Sums of at most 2,025 products of numbers below 1.
        const double bound = 2025 * 0x1p-24 + 2 * unit_roundoff(type);
        for (const uint32_t inputs :
             type == DType::kF32 ? OperandMasks{0, 1, 2, 3} : OperandMasks{3}) {
          for (const uint32_t outputs : {0u, 1u}) {
            const std::vector<Tensor> got = run_blocked(call, inputs, outputs);
            if (!got.empty()) expect_close(got[0], wanted, bound, bound);
          }
        }
      }
    }
  }
}

/// Groups that fill no block are taken together, in bf16 in blocks as well.
TEST(ChannelBlocks, GradientsForTheWeightsOfGroupsAgreeWithTheReference) {
  NEEDS_BLOCKS();
  if (cpu::bf16_dots() != cpu::Bf16Dots::kFast)
    GTEST_SKIP() << "in f32, and with AMX, plain operands are faster";
  struct Case {
    Shape x, w, y;
    int64_t groups, stride;
  };
  const Case cases[] = {{{2, 32, 6, 6}, {32, 4, 3, 3}, {2, 32, 6, 6}, 8, 1},
                        {{2, 32, 7, 7}, {32, 8, 3, 3}, {2, 32, 4, 4}, 4, 2},
                        {{2, 96, 5, 5}, {96, 24, 3, 3}, {2, 96, 5, 5}, 4, 1}};
  for (const Case& c : cases) {
    SCOPED_TRACE(to_string(c.w));
    const Attributes attributes{{"strides", std::vector<int64_t>{c.stride, c.stride}},
                                {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                                {"kernel_shape", std::vector<int64_t>{3, 3}},
                                {"group", c.groups},
                                {"out_dtype", int64_t{1}}};
    BlockedCall call{
        kOwn,
        "ConvGradWeight",
        "onednn.conv",
        {random_tensor(DType::kBF16, c.y, -1, 1, 1), random_tensor(DType::kBF16, c.x, -1, 1, 2)},
        attributes,
        {{DType::kF32, c.w}}};
    const std::vector<Tensor> got = run_blocked(call, 3, 0);
    ASSERT_FALSE(got.empty());
    call.plain = "reference";
    // Sums of at most 72 products of numbers below 1.
    expect_close(got[0], run_plain(call)[0], 0, 72 * 0x1p-24);
  }
}

/// oneDNN 3.2 computed them wrong and wrote beside its memory: in bf16 where windows are deeper
/// than the volumes, in f32 with strides of 2 where more than half of a window lies outside.
TEST(ChannelBlocks, GradientsOfWindowsThatReachFarOutAgreeWithTheReference) {
  NEEDS_BLOCKS();
  struct Case {
    int64_t depth, kernel, pad, stride, other;  // `other`: the kernel along height and width
  };
  int compared = 0;
  for (const Case& c : {Case{2, 3, 1, 1, 3},
                        {1, 3, 2, 1, 1},
                        {4, 5, 2, 1, 1},
                        {3, 7, 4, 1, 1},
                        {5, 5, 3, 2, 1},
                        {4, 7, 4, 2, 3}}) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      constexpr int64_t kSize = 4;
      const int64_t out = (c.depth + 2 * c.pad - c.kernel) / c.stride + 1;
      const int64_t pad = c.other / 2, size = (kSize + 2 * pad - c.other) / c.stride + 1;
      const Shape x{2, 32, c.depth, kSize, kSize}, y{2, 64, out, size, size},
          w{64, 32, c.kernel, c.other, c.other};
      SCOPED_TRACE(std::string(short_name(type)) + " " + to_string(x) + " by " + to_string(w));
      BlockedCall call{kOwn,
                       "ConvGradWeight",
                       "onednn.conv",
                       {random_tensor(type, y, -1, 1, 1), random_tensor(type, x, -1, 1, 2)},
                       {{"strides", std::vector<int64_t>(3, c.stride)},
                        {"pads", std::vector<int64_t>{c.pad, pad, pad, c.pad, pad, pad}},
                        {"kernel_shape", std::vector<int64_t>(w.begin() + 2, w.end())},
                        {"out_dtype", int64_t{1}}},
                       {{DType::kF32, w}}};
      if (!cpu_kernels().choose(kernel_call_of(call, 1), call.plain).row) continue;
      ++compared;
      const Tensor plain = run_plain(call)[0];
      const std::vector<Tensor> blocked = run_blocked(call, 3, 0);
      call.plain = "reference";
      const Tensor wanted = run_plain(call)[0];
      // Sums of at most 256 products of numbers below 1.
      expect_close(plain, wanted, 0, 256 * 0x1p-24);
      if (!blocked.empty()) expect_close(blocked[0], wanted, 0, 256 * 0x1p-24);
    }
  }
  EXPECT_GE(compared, 6);  // f32 on every CPU
}

}  // namespace
}  // namespace halfnote::test
