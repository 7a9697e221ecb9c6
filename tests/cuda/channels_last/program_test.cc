// Which values of a step lie channels last on the device, what is still turned around, and that the
// results are those of the plain layout.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/ir/text.h"
#include "passes/compile.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/device_run.h"
#include "runtime/core/layout.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/call.h"
#include "tests/environment.h"

namespace halfnote::test {
namespace {

/// The device under test, on which all is plain if so wished.
class LaidDevice final : public Device {
 public:
  explicit LaidDevice(bool plain)
      : device_(open_device(tested_device())), regions_(device_->regions()) {
    if (plain) regions_.rows = {};
  }
  std::string_view name() const override { return device_->name(); }
  std::string description() const override { return device_->description(); }
  std::string hardware() const override { return device_->hardware(); }
  std::string libraries() const override { return device_->libraries(); }
  const KernelTable& kernels() const override { return device_->kernels(); }
  const RegionLayout& regions() const override { return regions_; }
  std::unique_ptr<Stream> make_stream() override { return device_->make_stream(); }
  std::unique_ptr<DeviceEvent> make_event(EventKind kind) override {
    return device_->make_event(kind);
  }
  const DeviceCounters& counters() const override { return device_->counters(); }

 protected:
  std::byte* acquire(size_t bytes, MemoryKind kind) override {
    return device_->allocate(bytes, kind).release();
  }
  void release(std::byte* memory, MemoryKind kind) override {
    Device::Free{device_.get(), kind}(memory);
  }

 private:
  std::unique_ptr<Device> device_;
  RegionLayout regions_;
};

/// The first training step of a model, or a graph, planned and captured.
class Laid {
 public:
  Laid(const Model& model, bool plain, int64_t batch = 4) : model_(model) {
    context_.device = std::make_unique<LaidDevice>(plain);
    context_.stream = context_.device->make_stream();
    context_.feeding = context_.device->make_stream();
    std::map<std::string, int64_t> dims;
    const Graph& graph = model_.training.front().graph;
    for (ValueId input : graph.inputs()) {
      for (const Dim& dim : *graph.value(input).type.shape) {
        if (!dim.known()) dims[dim.symbol.str()] = batch;
      }
    }
    graph_ = make_device_ready(graph, dims, {.for_cpu = false});
    store_ = StateStore(model_);
    PlanOptions options;
    options.keep_types = true;
    options.device = context_.device.get();
    program_ = plan(graph_, store_, options);
    const uint64_t before = context_.device->counters().launches;
    run_.emplace(context_, program_, store_);
    launches_ = (context_.device->counters().launches - before) / DeviceRun::kMostRuns;
  }

  const Program& program() const { return program_; }
  LayoutCounts counts() const { return count_layouts(program_); }
  uint64_t launches() const { return launches_; }
  /// The bytes of all outputs after one run.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs) {
    run_->wait(run_->start(inputs));
    std::vector<Tensor> results;
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const ProgramOperand& output = program_.outputs[i];
      results.emplace_back(output.dtype, output.shape);
      std::memcpy(results[i].mutable_bytes(), run_->output(i), output.bytes);
    }
    return results;
  }
  /// Numbers for the inputs; labels are 0.
  std::vector<Tensor> inputs() const {
    std::vector<Tensor> all;
    for (const ProgramOperand& input : program_.inputs) {
      const auto seed = static_cast<uint32_t>(all.size() + 1);
      all.push_back(is_float(input.dtype)
                        ? cuda_emulated::random(input.dtype, input.shape, -1, 1, seed)
                        : Tensor(input.dtype, input.shape));
    }
    return all;
  }
  /// What the kernel of a step launches.
  uint64_t launches_of(const ProgramStep& step) {
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (const BufferRef& ref : step.inputs) from.push_back(run_->address(ref));
    for (const BufferRef& ref : step.outputs) to.push_back(run_->address(ref));
    DeviceBuffers buffers;
    buffers.inputs = from;
    buffers.outputs = to;
    buffers.workspace = run_->address(step.workspace);
    buffers.stream = context_.stream.get();
    const uint64_t before = context_.device->counters().launches;
    step.kernel->run(buffers);
    context_.stream->synchronise();
    return context_.device->counters().launches - before;
  }

