#include "tests/ops/recurrent/cases.h"

#include "tests/ops/body_harness.h"

namespace halfnote::test {
namespace {

using Texts = std::vector<std::string>;
using Floats = std::vector<float>;

const Attributes kReverse = {{"direction", std::string("reverse")}};
const Attributes kBoth = {{"direction", std::string("bidirectional")}};

Attributes with(Attributes attributes, std::string_view name, Attribute value) {
  attributes.set(name, std::move(value));
  return attributes;
}

/// The functions of one direction, the same ones for an op with more of them.
Attributes functions(const std::string& op, const std::string& f, const std::string& g,
                     const std::string& h) {
  if (op == "RNN") return {{"activations", Texts{f}}};
  if (op == "GRU") return {{"activations", Texts{f, g}}};
  return {{"activations", Texts{f, g, h}}};
}

void add_common(const std::string& op, std::vector<RecurrentCase>& cases) {
  cases.push_back({"plain", op});
  cases.push_back({"reverse", op, kReverse});
  cases.push_back({"bidirectional", op, kBoth});
  cases.push_back({"no bias, no states", op, kBoth, 4, 3, 2, 3, {}, false, false});
  cases.push_back({"one step", op, kBoth, 1, 2, 3, 2});
  cases.push_back({"lengths", op, {}, 4, 3, 2, 3, {4, 2, 1}});
  cases.push_back({"lengths, reverse", op, kReverse, 4, 3, 2, 3, {1, 4, 3}});
  cases.push_back(
      {"lengths, both, batch first", op, with(kBoth, "layout", int64_t{1}), 4, 3, 2, 3, {3, 4, 2}});
  cases.push_back({"batch first", op, {{"layout", int64_t{1}}}, 3, 2, 3, 4});
  cases.push_back({"clip", op, {{"clip", 0.3f}}});
  cases.push_back({"smooth functions", op, functions(op, "HardSigmoid", "Softsign", "Softplus")});
  cases.push_back({"tanh and sigmoid swapped", op, functions(op, "Tanh", "Sigmoid", "Sigmoid")});
  cases.push_back({"kinked functions", op, functions(op, "Softplus", "Relu", "Elu")});
  Attributes numbers = functions(op, "ScaledTanh", "LeakyRelu", "Affine");
  numbers.set("activation_alpha", Floats{0.9f, 0.2f, 1.5f});
  numbers.set("activation_beta", Floats{0.7f, 0.25f});
  cases.push_back({"functions with numbers", op, numbers});
  numbers = functions(op, "Affine", "ThresholdedRelu", "Elu");
  numbers.set("activation_alpha", Floats{0.4f, -0.3f, 0.6f});
  numbers.set("activation_beta", Floats{0.5f});
  cases.push_back({"more functions with numbers", op, numbers});
}

}  // namespace

std::vector<RecurrentCase> recurrent_cases() {
  std::vector<RecurrentCase> cases;
  for (const char* op : {"RNN", "GRU", "LSTM"}) add_common(op, cases);
  const Attributes linear = {{"linear_before_reset", int64_t{1}}};
  cases.push_back({"linear before reset", "GRU", linear});
  cases.push_back({"linear before reset, lengths",
                   "GRU",
                   with(linear, "direction", std::string("bidirectional")),
                   4,
                   3,
                   2,
                   3,
                   {2, 4, 1}});
  cases.push_back({"linear before reset, clip, no bias",
                   "GRU",
                   with(linear, "clip", 0.25f),
                   4,
                   3,
                   2,
                   3,
                   {},
                   false,
                   false});
  cases.push_back({"peepholes", "LSTM", kBoth, 4, 3, 2, 3, {}, true, true, true});
  cases.push_back({"peepholes, lengths", "LSTM", kBoth, 4, 3, 2, 3, {1, 4, 2}, true, true, true});
  const Attributes coupled = {{"input_forget", int64_t{1}}};
  cases.push_back({"input_forget", "LSTM", coupled});
  cases.push_back({"input_forget, peepholes, clip",
                   "LSTM",
                   with(coupled, "clip", 0.4f),
                   4,
                   3,
                   2,
                   3,
                   {},
                   true,
                   true,
                   true});
  Attributes each = kBoth;
  each.set("activations", Texts{"Sigmoid", "tanh", "Relu", "HardSigmoid", "Softsign", "TANH"});
  cases.push_back({"functions of each direction", "LSTM", each});
  for (RecurrentCase& test : cases) test.attributes.set("hidden_size", test.hidden);
  return cases;
}

std::vector<Tensor> recurrent_inputs(const RecurrentCase& test, DType dtype, DType bias) {
  if (bias == DType::kUndefined) bias = dtype;
  const int64_t gates = test.op == "RNN" ? 1 : test.op == "GRU" ? 3 : 4;
  const bool both = test.attributes.get_string("direction", "forward") == "bidirectional";
  const int64_t d = both ? 2 : 1;
  const bool batch_first = test.attributes.get_int("layout", 0) == 1;
  const int64_t t = test.steps, b = test.batch, h = test.hidden;
  const Shape state = batch_first ? Shape{b, d, h} : Shape{d, b, h};
  std::vector<Tensor> inputs = {
      random_tensor(dtype, batch_first ? Shape{b, t, test.inputs} : Shape{t, b, test.inputs}, 1),
      random_tensor(dtype, {d, gates * h, test.inputs}, 2),
      random_tensor(dtype, {d, gates * h, h}, 3)};
  inputs.push_back(test.has_bias ? random_tensor(bias, {d, 2 * gates * h}, 4, -0.5, 0.5)
                                 : Tensor{});
  inputs.push_back(test.lengths.empty() ? Tensor{} : ints(test.lengths).cast_to(DType::kI32));
  inputs.push_back(test.has_states ? random_tensor(dtype, state, 5) : Tensor{});
  if (test.op != "LSTM") return inputs;
  inputs.push_back(test.has_states ? random_tensor(dtype, state, 6) : Tensor{});
  inputs.push_back(test.has_peepholes ? random_tensor(bias, {d, 3 * h}, 7) : Tensor{});
  return inputs;
}

}  // namespace halfnote::test
