// Multiply-adds a nanosecond of every kernel row that takes a convolution or one of its gradients,
// plain and in channel blocks: the figures of bench/results/2026-11-23-depthwise.md and of the cost
// tables in kernels/cpu. The rows take turns, and the smallest processor time of some rounds
// counts, so that a busy machine does little harm. One thread.
//
//   cmake --build build/release --target halfnote-bench-convs
//   OMP_WAIT_POLICY=passive build/release/bin/halfnote-bench-convs [TEXT]
//
// With TEXT: the lines that begin with it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "kernels/layout.h"

namespace {

using namespace halfnote;

constexpr int kRounds = 7;
constexpr double kLeastSeconds = 0.003;

struct Conv {
  const char* group;
  Shape x, w;
  int64_t groups = 1, stride = 1, pad = 0;
  bool transpose = false;
};

const Conv kConvs[] = {
    // Depthwise: ConvNeXt, EfficientNet and MobileNet on small images and on those of ImageNet.
    {"depthwise", {8, 32, 16, 16}, {32, 1, 7, 7}, 32, 1, 3},
    {"depthwise", {8, 64, 8, 8}, {64, 1, 7, 7}, 64, 1, 3},
    {"depthwise", {8, 128, 4, 4}, {128, 1, 7, 7}, 128, 1, 3},
    {"depthwise", {8, 96, 56, 56}, {96, 1, 7, 7}, 96, 1, 3},
    {"depthwise", {8, 32, 32, 32}, {32, 1, 3, 3}, 32, 1, 1},
    {"depthwise", {8, 96, 32, 32}, {96, 1, 3, 3}, 96, 2, 1},
    {"depthwise", {8, 144, 16, 16}, {144, 1, 3, 3}, 144, 1, 1},
    {"depthwise", {8, 384, 4, 4}, {384, 1, 3, 3}, 384, 1, 1},
    {"depthwise", {8, 960, 2, 2}, {960, 1, 3, 3}, 960, 1, 1},
    {"depthwise", {8, 32, 112, 112}, {32, 1, 3, 3}, 32, 1, 1},
    {"depthwise", {8, 96, 112, 112}, {96, 1, 3, 3}, 96, 2, 1},
    {"depthwise", {8, 384, 14, 14}, {384, 1, 3, 3}, 384, 1, 1},
    {"depthwise", {4, 240, 8, 8}, {240, 1, 5, 5}, 240, 1, 2},
    {"depthwise", {4, 144, 16, 16}, {144, 1, 5, 5}, 144, 2, 2},
    {"depthwise", {16, 240, 4, 4}, {240, 1, 5, 5}, 240, 1, 2},
    {"depthwise", {16, 576, 2, 2}, {576, 1, 5, 5}, 576, 1, 2},
    // Channels that fill no blocks: MobileNet v3, ShuffleNet.
    {"depthwise", {16, 72, 16, 16}, {72, 1, 3, 3}, 72, 2, 1},
    {"depthwise", {16, 88, 8, 8}, {88, 1, 3, 3}, 88, 1, 1},
    {"depthwise", {16, 24, 16, 16}, {24, 1, 3, 3}, 24, 2, 1},
    // Several filters a channel; over time, of a conformer.
    {"depthwise", {8, 64, 16, 16}, {128, 1, 3, 3}, 64, 1, 1},
    {"depthwise", {8, 96, 100}, {96, 1, 15}, 96, 1, 7},
    {"depthwise", {8, 144, 1000}, {144, 1, 31}, 144, 1, 15},
    // Groups: ResNeXt, RegNet, ShuffleNet.
    {"grouped", {8, 128, 32, 32}, {128, 4, 3, 3}, 32, 1, 1},
    {"grouped", {8, 128, 32, 32}, {128, 8, 3, 3}, 16, 1, 1},
    {"grouped", {8, 128, 32, 32}, {128, 16, 3, 3}, 8, 1, 1},
    {"grouped", {8, 128, 56, 56}, {128, 4, 3, 3}, 32, 1, 1},
    {"grouped", {8, 256, 28, 28}, {256, 8, 3, 3}, 32, 2, 1},
    {"grouped", {8, 512, 14, 14}, {512, 16, 3, 3}, 32, 1, 1},
    {"grouped", {8, 1024, 7, 7}, {1024, 32, 3, 3}, 32, 1, 1},
    {"grouped", {8, 96, 28, 28}, {96, 24, 3, 3}, 4, 1, 1},
    {"grouped", {8, 48, 28, 28}, {24, 16, 3, 3}, 3, 1, 1},
    {"grouped", {8, 120, 28, 28}, {120, 40, 1, 1}, 3, 1, 0},
    {"grouped", {8, 64, 16, 16}, {128, 2, 5, 5}, 32, 1, 2},
    {"grouped", {8, 64, 200}, {64, 4, 5}, 16, 1, 2},
    // Few channels at one end: style transfer, super-resolution, first layers, a generator's last.
    {"thin", {4, 3, 72, 72}, {16, 3, 9, 9}, 1, 1, 0},
    {"thin", {4, 16, 72, 72}, {3, 16, 9, 9}, 1, 1, 0},
    {"thin", {4, 64, 64, 64}, {3, 64, 3, 3}, 1, 1, 1},
    {"thin", {4, 64, 64, 64}, {3, 64, 7, 7}, 1, 1, 3},
    {"thin", {8, 32, 16, 16}, {1, 32, 3, 3}, 1, 1, 1},
    {"thin", {8, 32, 32, 32}, {6, 32, 3, 3}, 1, 1, 1},
    {"thin", {8, 3, 64, 64}, {16, 3, 3, 3}, 1, 2, 1},
    {"thin", {8, 3, 64, 64}, {32, 3, 3, 3}, 1, 1, 1},
    {"thin", {8, 3, 112, 112}, {64, 3, 7, 7}, 1, 2, 3},
    {"thin", {8, 3, 64, 64}, {32, 3, 4, 4}, 1, 4, 0},
    {"thin", {8, 1, 32, 32}, {64, 1, 5, 5}, 1, 1, 2},
    {"thin", {8, 32, 32, 32}, {9, 32, 3, 3}, 1, 1, 1},
    {"thin", {8, 16, 32, 32}, {16, 3, 4, 4}, 1, 2, 1, true},
    {"thin", {16, 16, 32, 32}, {16, 3, 3, 3}, 1, 2, 1, true},
    {"thin", {8, 128, 4, 4}, {128, 64, 4, 4}, 1, 2, 1, true},
    // The last stages of residual nets on images of 32 to 64 pixels, and of 224.
    {"few", {4, 1024, 2, 2}, {2048, 1024, 1, 1}, 1, 1, 0},
    {"few", {4, 1024, 4, 4}, {2048, 1024, 1, 1}, 1, 2, 0},
    {"few", {4, 1024, 4, 4}, {1024, 1024, 1, 1}, 1, 1, 0},
    {"few", {8, 1024, 4, 4}, {512, 1024, 1, 1}, 1, 1, 0},
    {"few", {8, 256, 4, 4}, {1024, 256, 1, 1}, 1, 1, 0},
    {"few", {4, 256, 4, 4}, {64, 256, 1, 1}, 1, 1, 0},
    {"few", {8, 512, 2, 2}, {512, 512, 3, 3}, 1, 1, 1},
    {"few", {8, 256, 4, 4}, {512, 256, 3, 3}, 1, 2, 1},
    {"few", {8, 256, 4, 4}, {256, 256, 3, 3}, 1, 1, 1},
    {"few", {2, 128, 4, 4}, {128, 128, 3, 3}, 1, 1, 1},
    {"few", {2, 64, 4, 4}, {64, 64, 3, 3}, 1, 1, 1},
    {"few", {1, 512, 7, 7}, {512, 512, 3, 3}, 1, 1, 1},
    {"few", {16, 320, 1, 1}, {1280, 320, 1, 1}, 1, 1, 0},
    // Over time.
    {"line", {16, 64, 64}, {64, 64, 3}, 1, 1, 0},
    {"line", {16, 64, 64}, {64, 64, 5}, 1, 1, 0},
    {"line", {4, 32, 512}, {32, 32, 2}, 1, 1, 0},
    {"line", {4, 1, 512}, {32, 1, 1}, 1, 1, 0},
    {"line", {8, 80, 200}, {192, 80, 3}, 1, 2, 1},
};

Shape result_shape(const Conv& c) {
  Shape y{c.x[0], c.transpose ? c.w[1] * c.groups : c.w[0]};
  for (size_t d = 2; d < c.x.size(); ++d) {
    y.push_back(c.transpose ? (c.x[d] - 1) * c.stride + c.w[d] - 2 * c.pad
                            : (c.x[d] + 2 * c.pad - c.w[d]) / c.stride + 1);
  }
  return y;
}

double seconds_of_thread() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Tensor filled(DType type, const Shape& shape) {
  std::vector<float> values(static_cast<size_t>(element_count(shape)));
  std::minstd_rand random(1);
  for (float& value : values) value = static_cast<float>(random() % 17) / 8 - 1;
  return Tensor::of<float>(shape, std::span<const float>(values)).cast_to(type);
}

struct Candidate {
  std::string name;
  std::unique_ptr<Kernel> kernel;
  std::vector<std::byte> workspace;
  double seconds = 1e9;