 private:
  Model model_;
  DeviceContext context_;
  Graph graph_;
  StateStore store_;
  Program program_;
  std::optional<DeviceRun> run_;
  uint64_t launches_ = 0;
};

Model fixture(const std::string& name, DType precision) {
  const auto folder = std::filesystem::path(source_folder()) / "tests/fixtures/models" / name;
  std::ifstream file(folder / "case.json");
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {nlohmann::json::parse(file).at("loss_output").get<std::string>()};
  return compile_file(folder / "model.onnx", options).model;
}

/// A stem, and a block whose shortcut is the identity: (N, 3, 8, 8) to 5 classes.
Model residual_model(DType precision) {
  std::string text = R"(<ir_version: 10, opset_import: ["" : 23]>
residual (float[N,3,8,8] x) => (float[N,5] logits) <)";
  uint32_t seed = 1;
  const auto filled = [&](const std::string& name, const Shape& shape, double low, double high) {
    const Tensor values = cuda_emulated::random(DType::kF32, shape, low, high, ++seed);
    text += (seed > 2 ? ", float[" : "float[");
    for (size_t d = 0; d < shape.size(); ++d) text += (d > 0 ? "," : "") + std::to_string(shape[d]);
    text += "] " + name + " = {";
    for (int64_t i = 0; i < values.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(values.at_as_double(i));
    text += "}";
  };
  filled("w0", {16, 3, 3, 3}, -0.4, 0.4);
  filled("w1", {8, 16, 1, 1}, -0.5, 0.5);
  filled("w2", {16, 8, 3, 3}, -0.3, 0.3);
  filled("fc", {16, 5}, -0.5, 0.5);
  for (const auto& [name, channels] :
       {std::pair<std::string, int64_t>{"n0", 16}, {"n1", 8}, {"n2", 16}}) {
    filled(name + "_scale", {channels}, 0.8, 1.2);
    filled(name + "_bias", {channels}, -0.1, 0.1);
    filled(name + "_mean", {channels}, 0, 0.1);
    filled(name + "_var", {channels}, 0.9, 1.1);
  }
  text += R"(> {
  a0 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0)
  b0, m0, v0 = BatchNormalization <training_mode = 1> (a0, n0_scale, n0_bias, n0_mean, n0_var)
  r0 = Relu (b0)
  p0 = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (r0)
  a1 = Conv <kernel_shape = [1, 1]> (p0, w1)
  b1, m1, v1 = BatchNormalization <training_mode = 1> (a1, n1_scale, n1_bias, n1_mean, n1_var)
  r1 = Relu (b1)
  a2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, w2)
  b2, m2, v2 = BatchNormalization <training_mode = 1> (a2, n2_scale, n2_bias, n2_mean, n2_var)
  s = Add (b2, p0)
  r2 = Relu (s)
  g = GlobalAveragePool (r2)
  f = Flatten (g)
  logits = Gemm (f, fc)
})";
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = "sgd";
  options.train.optimizer.lr = 0.05f;
  return compile_model(parse_model(text, "residual.onnxtxt"), options).model;
}

bool is_convolution(const ProgramStep& step) {
  return step.op == "Conv" || step.op.starts_with("ai.halfnote.ConvGrad");
}

/// Every convolution reads and writes its operands where they lie: what it still turns is the
/// gradient of a weight. A bias is added in f32, on the way to 16 bits.
void expect_operands_stay(Laid& laid) {
  int convolutions = 0;
  for (const ProgramStep& step : laid.program().steps) {
    if (!is_convolution(step)) continue;
    ++convolutions;
    EXPECT_EQ(step.row->name, "channels_last.conv") << step.node;
    const bool of_weight = step.op == "ai.halfnote.ConvGradWeight";
    const Shape& result = step.output_types[0].shape;
    const uint64_t turned = of_weight && result[2] * result[3] > 1 ? 1 : 0;
    const uint64_t biased = step.op == "Conv" && step.input_types.size() > 2 ? 1 : 0;
    EXPECT_LE(laid.launches_of(step), 1 + turned + biased) << step.op << " " << step.node;
  }
  EXPECT_GT(convolutions, 0);
}

