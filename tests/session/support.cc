#include "support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "compiler/ir/text.h"
#include "runtime/core/evaluate.h"

namespace halfnote::test {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// `float[2,3] name = {…}` with values in ±scale.
std::string weight(const std::string& name, const Shape& shape, uint64_t seed, float scale) {
  const Tensor values = uniform(shape, seed);
  std::string text = "float[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i ? "," : "", shape[i]);
  text += "] " + name + " = {";
  for (int64_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{}{:.6f}", i > 0 ? ", " : "",
                        values.data<float>()[static_cast<size_t>(i)] * scale);
  }
  return text + "}";
}

std::string filled(const std::string& name, int64_t count, const char* value) {
  std::string text = fmt::format("float[{}] {} = {{", count, name);
  for (int64_t i = 0; i < count; ++i) text += (i > 0 ? ", " : "") + std::string(value);
  return text + "}";
}

std::string cnn_text() {
  std::string text = R"(<ir_version: 10, opset_import: ["" : 23]>
cnn (float[N,3,8,8] x) => (float[N,3] logits) <)";
  text += weight("c1_w", {8, 3, 3, 3}, 11, 0.3f) + ", " + weight("c2_w", {8, 8, 3, 3}, 12, 0.2f);
  for (const char* bn : {"bn1", "bn2"}) {
    const std::string name = bn;
    text += ", " + filled(name + "_scale", 8, "1.0") + ", " + filled(name + "_bias", 8, "0.0") +
            ", " + filled(name + "_mean", 8, "0.0") + ", " + filled(name + "_var", 8, "1.0");
  }
  text += ", " + weight("fc_w", {8, 3}, 13, 0.5f) + ", " + filled("fc_b", 3, "0.0");
  text += ", float ratio = {0.25}, bool training = {1}> {\n";
  text += R"(
  a1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, c1_w)
  n1, m1, v1 = BatchNormalization <training_mode = 1> (a1, bn1_scale, bn1_bias, bn1_mean, bn1_var)
  r1 = Relu (n1)
  p1 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
  a2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (p1, c2_w)
  n2, m2, v2 = BatchNormalization <training_mode = 1> (a2, bn2_scale, bn2_bias, bn2_mean, bn2_var)
  r2 = Relu (n2)
  g = GlobalAveragePool (r2)
  f = Flatten (g)
  d = Dropout (f, ratio, training)
  logits = Gemm (d, fc_w, fc_b)
})";
  return text;
}

/// The class of a row: where its sum lies.
Tensor labels_for(const Tensor& x) {
  const int64_t n = x.shape()[0], width = x.size() / n;
  Tensor labels(DType::kI64, {n});
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < width; ++j) sum += x.at_as_double(i * width + j);
    const double spread = 0.25 * std::sqrt(static_cast<double>(width));
    labels.mutable_data<int64_t>()[static_cast<size_t>(i)] = sum < -spread  ? 0
                                                             : sum < spread ? 1
                                                                            : 2;
  }
  return labels;
}

}  // namespace

Model mlp_model() {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "mlp (float[N,6] x) => (float[N,3] logits) <" +
      weight("w1", {6, 16}, 1, 0.6f) + ", " + filled("b1", 16, "0.0") + ", " +
      weight("w2", {16, 3}, 2, 0.4f) + ", " + filled("b2", 3, "0.0") +
      "> {\n  h = Gemm (x, w1, b1)\n  r = Relu (h)\n  logits = Gemm (r, w2, b2)\n}";
  return parse_model(text, "mlp.onnxtxt");
}

Model cnn_model() { return parse_model(cnn_text(), "cnn.onnxtxt"); }

Tensor uniform(Shape shape, uint64_t seed) {
  Tensor tensor(DType::kF32, std::move(shape));
  uint64_t counter = mix(seed);
  for (float& value : tensor.mutable_data<float>()) {
    value = static_cast<float>(mix(++counter) >> 40) * 0x1p-23f - 1.0f;
  }
  return tensor;
}

std::vector<Tensor> mlp_batch(int64_t n, uint64_t seed) {
  const Tensor x = uniform({n, 6}, seed);
  return {x, labels_for(x)};
}

std::vector<Tensor> cnn_batch(int64_t n, uint64_t seed) {
  const Tensor x = uniform({n, 3, 8, 8}, seed);
  return {x, labels_for(x)};
}

std::vector<Tensor> rows(const std::vector<Tensor>& batch, int64_t from, int64_t count) {
  std::vector<Tensor> part;
  for (const Tensor& tensor : batch) {
    Shape shape = tensor.shape();
    const size_t row = tensor.byte_size() / static_cast<size_t>(shape[0]);
    shape[0] = count;
    Tensor copy(tensor.dtype(), shape);
    std::memcpy(copy.mutable_bytes(), tensor.bytes() + static_cast<size_t>(from) * row,
                copy.byte_size());
    part.push_back(std::move(copy));
  }
  return part;
}

CompileOptions options_for(const std::string& optimizer, DType precision) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss = "cross_entropy";
  options.train.optimizer.kind = optimizer;
  options.train.optimizer.lr = optimizer.starts_with("adam") ? 0.01f : 0.1f;
  options.train.seed = 7;
  return options;
}

Session reference_session(const Model& model, const CompileOptions& options, int threads) {
  SessionOptions session;
  session.threads = threads;
  session.kernels = "reference";
  return Session(compile_model(model, options).model, session);
}

Tensor state(const Session& session, const std::string& name) {
  const StateEntry* entry = session.state().find(name);
  if (entry == nullptr) ADD_FAILURE() << "no state " << name;
  return entry == nullptr ? Tensor() : session.state().get(*entry);
}

std::vector<Tensor> states_of(const Session& session) {
  std::vector<Tensor> states;
  for (const StateEntry& entry : session.state().entries())
    states.push_back(session.state().get(entry));
  return states;
}

void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(identical(a[i], b[i])) << "tensor " << i;
}

SlowStep::SlowStep(Graph graph) : graph_(std::move(graph)), outputs_(graph_.outputs().size()) {
  for (const State& state : std::vector<State>(graph_.states().begin(), graph_.states().end()))
    graph_.add_output(graph_.main(), state.next);
}

std::vector<Tensor> SlowStep::run(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> results = evaluate(graph_, inputs);
  for (size_t i = 0; i < graph_.states().size(); ++i) {
    graph_.value(graph_.states()[i].current).tensor = results[outputs_ + i];
  }
  results.resize(outputs_);
  return results;
}

const Tensor& SlowStep::state(const std::string& name) const {
  return graph_.value(graph_.find(name)).tensor;
}

}  // namespace halfnote::test