  std::byte* room() {
    const auto address = reinterpret_cast<uintptr_t>(workspace.data());
    return workspace.data() + (64 - address % 64) % 64;
  }
};

void add(std::vector<Candidate>& candidates, std::string name, Prepared prepared) {
  if (!prepared) return;
  std::vector<std::byte> workspace(prepared.kernel->workspace_bytes() + 64);
  candidates.push_back({std::move(name), std::move(prepared.kernel), std::move(workspace)});
}

/// Whatever lies in the buffers serves as blocked or plain alike.
KernelCall in_blocks(KernelCall call, const BlockedOperands& blocked) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if ((blocked.inputs >> i & 1) != 0) call.inputs[i].layout = channel_blocks();
  }
  if ((blocked.outputs & 1) != 0) call.outputs[0].layout = channel_blocks();
  return call;
}

std::vector<Candidate> candidates_of(const KernelCall& call) {
  std::vector<Candidate> found;
  for (const KernelRow* row : cpu_kernels().rows_of(call.domain, call.op)) {
    if (row->name == "reference") continue;
    Prepared prepared = row->prepare(call);
    if (!prepared) continue;
    add(found, std::string(row->name), std::move(prepared));
    for (const BlockedRow* blocked : blocked_rows_of(*row)) {
      const BlockedOperands operands = blocked->operands(call);
      if (!operands.any()) continue;
      add(found, std::string(blocked->row.name), blocked->row.prepare(in_blocks(call, operands)));
    }
  }
  return found;
}

