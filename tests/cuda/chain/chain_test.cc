// Generated kernels: the very text, compiled against the emulation, in three orders of the threads
// against the CPU's reference; the same through the host's loops, which whole models use; and what
// the text looks like.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/libraries/chains.h"
#include "tests/cuda/chain/compiled.h"
#include "tests/cuda/chain/table.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

using chain::Access;

Call call_of(const test::ChainCase& one) {
  Call call{kOwn, "Pointwise", {}, one.attributes, {}};
  uint32_t seed = 1;
  for (const auto& [dtype, shape] : one.inputs) {
    if (dtype == DType::kI64) {
      call.inputs.push_back(integers({(int64_t{3} << 40) + ++seed}, shape));
      continue;
    }
    call.inputs.push_back(
        dtype == DType::kBool
            ? random(DType::kF32, shape, 0, 2, seed).cast_to(DType::kI32).cast_to(dtype)
            : random(dtype, shape, -3, 3, seed));
    ++seed;
  }
  for (const Operand& output : one.call().outputs)
    call.outputs.push_back({output.dtype, output.shape});
  return call;
}

/// The compiled texts run for the time of a test.
class Compiled {
 public:
  Compiled() { use_compiled_chains({kCompiledChains, kCompiledChainCount}); }
  ~Compiled() { use_compiled_chains({}); }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
};

TEST(Chain, GeneratedKernelsGiveWhatTheReferenceGives) {
  const std::vector<test::ChainCase> cases = test::chain_cases();
  for (const auto& [first, source] : test::chain_texts(cases)) {
    EXPECT_EQ(std::ranges::count(std::span(kCompiledChains, kCompiledChainCount), source.name,
                                 &CompiledChain::name),
              1)
        << first->title;
  }
  const Compiled compiled;
  for (const test::ChainCase& one : cases) {
    SCOPED_TRACE(one.title + " " + to_string(one.shape));
    check(call_of(one));
  }
}

TEST(Chain, TheLoopsOfTheHostGiveTheSame) {
  for (const test::ChainCase& one : test::chain_cases()) {
    SCOPED_TRACE(one.title + " " + to_string(one.shape));
    check(call_of(one));
  }
}

/// How a chain reads its inputs, as the plan says.
chain::Chain planned(const test::ChainCase& one) {
  chain::Plan plan;
  EXPECT_EQ(chain::plan_chain(one.call(), plan), "");
  return plan.chain;
}

TEST(Chain, InputsAreReadAsTheyBroadcast) {
  struct Wanted {
    std::vector<Access> access;
    bool even;
  };
  const std::map<std::string, Wanted> wanted = {
      {"a row, odd", {{Access::kWhole, Access::kAlong}, false}},
      {"a row", {{Access::kWhole, Access::kAlong}, true}},
      {"a column, odd", {{Access::kWhole, Access::kStay}, false}},
      {"a column", {{Access::kWhole, Access::kStay}, true}},
      {"a scalar", {{Access::kWhole, Access::kSingle}, true}},
      {"both", {{Access::kAlong, Access::kStay}, true}},
  };
  size_t seen = 0;
  for (const test::ChainCase& one : test::chain_cases()) {
    for (const auto& [title, how] : wanted) {
      if (!one.title.ends_with(" with " + title)) continue;
      const chain::Chain chain = planned(one);
      std::vector<Access> access;
      for (const chain::Input& input : chain.inputs) access.push_back(input.access);
      EXPECT_EQ(access, how.access) << one.title;
      EXPECT_EQ(chain.even, how.even) << one.title;
      EXPECT_EQ(chain::width(chain), one.inputs[0].first == DType::kF32 ? 4 : 8) << one.title;
      ++seen;
    }
  }
  EXPECT_EQ(seen, 3 * wanted.size());
}

