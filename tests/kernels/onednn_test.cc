// What all oneDNN rows have in common: the same bytes on every run, reasons for refusals, the
// choice by type.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "exact.h"
#include "kernels/cpu/cpu_info.h"

namespace halfnote::test {
namespace {

struct Call {
  std::string_view domain, op;
  std::vector<Tensor> inputs;
  Attributes attributes;
  std::vector<OutputSpec> outputs;
};

/// Calls of all kinds, large enough to be shared by threads.
std::vector<Call> calls_in(DType type) {
  const auto random = [type](const Shape& shape, uint32_t seed) {
    return random_tensor(type, shape, -1, 1, seed);
  };
  const Shape x{8, 12, 15, 15}, w{20, 12, 3, 3}, y{8, 20, 15, 15};
  const Attributes conv{{"pads", std::vector<int64_t>{1, 1, 1, 1}},
                        {"kernel_shape", std::vector<int64_t>{3, 3}},
                        {"out_dtype", int64_t{1}}};
  const Attributes pool{{"kernel_shape", std::vector<int64_t>{3, 3}}};
  const Tensor shape = Tensor::of<int64_t>({4}, std::span<const int64_t>(x));
  return {
      {"", "MatMul", {random({3, 70, 90}, 1), random({90, 50}, 2)}, {}, {{type, {3, 70, 50}}}},
      {"",
       "Gemm",
       {random({70, 90}, 1), random({50, 90}, 2), random({50}, 3)},
       {{"transB", int64_t{1}}},
       {{type, {70, 50}}}},
      {kOwn,
       "MatMul",
       {random({300, 60}, 1), random({300, 50}, 2)},
       {{"transA", int64_t{1}}, {"out_dtype", int64_t{1}}},
       {{DType::kF32, {60, 50}}}},
      {"", "Conv", {random(x, 1), random(w, 2), random({20}, 3)}, conv, {{type, y}}},
      {"", "ConvTranspose", {random(y, 1), random(w, 2), random({12}, 3)}, conv, {{type, x}}},
      {kOwn, "ConvGradInput", {random(y, 1), random(w, 2), shape}, conv, {{type, x}}},
      {kOwn, "ConvGradWeight", {random(y, 1), random(x, 2)}, conv, {{DType::kF32, w}}},
      {"", "AveragePool", {random(x, 1)}, pool, {{type, {8, 12, 13, 13}}}},
      {kOwn, "AveragePoolGrad", {random({8, 12, 13, 13}, 1), shape}, pool, {{type, x}}},
      {"", "Softmax", {random({40, 30}, 1)}, {}, {{type, {40, 30}}}},
      {"", "LogSoftmax", {random({40, 30}, 1)}, {}, {{type, {40, 30}}}},
      {kOwn, "SoftmaxGrad", {random({40, 30}, 1), random({40, 30}, 2)}, {}, {{type, {40, 30}}}},
      {kOwn, "LogSoftmaxGrad", {random({40, 30}, 1), random({40, 30}, 2)}, {}, {{type, {40, 30}}}},
  };
}

/// On an older CPU the library may lack a fast kernel for a call; then ours runs.
bool is_taken(const Call& call) {
  const RunOptions options{.kernel = "onednn"};
  const std::string why =
      refusals(call.domain, call.op, call.inputs, call.attributes, call.outputs, options);
  EXPECT_TRUE(why.empty() || why.find("plain loop") != std::string::npos) << why;
  return why.empty();
}

class OneDnn : public testing::TestWithParam<DType> {};

TEST_P(OneDnn, GivesTheSameBytesOnEveryRun) {
  for (const Call& call : calls_in(GetParam())) {
    if (!is_taken(call)) continue;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(std::string(call.op) + " on " + std::to_string(threads) + " threads");
      const RunOptions options{.kernel = "onednn", .threads = threads, .check_repeats = false};
      const auto run = [&] {
        return run_kernel(call.domain, call.op, call.inputs, call.attributes, call.outputs,
                          options)[0];
      };
      const Tensor first = run();
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(identical(run(), first));
    }
  }
}

TEST_P(OneDnn, AgreesWithTheReference) {
  for (const Call& call : calls_in(GetParam())) {
    SCOPED_TRACE(call.op);
    if (!is_taken(call)) continue;
    const RunOptions options{.kernel = "onednn", .threads = 2, .check_repeats = false};
    const auto run = [&](const RunOptions& how) {
      return run_kernel(call.domain, call.op, call.inputs, call.attributes, call.outputs, how)[0];
    };
    // Sums of up to 1800 products below 1, typically 25·√u off; both round once to the output's
    // type.
    const double store = 2 * unit_roundoff(call.outputs[0].dtype);
    expect_close(run(options), run({.check_repeats = false}), store, 1800 * 0x1p-24 + store * 0.01);
  }
}

/// 1×1 convolutions of few, some and many pixels: the rows differ in the layouts they compute in.
TEST_P(OneDnn, OneByOneConvolutionsAgreeWithTheReference) {
  const double store = 2 * unit_roundoff(GetParam());
  const auto check = [&](const Call& call) {
    SCOPED_TRACE(call.op);
    if (!is_taken(call)) return;
    const RunOptions fast{.kernel = "onednn", .threads = 2, .check_repeats = false};
    const auto run = [&](const RunOptions& how) {
      return run_kernel(call.domain, call.op, call.inputs, call.attributes, call.outputs, how)[0];
    };
    // Sums of up to 1452 products below 1.
    expect_close(run(fast), run({.check_repeats = false}), store, 1452 * 0x1p-24 + store * 0.01);
  };
  const auto random = [&](const Shape& shape, uint32_t seed) {
    return random_tensor(GetParam(), shape, -1, 1, seed);
  };
  for (const int64_t side : {7, 13, 22}) {
    for (const int64_t stride : {1, 2}) {
      SCOPED_TRACE(std::to_string(side) + " by stride " + std::to_string(stride));
      const int64_t out = (side + stride - 1) / stride;
      const Shape x{3, 12, side, side}, w{20, 12, 1, 1}, y{3, 20, out, out};
      const Attributes conv{{"strides", std::vector<int64_t>{stride, stride}},
                            {"kernel_shape", std::vector<int64_t>{1, 1}},
                            {"out_dtype", int64_t{1}}};
      const Tensor shape = Tensor::of<int64_t>({4}, std::span<const int64_t>(x));
      check({"", "Conv", {random(x, 1), random(w, 2), random({20}, 3)}, conv, {{GetParam(), y}}});
      check({kOwn, "ConvGradInput", {random(y, 1), random(w, 2), shape}, conv, {{GetParam(), x}}});
      check({kOwn, "ConvGradWeight", {random(y, 1), random(x, 2)}, conv, {{DType::kF32, w}}});
    }
  }
}

/// Groups of few channels are taken together for the gradient of their weights: 4, 8, 24, 2 of 4,
/// and 8 of an odd number of groups.
TEST_P(OneDnn, GradientsForTheWeightsOfGroupsAgreeWithTheReference) {
  struct Case {
    Shape x, w, y;
    int64_t group, stride, pad;
  };
  const Case cases[] = {
      {{2, 32, 9, 7}, {32, 4, 3, 3}, {2, 32, 9, 7}, 8, 1, 1},
      {{2, 32, 9, 7}, {32, 8, 3, 3}, {2, 32, 5, 4}, 4, 2, 1},
      {{2, 48, 8, 8}, {48, 24, 3, 3}, {2, 48, 8, 8}, 2, 1, 1},
      {{1, 32, 9, 9}, {64, 2, 5, 5}, {1, 64, 9, 9}, 16, 1, 2},
      {{3, 24, 8, 8}, {24, 8, 1, 1}, {3, 24, 8, 8}, 3, 1, 0},
      {{2, 16, 40}, {16, 4, 5}, {2, 16, 40}, 4, 1, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(to_string(c.w) + " in " + std::to_string(c.group) + " groups");
    const size_t spatial = c.x.size() - 2;
    const Attributes attributes{{"strides", std::vector<int64_t>(spatial, c.stride)},
                                {"pads", std::vector<int64_t>(2 * spatial, c.pad)},
                                {"kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end())},
                                {"group", c.group},
                                {"out_dtype", int64_t{1}}};
    const Call call{
        kOwn,
        "ConvGradWeight",
        {random_tensor(GetParam(), c.y, -1, 1, 1), random_tensor(GetParam(), c.x, -1, 1, 2)},
        attributes,
        {{DType::kF32, c.w}}};
    if (!is_taken(call)) continue;
    const auto run = [&](const RunOptions& how) {
      return run_kernel(call.domain, call.op, call.inputs, call.attributes, call.outputs, how)[0];
    };
    const Tensor wanted = run({.check_repeats = false});
    for (const int threads : {1, 3}) {
      // Sums of at most 192 products below 1.
      const RunOptions fast{.kernel = "onednn", .threads = threads, .check_repeats = false};
      const Tensor first = run(fast);
      expect_close(first, wanted, 0, 192 * 0x1p-24);
      EXPECT_TRUE(identical(run(fast), first));
    }
  }
}

/// The same numbers, with a page behind them that nobody may read.
Tensor before_a_wall(const Tensor& tensor) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t bytes = tensor.byte_size(), room = (bytes + page - 1) / page * page;
  void* memory =
      ::mmap(nullptr, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* base = static_cast<std::byte*>(memory);
  const auto unmap = [=](const std::byte*) { ::munmap(memory, room + page); };
  ::mprotect(base + room, page, PROT_NONE);
  std::memcpy(base + room - bytes, tensor.bytes(), bytes);
  return {tensor.dtype(), tensor.shape(),
          std::shared_ptr<const std::byte>(base + room - bytes, unmap), bytes};
}

/// The library would read x with that stride, far behind its end.
TEST_P(OneDnn, AStrideThatLeavesTheInputReadsNothingBehindIt) {
  const Attributes conv{{"strides", std::vector<int64_t>{1000}},
                        {"kernel_shape", std::vector<int64_t>{1}},
                        {"out_dtype", int64_t{1}}};
  const Shape x{1, 8, 3}, w{16, 8, 1}, y{1, 16, 1};
  const auto random = [](const Shape& shape, uint32_t seed) {
    return before_a_wall(random_tensor(GetParam(), shape, -1, 1, seed));
  };
  const Tensor shape = Tensor::of<int64_t>({3}, std::span<const int64_t>(x));
  const Call calls[] = {
      {"", "Conv", {random(x, 1), random(w, 2)}, conv, {{GetParam(), y}}},
      {"", "ConvTranspose", {random(y, 1), random(w, 2)}, conv, {{GetParam(), {1, 8, 1}}}},
      {kOwn, "ConvGradInput", {random(y, 1), random(w, 2), shape}, conv, {{GetParam(), x}}},
      {kOwn, "ConvGradWeight", {random(y, 1), random(x, 2)}, conv, {{DType::kF32, w}}},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.op);
    if (!is_taken(call)) continue;
    const auto run = [&](const RunOptions& how) {
      return run_kernel(call.domain, call.op, call.inputs, call.attributes, call.outputs, how)[0];
    };
    expect_close(run({.kernel = "onednn"}), run({}), 2 * unit_roundoff(GetParam()), 0x1p-20);
  }
}

TEST_P(OneDnn, IsChosenBeforeTheReference) {
  const bool native =
      GetParam() == DType::kF32 || (GetParam() == DType::kBF16 && cpu::cpu_has_native_bf16());
  for (const Call& call : calls_in(GetParam())) {
    std::string_view wanted = native ? "onednn.matmul" : "onednn.matmul_via_f32";
    if (call.op != "MatMul" && call.op != "Gemm") continue;
    KernelCall kernel_call{.domain = call.domain, .op = call.op, .attributes = &call.attributes};
    for (const Tensor& input : call.inputs)
      kernel_call.inputs.push_back({input.dtype(), input.shape(), {}, nullptr});
    for (const OutputSpec& output : call.outputs)
      kernel_call.outputs.push_back({output.dtype, output.shape, {}, nullptr});
    const KernelChoice choice = cpu_kernels().choose(kernel_call);
    if (choice.row->name == "tiled.matmul") continue;  // where that is faster
    EXPECT_EQ(choice.row->name, wanted);
    // fast.matmul_f64_sums and tiled.matmul stand before it.
    EXPECT_EQ(choice.refusals.size(), native ? 2u : 3u);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OneDnn, testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(short_name(test.param)); });

TEST(OneDnnRefusals, AreAllGiven) {
  for (const Call& call : calls_in(DType::kF64)) {
    std::vector<OutputSpec> outputs = call.outputs;
    outputs[0].dtype = DType::kF64;
    const std::string reasons =
        refusals(call.domain, call.op, call.inputs, call.attributes, outputs, {.kernel = "onednn"});
    EXPECT_NE(reasons.find("oneDNN does not compute in f64"), std::string::npos)
        << call.op << ": " << reasons;
    EXPECT_NE(reasons.find("f64 is no 16-bit float"), std::string::npos)
        << call.op << ": " << reasons;
  }
}

}  // namespace
}  // namespace halfnote::test