void measure(const KernelCall& call, const std::string& title, double work) {
  std::vector<Tensor> tensors;
  std::vector<const std::byte*> from;
  for (const Operand& input : call.inputs) tensors.push_back(filled(input.dtype, input.shape));
  for (const Tensor& tensor : tensors) from.push_back(tensor.bytes());
  Tensor result(call.outputs[0].dtype, call.outputs[0].shape);
  const std::vector<std::byte*> to{result.mutable_bytes()};
  std::vector<Candidate> candidates = candidates_of(call);
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      const KernelBuffers buffers{from, to, candidate.room()};
      candidate.kernel->run(buffers);
      int runs = 0;
      const double start = seconds_of_thread();
      double passed = 0;
      do {
        candidate.kernel->run(buffers);
        ++runs;
        passed = seconds_of_thread() - start;
      } while (passed < kLeastSeconds);
      candidate.seconds = std::min(candidate.seconds, passed / runs);
    }
  }
  fmt::print("{:<78}", title);
  for (const Candidate& candidate : candidates) {
    fmt::print("  {} {:.1f} ({:.3f} ms)", candidate.name, work / candidate.seconds * 1e-9,
               candidate.seconds * 1e3);
  }
  fmt::print("\n");
}

void measure(const Conv& c, DType type, std::string_view text) {
  const Shape y = result_shape(c);
  const auto rank = c.x.size() - 2;
  const Attributes attributes{{"strides", std::vector<int64_t>(rank, c.stride)},
                              {"pads", std::vector<int64_t>(2 * rank, c.pad)},
                              {"group", c.groups},
                              {"out_dtype", static_cast<int64_t>(DType::kF32)}};
  const Operand x{type, c.x, {}, nullptr}, w{type, c.w, {}, nullptr}, dy{type, y, {}, nullptr};
  const Operand dw{DType::kF32, c.w, {}, nullptr};
  const double work = static_cast<double>(element_count(c.transpose ? c.x : y)) *
                      static_cast<double>(element_count(c.w) / c.w[0]);
  const auto run = [&](std::string_view domain, std::string_view op, std::vector<Operand> inputs,
                       const Operand& output) {
    std::string title =
        fmt::format("{} {} {} {} of {}, {} groups, stride {}", c.group, op, short_name(type),
                    to_string(c.w), to_string(c.x), c.groups, c.stride);
    if (!title.starts_with(text)) return;
    std::vector<Tensor> shapes;
    shapes.reserve(1);
    if (op == "ConvGradInput") {
      shapes.push_back(Tensor::of<int64_t>({static_cast<int64_t>(output.shape.size())},
                                           std::span<const int64_t>(output.shape)));
      inputs.push_back({DType::kI64, shapes[0].shape(), {}, shapes.data()});
    }
    KernelCall call{.domain = domain, .op = op, .attributes = &attributes};
    call.inputs = std::move(inputs);
    call.outputs = {output};
    measure(call, title, work);
  };
  if (c.transpose) return run("", "ConvTranspose", {x, w}, dy);
  run("", "Conv", {x, w}, dy);
  run("ai.halfnote", "ConvGradInput", {dy, w}, x);
  run("ai.halfnote", "ConvGradWeight", {dy, x}, dw);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view text = argc > 1 ? argv[1] : "";
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Conv& conv : kConvs) measure(conv, type, text);
  }
  return 0;
}