TEST(Chain, SizesAreNoPartOfTheText) {
  std::map<std::string, std::string> name_of;
  for (const test::ChainCase& one : test::chain_cases()) {
    if (!one.all_ops) continue;
    const std::string name = chain::source_of(planned(one)).name;
    EXPECT_EQ(name_of.emplace(one.title, name).first->second, name) << one.title;
  }
}

/// Runs t0 = Relu(x0) in f32 over `count` elements, `offset` bytes behind an aligned address.
std::vector<float> relu_at(size_t offset, int64_t count) {
  Attributes attributes;
  attributes.set("program", "t0:f32 = Relu(x0); out t0");
  KernelCall call;
  call.domain = kOwn;
  call.op = "Pointwise";
  call.attributes = &attributes;
  call.inputs = call.outputs = {{DType::kF32, {count}, {}, nullptr}};
  EmulatedDevice device;
  const KernelChoice choice = device.kernels().choose(call);
  const auto stream = device.make_stream();
  const auto memory = device.allocate(4096);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    numbers[static_cast<size_t>(i)] = static_cast<float>(i % 2 == 0 ? i : -i);
  std::memcpy(memory.get() + offset, numbers.data(), numbers.size() * sizeof(float));
  DeviceBuffers buffers;
  const std::byte* from[] = {memory.get() + offset};
  std::byte* to[] = {memory.get() + offset};
  buffers.inputs = from;
  buffers.outputs = to;
  buffers.stream = stream.get();
  choice.kernel->run(buffers);
  stream->synchronise();
  std::memcpy(numbers.data(), memory.get() + offset, numbers.size() * sizeof(float));
  return numbers;
}

TEST(Chain, OddAddressesAreReadOneByOne) {
  const std::vector<float> aligned = relu_at(0, 101);
  EXPECT_EQ(aligned[100], 100.0f);
  EXPECT_EQ(aligned[99], 0.0f);
  EXPECT_EQ(relu_at(4, 101), aligned);
  EXPECT_THROW(relu_at(2, 101), Error) << "no address of an f32";
}

TEST(Chain, IllegalLaunchesAreNamed) {
  chain::Chain chain;
  const DType types[] = {DType::kF16};
  chain.program = parse_pointwise("t0:f16 = Neg(x0); out t0", types, types);
  chain.inputs = {{DType::kF16, Access::kWhole}};
  chain.outputs = {DType::kF16};
  alignas(16) Half memory[64];
  chain::Arguments a;
  a.in[0] = a.out[0] = memory;
  a.count = 40;
  a.groups = 5;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "");
  a.groups = 6;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "groups beyond the last element");
  a.groups = 5;
  a.in[0] = memory + 4;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "an input that is not aligned");
  a.groups = 0;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "");
  a.out[0] = nullptr;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "an output that is not aligned");
  a.out[0] = memory;
  chain.program = parse_pointwise("t0:f16 = ReduceSum[0, 1](x0); out t0", types, types);
  EXPECT_EQ(libraries::illegal_launch(chain, a), "partial sums without a place");
  alignas(16) double partials[8];
  a.partials = partials;
  a.groups = 5;
  a.columns = 4;
  a.rows = 10;
  a.in[0] = memory;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "a group beyond the last column");
  chain.program = parse_pointwise("t0:f16 = ReduceSum[-1, 1](x0); out t0", types, types);
  EXPECT_EQ(libraries::illegal_launch(chain, a), "rows that are not shared out");
  a.blocks = 1;
  a.piece = 8;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "") << "groups may go beyond the end of a row";
  a.partials = nullptr;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "") << "one piece has no partial sum";
  a.blocks = 2;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "partial sums without a place");
  a.row_bits = 6;
  a.partials = partials;
  EXPECT_EQ(libraries::illegal_launch(chain, a), "rows that are not shared out");
}