std::vector<std::string> reordered(const Program& program) {
  std::vector<std::string> values;
  for (const ProgramStep& step : program.steps) {
    if (step.op == "Reorder") values.push_back(step.node);
  }
  return values;
}

TEST(ChannelsLastProgram, TheCifarCnnIsTurnedAtItsBordersOnly) {
  if (tested_device() == "none") GTEST_SKIP();
  // What steps beside others hold says nothing of layouts.
  const Variable wish("HALFNOTE_BRANCHES", "never");
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    Laid laid(fixture("cifar_cnn", precision), false), plain(fixture("cifar_cnn", precision), true);
    // Before Flatten, and behind its gradient; images and weights are turned as they are cast.
    EXPECT_LE(laid.counts().reorders, 2u) << ::testing::PrintToString(reordered(laid.program()));
    EXPECT_TRUE(laid.counts().channels_last);
    EXPECT_EQ(plain.counts().blocked_steps, 0u);
    EXPECT_LT(laid.launches(), plain.launches());
    EXPECT_LE(laid.program().arena_bytes, plain.program().arena_bytes);
    expect_operands_stay(laid);
  }
}

TEST(ChannelsLastProgram, AResidualBlockIsTurnedNowhere) {
  if (tested_device() == "none") GTEST_SKIP();
  Laid laid(residual_model(DType::kBF16), false), plain(residual_model(DType::kBF16), true);
  EXPECT_EQ(laid.counts().reorders, 0u) << ::testing::PrintToString(reordered(laid.program()));
  EXPECT_LT(laid.launches(), plain.launches());
  expect_operands_stay(laid);
  for (const ProgramStep& step : laid.program().steps) {
    for (const char* op : {"BatchNormalization", "MaxPool", "Relu", "GlobalAveragePool"}) {
      if (step.op.find(op) != std::string::npos) {
        EXPECT_TRUE(step.row->name.starts_with("channels_last.")) << step.op << " " << step.node;
      }
    }
  }
}

TEST(ChannelsLastProgram, InF32AllIsPlain) {
  if (tested_device() == "none") GTEST_SKIP();
  Laid laid(residual_model(DType::kF32), false);
  EXPECT_EQ(laid.counts().blocked_steps, 0u);
  EXPECT_EQ(laid.counts().reorders, 0u);
}

/// Sums of batch normalizations and biases are taken in another order: a rounding to 16 bits here
/// and there turns out otherwise.
TEST(ChannelsLastProgram, TrainsAsInThePlainLayout) {
  if (tested_device() == "none") GTEST_SKIP();
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    Laid laid(residual_model(precision), false), plain(residual_model(precision), true);
    const std::vector<Tensor> inputs = laid.inputs();
    const double rounding = precision == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    for (int step = 0; step < 3; ++step) {
      const double got = laid.run(inputs)[0].at_as_double(0);
      const double wanted = plain.run(inputs)[0].at_as_double(0);
      EXPECT_NEAR(got, wanted, rounding * wanted) << "step " << step;
    }
  }
}

