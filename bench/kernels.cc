// Memory-bound kernels, each candidate row on the same operands: GB/s of reads and writes.
//
//   halfnote-bench-kernels [threads] [op]
//
// Best of several runs, each at least 20 ms; with one thread in CPU time, which a busy machine does
// not lengthen. Rows that refuse a call are left out.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "base/tensor.h"
#include "kernels/kernel.h"

namespace halfnote {
namespace {

/// Milliseconds of this thread's CPU time, or of the clock.
double now(int threads) {
  if (threads == 1) return static_cast<double>(std::clock()) * 1e3 / CLOCKS_PER_SEC;
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(time).count();
}

struct Case {
  std::string_view domain, op;
  std::vector<std::pair<DType, Shape>> inputs, outputs;
  Attributes attributes = {};
  std::vector<int64_t> numbers = {};  // of an input of i64, which is then known beforehand
};

constexpr std::string_view kOwn = "ai.halfnote";

/// Param, grad, two moments, lr, step, commit.
std::vector<std::pair<DType, Shape>> adam_inputs(const Shape& weight) {
  const DType f32 = DType::kF32;
  return {{f32, weight}, {f32, weight},     {f32, weight},     {f32, weight},
          {f32, {}},     {DType::kI64, {}}, {DType::kBool, {}}};
}

/// Param, grad, means of rows and columns (of a vector: the moment, and none), lr, step, commit.
std::vector<std::pair<DType, Shape>> adafactor_inputs(const Shape& weight) {
  const DType f32 = DType::kF32;
  Shape rows = weight, columns = weight;
  if (weight.size() > 1) {
    rows.pop_back();
    columns.erase(columns.end() - 2);
  }
  const DType second = weight.size() > 1 ? f32 : DType::kUndefined;
  return {{f32, weight}, {f32, weight},     {f32, rows},       {second, columns},
          {f32, {}},     {DType::kI64, {}}, {DType::kBool, {}}};
}

/// Groups of a U-Net, in its large and in its small planes.
std::vector<Case> group_cases(DType t) {
  const DType f32 = DType::kF32;
  const Shape planes{16, 128, 32, 32}, small{16, 512, 4, 4};
  const Attributes groups{{"num_groups", int64_t{32}}};
  return {
      {"", "GroupNormalization", {{t, planes}, {t, {128}}, {t, {128}}}, {{t, planes}}, groups},
      {"", "GroupNormalization", {{t, small}, {t, {512}}, {t, {512}}}, {{t, small}}, groups},
      {"", "InstanceNormalization", {{t, planes}, {t, {128}}, {t, {128}}}, {{t, planes}}},
      {kOwn,
       "GroupNormalizationGrad",
       {{t, planes}, {t, planes}, {t, {128}}},
       {{t, planes}, {f32, {128}}, {f32, {128}}},
       groups},
      {kOwn,
       "GroupNormalizationGrad",
       {{t, small}, {t, small}, {t, {512}}},
       {{t, small}, {f32, {512}}, {f32, {512}}},
       groups},
  };
}

/// Weights of a few million elements and of a few hundred, and what is asked of their gradients.
std::vector<Case> update_cases(DType t) {
  const DType f32 = DType::kF32;
  const Shape weight{3072, 768}, one{};
  return {
      {kOwn, "AdamW", adam_inputs(weight), {{f32, weight}, {f32, weight}, {f32, weight}}},
      {kOwn, "Lamb", adam_inputs(weight), {{f32, weight}, {f32, weight}, {f32, weight}}},
      {kOwn, "Lamb", adam_inputs({500}), {{f32, {500}}, {f32, {500}}, {f32, {500}}}},
      {kOwn, "Adafactor", adafactor_inputs(weight), {{f32, weight}, {f32, {3072}}, {f32, {768}}}},
      {kOwn,
       "Adafactor",
       adafactor_inputs({512, 512, 3, 3}),
       {{f32, {512, 512, 3, 3}}, {f32, {512, 512, 3}}, {f32, {512, 512, 3}}}},
      {kOwn, "Adafactor", adafactor_inputs({500}), {{f32, {500}}, {f32, {500}}}},
      {kOwn, "AllFinite", {{t, weight}}, {{DType::kBool, one}}},
      {kOwn, "GlobalNorm", {{t, weight}}, {{f32, one}}},
  };
}

Case pool_case(std::string_view op, DType t, const Shape& x, int64_t kernel, int64_t stride,
               int64_t pad) {
  const size_t dims = x.size() - 2;
  Shape y = x;
  for (size_t d = 2; d < x.size(); ++d) y[d] = (x[d] + 2 * pad - kernel) / stride + 1;
  const Attributes attributes{{"kernel_shape", std::vector<int64_t>(dims, kernel)},
                              {"strides", std::vector<int64_t>(dims, stride)},
                              {"pads", std::vector<int64_t>(2 * dims, pad)}};
  if (op == "MaxPool" || op == "AveragePool" || op == "LpPool")
    return {"", op, {{t, x}}, {{t, y}}, attributes};
  if (op == "MaxPoolGrad") return {kOwn, op, {{t, y}, {t, x}}, {{t, x}}, attributes};
  const DType i64 = DType::kI64;
  return {kOwn, op, {{t, y}, {i64, {static_cast<int64_t>(x.size())}}}, {{t, x}}, attributes};
}

/// The pools of SqueezeNet, ResNet, SPPF (5x5, stride 1), GoogLeNet and AlexNet's last; in one dim
/// and in three.
std::vector<Case> pool_cases(DType t) {
  std::vector<Case> all;
  for (const std::string_view op : {"MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad"}) {
    for (const Shape& x : {Shape{8, 64, 55, 55}, Shape{8, 96, 13, 13}, Shape{16, 256, 3, 3}})
      all.push_back(pool_case(op, t, x, 3, 2, 0));
    all.push_back(pool_case(op, t, {8, 64, 112, 112}, 3, 2, 1));
    all.push_back(pool_case(op, t, {8, 64, 32, 32}, 5, 1, 2));
    all.push_back(pool_case(op, t, {8, 128, 8, 8}, 5, 1, 2));
    all.push_back(pool_case(op, t, {8, 192, 14, 14}, 3, 1, 1));
    for (const Shape& x : {Shape{16, 64, 32, 32}, Shape{16, 512, 4, 4}, Shape{32, 64, 1024},
                           Shape{4, 16, 8, 32, 32}})
      all.push_back(pool_case(op, t, x, 2, 2, 0));
  }
  all.push_back(pool_case("LpPool", t, {8, 64, 56, 56}, 2, 2, 0));
  for (const std::string_view op : {"GlobalMaxPool", "GlobalAveragePool"}) {
    for (const Shape& x : {Shape{32, 512, 7, 7}, Shape{16, 1152, 2, 2}, Shape{16, 64, 56, 56}}) {
      Shape y = x;
      y[2] = y[3] = 1;
      all.push_back({"", op, {{t, x}}, {{t, y}}});
    }
  }
  return all;
}

Case resize_case(DType t, const Shape& x, int64_t scale, std::string_view mode, bool backward) {
  const DType none = DType::kUndefined, i64 = DType::kI64;
  Shape y = x;
  for (size_t d = 2; d < x.size(); ++d) y[d] *= scale;
  Attributes attributes{{"mode", std::string(mode)}};
  if (mode == "nearest") {
    attributes.set("coordinate_transformation_mode", std::string("asymmetric"));
    attributes.set("nearest_mode", std::string("floor"));
  }
  if (!backward) {
    const auto rank = static_cast<int64_t>(x.size());
    return {"", "Resize", {{t, x}, {none, {}}, {none, {}}, {i64, {rank}}}, {{t, y}}, attributes, y};
  }
  attributes.set("sizes", y);
  return {kOwn, "ResizeGrad", {{t, y}, {i64, {4}}}, {{t, x}}, attributes, x};
}

/// U-Nets, YOLO, a segmentation head.
std::vector<Case> resize_cases(DType t) {
  std::vector<Case> all;
  for (const bool backward : {false, true}) {
    for (const std::string_view mode : {"linear", "nearest"}) {
      for (const Shape& x : {Shape{8, 64, 8, 8}, Shape{8, 64, 16, 16}, Shape{4, 32, 32, 32}})
        all.push_back(resize_case(t, x, 2, mode, backward));
      all.push_back(resize_case(t, {8, 8, 16, 16}, 4, mode, backward));
    }
  }
  return all;
}

/// Over the last, the first and a middle axis: norms of attention's heads, the maximum over time of
/// a text model and over the points of PointNet, channels of a picture.
std::vector<Case> reduce_cases(DType t) {
  struct Axes {
    Shape x, y;
    std::vector<int64_t> axes;
  };
  const Axes all_axes[] = {{{4, 4, 64, 32}, {4, 4, 64}, {3}}, {{16, 64, 60}, {16, 64}, {2}},
                           {{8, 256, 512}, {8, 256}, {2}},    {{8, 128, 32, 32}, {8, 32, 32}, {1}},
                           {{4096, 64}, {64}, {0}},           {{8192, 4}, {8192}, {1}},
                           {{65536, 3}, {65536}, {1}},        {{16, 64, 28, 28}, {16, 64}, {2, 3}}};
  std::vector<Case> all;
  for (const std::string_view op : {"ReduceMax", "ReduceL2", "ReduceProd", "ReduceLogSumExp",
                                    "ReduceSum", "ReduceMean", "ArgMax"}) {
    for (const Axes& a : all_axes) {
      Attributes attributes{{"keepdims", int64_t{0}}};
      if (op == "ArgMax") {
        if (a.axes.size() > 1) continue;
        attributes.set("axis", a.axes[0]);
        all.push_back({"", op, {{t, a.x}}, {{DType::kI64, a.y}}, attributes});
      } else {
        const auto count = static_cast<int64_t>(a.axes.size());
        all.push_back({"", op, {{t, a.x}, {DType::kI64, {count}}}, {{t, a.y}}, attributes, a.axes});
      }
    }
  }
  return all;
}

/// Running sums along the last, the first and a middle axis (linear attention: of products of keys
/// and values, and of keys), and rows in order.
std::vector<Case> along_cases(DType t) {
  const DType i64 = DType::kI64;
  std::vector<Case> all;
  const std::pair<Shape, int64_t> sums[] = {{{512, 512}, 1},          {{512, 512}, 0},
                                            {{8, 4, 128, 16, 16}, 2}, {{8, 4, 128, 16}, 2},
                                            {{8, 100, 7}, 1},         {{1, 50257}, 1}};
  for (const int64_t flag : {0, 1}) {
    for (const auto& [x, axis] : sums) {
      const Attributes attributes{{"exclusive", flag}, {"reverse", flag}};
      all.push_back({"", "CumSum", {{t, x}, {i64, {}}}, {{t, x}}, attributes, {axis}});
    }
  }
  const std::pair<Shape, int64_t> picks[] = {
      {{512, 512}, 512},  {{2048, 32}, 32}, {{2048, 64}, 64}, {{2048, 65}, 65}, {{2048, 10}, 10},
      {{64, 8192}, 8192}, {{64, 8192}, 50}, {{512, 512}, 64}, {{8, 50257}, 5}};
  for (const auto& [x, k] : picks) {
    const Shape y{x[0], k};
    all.push_back({"", "TopK", {{t, x}, {i64, {1}}}, {{t, y}, {i64, y}}, {}, {k}});
  }
  return all;
}

/// Messages of a graph network: 5,000 edges, 1,000 nodes with 64 features.
std::vector<Case> index_cases(DType t) {
  const DType i64 = DType::kI64;
  const Shape nodes{1000, 64}, edges{5000, 64};
  std::vector<int64_t> expanded, numbers;
  for (int64_t edge = 0; edge < 5000; ++edge) {
    numbers.push_back(edge * 389 % 1000);
    expanded.insert(expanded.end(), 64, numbers.back());
  }
  const Attributes add{{"reduction", std::string("add")}};
  return {
      {"", "GatherElements", {{t, nodes}, {i64, edges}}, {{t, edges}}, {}, expanded},
      {"", "ScatterElements", {{t, nodes}, {i64, edges}, {t, edges}}, {{t, nodes}}, add, expanded},
      {"", "ScatterND", {{t, nodes}, {i64, {5000, 1}}, {t, edges}}, {{t, nodes}}, add, numbers},
  };
}

/// The cases of one float type: activations of BERT and GPT-2.
std::vector<Case> cases_of(DType t) {
  const Shape wide{1024, 3072}, narrow{1024, 768}, scores{8, 12, 128, 128}, logits{512, 30522};
  const Shape one{};
  const DType f32 = DType::kF32;
  const Attributes tanh{{"approximate", "tanh"}}, to{{"to", static_cast<int64_t>(f32)}};
  return {
      {"", "Add", {{t, wide}, {t, wide}}, {{t, wide}}},
      {"", "Add", {{t, wide}, {t, {3072}}}, {{t, wide}}},
      {"", "Mul", {{t, scores}, {t, one}}, {{t, scores}}},
      {"", "Relu", {{t, wide}}, {{t, wide}}},
      {"", "Gelu", {{t, wide}}, {{t, wide}}},
      {"", "Gelu", {{t, wide}}, {{t, wide}}, tanh},
      {"", "Erf", {{t, wide}}, {{t, wide}}},
      {"", "Tanh", {{t, wide}}, {{t, wide}}},
      {"", "Exp", {{t, wide}}, {{t, wide}}},
      {"", "Sigmoid", {{t, wide}}, {{t, wide}}},
      {"", "Cast", {{t, wide}}, {{f32, wide}}, to},
      {kOwn, "GeluGrad", {{t, wide}, {t, wide}}, {{t, wide}}},
      {kOwn, "ErfGrad", {{t, wide}, {t, wide}}, {{t, wide}}},
      {"", "Softmax", {{t, scores}}, {{t, scores}}},
      {kOwn, "SoftmaxGrad", {{t, scores}, {t, scores}}, {{t, scores}}},
      {"", "LayerNormalization", {{t, narrow}, {t, {768}}, {t, {768}}}, {{t, narrow}}},
      {"", "ReduceSum", {{t, wide}, {DType::kI64, {1}}}, {{t, {3072}}}, {{"keepdims", int64_t{0}}}},
      {"", "SoftmaxCrossEntropyLoss", {{t, logits}, {DType::kI64, {512}}}, {{t, one}, {t, logits}}},
  };
}

/// Heads of attention, and pixels to channels last.
std::vector<Case> turn_cases(DType t) {
  const std::pair<DType, Shape> planes{t, {16, 96, 28, 28}}, last{t, {16, 28, 28, 96}};
  const std::pair<DType, Shape> square{t, {1024, 768}}, turned{t, {768, 1024}};
  return {
      {"", "Transpose", {square}, {turned}, {{"perm", std::vector<int64_t>{1, 0}}}},
      {"", "Transpose", {planes}, {last}, {{"perm", std::vector<int64_t>{0, 2, 3, 1}}}},
      {"", "Transpose", {last}, {planes}, {{"perm", std::vector<int64_t>{0, 3, 1, 2}}}},
  };
}

/// Scores of a segmentation and of a network over samples of sound: classes along axis 1.
std::vector<Case> plane_cases(DType t) {
  const Shape pixels{4, 21, 128, 128}, samples{4, 256, 2048}, one{};
  const DType f32 = DType::kF32, i64 = DType::kI64;
  const Attributes axis{{"axis", int64_t{1}}};
  std::vector<Case> cases;
  for (const auto& [scores, labels] : {std::pair<Shape, Shape>{pixels, {4, 128, 128}},
                                       std::pair<Shape, Shape>{samples, {4, 2048}}}) {
    const std::pair<DType, Shape> x{t, scores}, l{i64, labels};
    cases.push_back({"", "SoftmaxCrossEntropyLoss", {x, l}, {{t, one}, x}});
    cases.push_back({kOwn, "SoftmaxCrossEntropyLossGrad", {{f32, one}, x, l}, {x}});
    cases.push_back(
        {kOwn, "SoftmaxCrossEntropyLossWithGradient", {x, l, {f32, one}}, {{f32, one}, x}});
    for (const std::string_view op : {"Softmax", "LogSoftmax"})
      cases.push_back({"", op, {x}, {x}, axis});
    for (const std::string_view op : {"SoftmaxGrad", "LogSoftmaxGrad"})
      cases.push_back({kOwn, op, {x, x}, {x}, axis});
  }
  return cases;
}

/// Small numbers; integers are 0 or, as class labels, below 20; bool is true.
Tensor filled(DType dtype, const Shape& shape) {
  std::mt19937 random(7);
  const auto count = static_cast<size_t>(element_count(shape));
  if (dtype == DType::kBool)
    return Tensor::of<float>(shape, std::vector<float>(count, 1)).cast_to(dtype);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 1000) / 1000;
  if (dtype == DType::kI64)
    for (float& value : values) value = shape.empty() || count == 1 ? 0 : value * 20;
  return Tensor::of<float>(shape, std::span<const float>(values)).cast_to(dtype);
}

struct Operands {
  KernelCall call;
  std::vector<Tensor> inputs, outputs;
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  double bytes = 0;
};

double milliseconds(const Kernel& kernel, const KernelBuffers& buffers, int threads) {
  kernel.run(buffers);
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    int runs = 0;
    const double start = now(threads);
    double passed = 0;
    do {
      kernel.run(buffers);
      ++runs;
      passed = now(threads) - start;
    } while (passed < 20);
    best = std::min(best, passed / runs);
  }
  return best;
}