/// The means along `rows` rows of x + y, all operands `offset` bytes behind an aligned address.
Tensor means_at(size_t offset, int64_t rows, int64_t columns) {
  Attributes attributes;
  attributes.set("program", "t0:f32 = Add(x0, x1); t1:f32 = ReduceMean[-1, 1](t0); out t1");
  const Call call{
      kOwn,
      "Pointwise",
      {random(DType::kF32, {rows, columns}, -3, 3, 1), random(DType::kF32, {columns}, -3, 3, 2)},
      attributes,
      {{DType::kF32, {rows}}}};
  const KernelCall asked = kernel_call(call);
  EmulatedDevice device;
  const KernelChoice choice = device.kernels().choose(asked);
  return test::run_kernel(device, *choice.kernel, asked.outputs, call.inputs,
                          {.offset = offset})[0];
}

TEST(Chain, SumsAlongRowsHaveTheSameBitsAtOddAddresses) {
  const Compiled compiled;
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 2100}, {2, 9001}, {65, 8}})
    EXPECT_TRUE(identical(means_at(4, rows, columns), means_at(0, rows, columns))) << columns;
}

/// How rows are shared out: {threads of a row, pieces of it}.
std::pair<int, int64_t> shares(const Shape& shape) {
  const DType types[] = {DType::kF32};
  Attributes attributes;
  attributes.set("program", "t0:f32 = ReduceSum[-1, 1](x0); out t0");
  KernelCall call;
  call.attributes = &attributes;
  call.inputs = {{types[0], shape, {}, nullptr}};
  call.outputs = {{types[0], Shape(shape.begin(), shape.end() - 1), {}, nullptr}};
  chain::Plan plan;
  EXPECT_EQ(chain::plan_chain(call, plan), "");
  return {1 << plan.arguments.row_bits, plan.arguments.blocks};
}

TEST(Chain, RowsAreSharedOutByTheirLength) {
  using Shares = std::pair<int, int64_t>;
  EXPECT_EQ(shares({100, 3}), Shares(1, 1));
  EXPECT_EQ(shares({100, 20}), Shares(8, 1));
  EXPECT_EQ(shares({100, 768}), Shares(32, 1));
  EXPECT_EQ(shares({100, 1024}), Shares(256, 1)) << "too few warps";
  EXPECT_EQ(shares({8192, 1024}), Shares(32, 1));
  EXPECT_EQ(shares({8192, 50257}), Shares(256, 1));
  EXPECT_EQ(shares({8, 100000}), Shares(256, 24));
  EXPECT_EQ(shares({1, int64_t{1} << 24}), Shares(256, 512));
  EXPECT_EQ(shares({5, 0}), Shares(1, 0));
}

TEST(Chain, RefusesWhatAKernelCannotTake) {
  const auto refusal = [](const char* program, std::vector<Operand> inputs, Operand output) {
    Attributes attributes;
    attributes.set("program", program);
    KernelCall call;
    call.attributes = &attributes;
    call.inputs = std::move(inputs);
    call.outputs = {std::move(output)};
    chain::Plan plan;
    return chain::plan_chain(call, plan);
  };
  const Operand x{DType::kF32, {4}, {}, nullptr}, wide{DType::kF64, {4}, {}, nullptr};
  EXPECT_EQ(refusal("t0:f32 = Neg(x0); out t0", {x}, x), "");
  EXPECT_EQ(refusal("t0:f32 = Neg(x0); out t0", {}, x), "an operand is missing");
  EXPECT_EQ(refusal("t0:f32 = Neg(x0); out t0", {Operand{}}, x), "an operand is missing");
  EXPECT_EQ(refusal("t0:f64 = Neg(x0); out t0", {wide}, wide), "elements of type f64");
  EXPECT_EQ(refusal("t0:f32 = Neg(x0); out t0", std::vector<Operand>(13, x), x),
            "more than 12 operands");
  EXPECT_THROW(refusal("t0:f32 = Neg(x1); out t0", {x}, x), Error);
  EXPECT_THROW(refusal("t0:f32 = Neg(x0); out t0", {{DType::kF32, {3}, {}, nullptr}}, x), Error);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
