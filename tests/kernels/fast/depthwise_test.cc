// The depthwise convolutions against the reference: forward, both gradients and ConvTranspose, in
// all types, plain and in channel blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_info.h"
#include "kernels/layout.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/fast/conv_case.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

const FastConvCase kDepthwiseCases[] = {
    {"one pixel", {1, 2, 1, 1}, {2, 1, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"3x3", {2, 16, 5, 7}, {16, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"no pads", {2, 17, 6, 9}, {17, 1, 3, 3}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"stride 2", {3, 33, 9, 8}, {33, 1, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
    {"stride 3 and 1", {1, 5, 10, 11}, {5, 1, 3, 2}, {3, 1}, {1, 1}, {0, 1, 2, 0}},
    {"stride above the kernel", {2, 4, 9, 10}, {4, 1, 2, 2}, {3, 4}, {1, 1}, {0, 0, 0, 0}},
    {"lopsided", {2, 6, 6, 7}, {6, 1, 3, 4}, {2, 3}, {1, 1}, {2, 0, 1, 3}},
    {"dilated", {2, 20, 11, 12}, {20, 1, 3, 3}, {1, 1}, {3, 2}, {3, 2, 3, 2}},
    {"dilated and strided", {1, 3, 13, 14}, {3, 1, 3, 2}, {2, 3}, {2, 3}, {1, 3, 2, 0}},
    {"5x5 on 2x2", {4, 40, 2, 2}, {40, 1, 5, 5}, {1, 1}, {1, 1}, {2, 2, 2, 2}},
    {"7x7 on 4x4", {3, 32, 4, 4}, {32, 1, 7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
    {"7x7", {2, 18, 17, 18}, {18, 1, 7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
    {"9x11, stride 2", {1, 3, 12, 13}, {3, 1, 9, 11}, {2, 2}, {1, 1}, {4, 5, 4, 5}},
    {"two filters", {2, 10, 6, 7}, {20, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"three filters, stride 2", {2, 7, 8, 9}, {21, 1, 3, 2}, {2, 2}, {1, 1}, {1, 0, 1, 1}},
    {"a line", {2, 24, 37}, {24, 1, 15}, {1}, {1}, {7, 7}},
    {"a line, dilated", {1, 19, 70}, {19, 1, 3}, {2}, {8}, {16, 0}},
    {"a long line", {1, 3, 1100}, {3, 1, 31}, {1}, {1}, {15, 15}},
    {"a long line, stride 3", {1, 2, 2000}, {2, 1, 7}, {3}, {1}, {3, 3}},
    {"many rows", {1, 2, 150, 70}, {2, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"many rows, stride 2", {1, 2, 151, 141}, {2, 1, 5, 5}, {2, 2}, {1, 1}, {2, 2, 2, 2}},
    {"pads beyond the kernel", {1, 4, 3, 3}, {4, 1, 2, 2}, {1, 1}, {1, 1}, {3, 2, 2, 3}},
    {"volume of one plane",
     {1, 4, 1, 5, 6},
     {4, 1, 1, 3, 3},
     {1, 1, 1},
     {1, 1, 1},
     {0, 1, 1, 0, 1, 1}},
};

constexpr DType kDepthwiseTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// All calls of a case: Conv without and with a bias, both gradients, ConvTranspose. What
/// ConvTranspose cannot have, since the input is larger than what the outputs reach, is left out.
std::vector<FastConvCall> depthwise_calls(const FastConvCase& c, DType type) {
  const Shape y = fast_conv_result(c);
  const Tensor x = random_tensor(type, c.x, -1, 1, 1), w = random_tensor(type, c.w, -1, 1, 2);
  const Tensor dy = random_tensor(type, y, -1, 1, 3);
  const Tensor bias = random_tensor(type, {c.w[0]}, -1, 1, 4);
  Attributes attributes{
      {"strides", c.strides}, {"dilations", c.dilations}, {"pads", c.pads}, {"group", c.x[1]}};
  const Tensor shape =
      Tensor::of<int64_t>({static_cast<int64_t>(c.x.size())}, std::span<const int64_t>(c.x));
  const int64_t taps = element_count(c.w) / c.w[0];
  const int64_t filters = c.w[0] / c.x[1];
  std::vector<FastConvCall> calls{
      {"", "Conv", {x, w}, attributes, {type, y}, taps},
      {"", "Conv", {x, w, bias}, attributes, {type, y}, taps + 1},
      {kOwn, "ConvGradInput", {dy, w, shape}, attributes, {type, c.x}, taps * filters},
  };
  const Tensor channel_bias = random_tensor(type, {c.x[1]}, -1, 1, 5);
  calls.push_back({"",
                   "ConvTranspose",
                   {dy, w, channel_bias},
                   attributes,
                   {type, fast_conv_transpose_result(c)},
                   taps * filters + 1});
  attributes.set("kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end()));
  for (const DType out : {type, DType::kF32}) {
    attributes.set("out_dtype", static_cast<int64_t>(out));
    calls.push_back(
        {kOwn, "ConvGradWeight", {dy, x}, attributes, {out, c.w}, element_count(y) / y[1]});
  }
  return calls;
}

/// The bound of a sum of products below 1 in f32, and of one rounding of the result.
void expect_depthwise(const Tensor& got, const Tensor& wanted, int64_t terms) {
  const auto count = static_cast<double>(terms + 2);
  expect_close(got, wanted, 2 * unit_roundoff(got.dtype()),
               2 * count * std::sqrt(count) * unit_roundoff(DType::kF32));
}

const RunOptions kAnyDepthwise{.kernel = "fast.depthwise_of_any_form"};

bool cpu_has_depthwise() { return cpu::vector_isa() != cpu::VectorIsa::kBaseline; }

TEST(FastDepthwise, AgreesWithTheReference) {
  if (!cpu_has_depthwise()) GTEST_SKIP() << "neither AVX2 nor AVX-512";
  for (const FastConvCase& c : kDepthwiseCases) {
    for (const DType type : kDepthwiseTypes) {
      for (const FastConvCall& call : depthwise_calls(c, type)) {
        SCOPED_TRACE(std::string(c.name) + ", " + std::string(call.op) + " " +
                     std::string(short_name(type)));
        const Tensor got =
            run_one(call.domain, call.op, call.inputs, call.attributes, call.output, kAnyDepthwise);
        expect_depthwise(got,
                         run_one(call.domain, call.op, call.inputs, call.attributes, call.output),
                         call.terms);
      }
    }
  }
}

Operand depthwise_operand(const Tensor& tensor) {
  return {tensor.dtype(), tensor.shape(), {}, tensor.dtype() == DType::kI64 ? &tensor : nullptr};
}

void run_depthwise(const Kernel& kernel, const std::vector<const std::byte*>& from, std::byte* to) {
  std::vector<std::byte> room(kernel.workspace_bytes() + 64, std::byte{0x5a});
  auto* aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(room.data()) + 63) / 64 * 64);
  const std::vector<std::byte*> outputs{to};
  kernel.run({from, outputs, aligned});
}

Tensor depthwise_reordered(const Tensor& tensor, bool to_blocks) {
  KernelCall call;
  call.op = reorder_row().op;
  call.inputs = call.outputs = {depthwise_operand(tensor)};
  (to_blocks ? call.outputs : call.inputs)[0].layout = channel_blocks();
  const Prepared prepared = reorder_row().prepare(call);
  EXPECT_TRUE(prepared) << prepared.refusal;
  Tensor result(tensor.dtype(), tensor.shape());
  run_depthwise(*prepared.kernel, {tensor.bytes()}, result.mutable_bytes());
  return result;
}

/// The result with the operands that `mask` names in blocks (bit 2: the output).
Tensor depthwise_in_blocks(const FastConvCall& c, uint32_t mask, int threads) {
  KernelCall call{.domain = c.domain, .op = c.op, .attributes = &c.attributes, .threads = threads};
  std::vector<Tensor> inputs = c.inputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    call.inputs.push_back(depthwise_operand(c.inputs[i]));
    if (i >= 2 || (mask >> i & 1) == 0) continue;
    inputs[i] = depthwise_reordered(inputs[i], true);
    call.inputs[i].layout = channel_blocks();
  }
  call.outputs = {{c.output.dtype, c.output.shape, {}, nullptr}};
  if ((mask >> 2 & 1) != 0) call.outputs[0].layout = channel_blocks();
  const KernelChoice choice = cpu_kernels().choose(call, kAnyDepthwise.kernel);
  EXPECT_NE(choice.row, nullptr) << c.op;
  if (choice.row == nullptr) return {};
  std::vector<const std::byte*> from;
  for (const Tensor& input : inputs) from.push_back(input.bytes());
  Tensor result(c.output.dtype, c.output.shape);
  run_depthwise(*choice.kernel, from, result.mutable_bytes());
  return (mask >> 2 & 1) != 0 ? depthwise_reordered(result, false) : result;
}

TEST(FastDepthwise, ChannelBlocksHaveTheBitsOfPlainOperands) {
  if (!fits_channel_blocks({DType::kF32, {1, 16, 2, 2}, {}, nullptr}))
    GTEST_SKIP() << "no kernels on channel blocks on this CPU";
  const FastConvCase cases[] = {
      {"3x3", {2, 32, 9, 10}, {32, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"5x5, stride 2", {2, 48, 9, 7}, {48, 1, 5, 5}, {2, 2}, {1, 1}, {2, 2, 2, 2}},
      {"7x7", {3, 16, 8, 8}, {16, 1, 7, 7}, {1, 1}, {1, 1}, {3, 3, 3, 3}},
      {"a line", {1, 16, 600}, {16, 1, 15}, {1}, {1}, {7, 7}},
  };
  for (const FastConvCase& c : cases) {
    for (const DType type : kDepthwiseTypes) {
      for (const FastConvCall& call : depthwise_calls(c, type)) {
        if (call.op == "ConvTranspose") continue;
        SCOPED_TRACE(std::string(c.name) + ", " + std::string(call.op) + " " +
                     std::string(short_name(type)));
        const bool gradient = call.op == "ConvGradWeight";
        const Tensor plain = depthwise_in_blocks(call, 0, 1);
        for (const uint32_t mask :
             gradient ? std::vector<uint32_t>{1, 2, 3} : std::vector<uint32_t>{1, 4, 5}) {
          for (const int threads : {1, 3})
            EXPECT_TRUE(identical(depthwise_in_blocks(call, mask, threads), plain)) << mask;
        }
      }
    }
  }
}

/// A NaN or an infinity of x reaches the results that see it, and no others.
TEST(FastDepthwise, SpecialValuesGoWhereTheyBelong) {
  if (!cpu_has_depthwise()) GTEST_SKIP() << "neither AVX2 nor AVX-512";
  const FastConvCase c{"", {1, 20, 6, 6}, {20, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  for (const double special : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const DType type : kDepthwiseTypes) {
      for (FastConvCall& call : depthwise_calls(c, type)) {
        if (call.op == "ConvGradWeight") continue;
        Tensor first = call.inputs[0].cast_to(DType::kF64);
        first.mutable_data<double>()[17 * 36 + 14] = special;
        call.inputs[0] = first.cast_to(type);
        SCOPED_TRACE(std::string(call.op) + " " + std::string(short_name(type)));
        expect_depthwise(
            run_one(call.domain, call.op, call.inputs, call.attributes, call.output, kAnyDepthwise),
            run_one(call.domain, call.op, call.inputs, call.attributes, call.output), call.terms);
      }
    }
  }
}

std::string why_not_depthwise(const FastConvCase& c, DType type, std::string_view kernel) {
  const FastConvCall call = depthwise_calls(c, type)[0];
  return refusals("", "Conv", call.inputs, call.attributes, {call.output}, {.kernel = kernel});
}

TEST(FastDepthwise, LeavesAloneWhatIsNotItsOwn) {
  if (!cpu_has_depthwise()) GTEST_SKIP() << "neither AVX2 nor AVX-512";
  const FastConvCase depthwise{"", {1, 4, 64, 64}, {4, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  EXPECT_EQ(why_not_depthwise(depthwise, DType::kF32, "fast.depthwise"), "");
  EXPECT_NE(why_not_depthwise(depthwise, DType::kF64, kAnyDepthwise.kernel), "");
  const FastConvCase empty{"", {0, 4, 8, 8}, {4, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  EXPECT_NE(why_not_depthwise(empty, DType::kF32, kAnyDepthwise.kernel), "");
  const FastConvCase far{"", {1, 2, 3, 40000}, {2, 1, 1, 2}, {1, 1}, {1, 30000}, {0, 0, 0, 0}};
  EXPECT_NE(why_not_depthwise(far, DType::kF32, kAnyDepthwise.kernel), "");
  const FastConvCase volume{"",        {1, 2, 3, 3, 3}, {2, 1, 3, 3, 3},
                            {1, 1, 1}, {1, 1, 1},       {1, 1, 1, 1, 1, 1}};
  EXPECT_NE(why_not_depthwise(volume, DType::kF32, kAnyDepthwise.kernel), "");
}

}  // namespace
}  // namespace halfnote::test