void measure(const Case& c, int threads) {
  Operands p;
  p.call.domain = c.domain;
  p.call.op = c.op;
  p.call.attributes = &c.attributes;
  p.call.threads = threads;
  p.inputs.reserve(c.inputs.size());
  for (const auto& [dtype, shape] : c.inputs) {
    if (dtype == DType::kI64 && !c.numbers.empty()) {
      p.inputs.push_back(Tensor::of<int64_t>(shape, std::span<const int64_t>(c.numbers)));
    } else {
      p.inputs.push_back(dtype == DType::kUndefined ? Tensor() : filled(dtype, shape));
    }
  }
  for (const auto& [dtype, shape] : c.outputs) p.outputs.emplace_back(dtype, shape);
  for (const Tensor& tensor : p.inputs) {
    if (tensor.dtype() == DType::kUndefined) {
      p.call.inputs.emplace_back();
      p.from.push_back(nullptr);
      continue;
    }
    const bool constant =
        tensor.dtype() == DType::kI64 && (tensor.size() == 1 || !c.numbers.empty());
    p.call.inputs.push_back({tensor.dtype(), tensor.shape(), {}, constant ? &tensor : nullptr});
    p.from.push_back(tensor.bytes());
    p.bytes += static_cast<double>(tensor.byte_size());
  }
  for (Tensor& tensor : p.outputs) {
    p.call.outputs.push_back({tensor.dtype(), tensor.shape(), {}, nullptr});
    p.to.push_back(tensor.mutable_bytes());
    p.bytes += static_cast<double>(tensor.byte_size());
  }
  fmt::print("{:24} {:5}{:14}", c.op, short_name(c.inputs[0].first), to_string(c.inputs[0].second));
  for (const KernelRow* row : cpu_kernels().rows_of(c.domain, c.op)) {
    const Prepared prepared = row->prepare(p.call);
    if (!prepared) continue;
    std::vector<std::byte> workspace(prepared.kernel->workspace_bytes() + 64);
    std::byte* start = workspace.data();
    while (reinterpret_cast<uintptr_t>(start) % 64 != 0) ++start;
    const double time = milliseconds(*prepared.kernel, {p.from, p.to, start}, threads);
    fmt::print("  {} {:.2f} ms {:.1f} GB/s", row->name, time, p.bytes / time * 1e-6);
  }
  fmt::print("\n");
}

}  // namespace
}  // namespace halfnote

int main(int argc, char** argv) {
  using namespace halfnote;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto cases : {cases_of, group_cases, plane_cases, turn_cases, update_cases,
                             pool_cases, resize_cases, reduce_cases, along_cases, index_cases}) {
      for (const Case& c : cases(dtype)) {
        if (argc <= 2 || c.op == argv[2]) measure(c, threads);
      }
    }
  }
  return 0;
}