/// Steps that are computed again lie as the first time.
TEST(ChannelsLastProgram, LessMemoryGivesTheSameBits) {
  if (tested_device() == "none") GTEST_SKIP();
  const Model model = residual_model(DType::kBF16);
  const std::vector<Tensor> inputs = {cuda_emulated::random(DType::kF32, {8, 3, 8, 8}, -1, 1),
                                      Tensor(DType::kI64, {8})};
  std::vector<double> losses;
  size_t most = 0;
  for (const double share : {0.0, 0.7}) {
    SessionOptions options;
    options.device = tested_device();
    options.memory.share = share;
    Session session(model, options);
    for (int step = 0; step < 3; ++step) {
      const double loss = session.step(inputs).loss;
      if (share == 0) losses.push_back(loss);
      EXPECT_EQ(loss, losses[static_cast<size_t>(step)]) << "step " << step;
    }
    const LayoutCounts counts = count_layouts(*session.program("step"));
    EXPECT_LE(counts.reorders, 4u);
    EXPECT_GT(counts.blocked_steps, 0u);
    if (share == 0) most = session.memory().arena;
    EXPECT_EQ(session.recomputation().has_value(), share > 0);
    EXPECT_LE(session.memory().arena, most);
  }
}

/// A step without an optimizer that is a graph as it stands.
Model step_of(const char* graph) {
  Model model;
  model.training.emplace_back();
  model.training[0].graph = make_device_ready(parse_graph(graph, "step"), {}, {.for_cpu = false});
  return model;
}

constexpr const char* kForward = R"(g (bfloat16[2,3,9,7] x, bfloat16[16,3,3,3] w0, bfloat16[16] b0,
    bfloat16[16,16,1,1] w1, bfloat16[40,8,3,3] w2) => (bfloat16[2,40,5,4] y) {
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w0, b0)
  b = Relu (a)
  c = Conv <kernel_shape = [1, 1]> (b, w1)
  d = Add (c, a)
  e = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d)
  y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 2> (e, w2)
})";

/// Every element is made of the same numbers in the same order.
TEST(ChannelsLastProgram, ForwardTheBitsAreThoseOfThePlainLayout) {
  if (tested_device() == "none") GTEST_SKIP();
  Laid laid(step_of(kForward), false), plain(step_of(kForward), true);
  EXPECT_GE(laid.counts().blocked_steps, 6u);
  const std::vector<Tensor> inputs = laid.inputs();
  EXPECT_TRUE(identical(laid.run(inputs)[0], plain.run(inputs)[0]));
}

constexpr const char* kProjection = R"(g (bfloat16[2,16,8,7] x, bfloat16[16,16,1,1] w,
    bfloat16[2,24,4,4] dy, bfloat16[24,16,1,1] v) => (bfloat16[2,16,8,7] y)
    <int64[4] size = {2, 16, 8, 7}> {
  e = Conv <kernel_shape = [1, 1]> (x, w)
  h = ai.halfnote.ConvGradInput <strides = [2, 2]> (dy, v, size)
  d = Add (h, e)
  y = Conv <kernel_shape = [1, 1]> (d, w)
})";

/// The pixels without a part are not copied.
TEST(ChannelsLastProgram, AProjectionsGradientIsAddedInPlace) {
  if (tested_device() == "none") GTEST_SKIP();
  Laid laid(step_of(kProjection), false), plain(step_of(kProjection), true);
  for (const Laid* one : {&laid, &plain}) {
    size_t sums = 0;
    for (const ProgramStep& step : one->program().steps) {
      if (step.op.find("AddStrided") == std::string::npos) continue;
      ++sums;
      EXPECT_EQ(step.inputs[0].offset, step.outputs[0].offset);
    }
    EXPECT_EQ(sums, 1u);
  }
  const std::vector<Tensor> inputs = laid.inputs();
  EXPECT_TRUE(identical(laid.run(inputs)[0], plain.run(inputs)[0]));
}

/// Where only some kernels are allowed, all stays plain.
TEST(ChannelsLastProgram, ChosenKernelsMeanPlain) {
  if (tested_device() == "none") GTEST_SKIP();
  const Model model = step_of(kForward);
  const StateStore store(model);
  LaidDevice device(false);
  PlanOptions options;
  options.device = &device;
  options.kernels = "own";
  const LayoutCounts counts = count_layouts(plan(model.training[0].graph, store, options));
  EXPECT_EQ(counts.blocked_steps, 0u);
  EXPECT_EQ(counts.reorders, 0u);
}

}  // namespace
}  // namespace halfnote::test
