// Padding in whole training steps: with and without it every loss, weight and state is the same,
// bit for bit, for each form of contraction in which a padded lane might meet a softmax, a loss or
// a statistic.
#include "passes/padding/remove_padding.h"
#include "support.h"

namespace halfnote::test {
namespace {

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

/// `float[2,3] name = {…},  # trainable`, of multiples of 1/8.
std::string weight(const std::string& name, const std::vector<int64_t>& shape) {
  std::string dims, data;
  for (int64_t size : shape) dims += (dims.empty() ? "" : ",") + std::to_string(size);
  for (int64_t i = 0; i < count_of(shape); ++i) {
    const int64_t eighths = (i * 7 + static_cast<int64_t>(name[0])) % 13 - 6;
    data += (i == 0 ? "" : ", ") + std::to_string(static_cast<double>(eighths) / 8);
  }
  return "   float[" + dims + "] " + name + " = {" + data + "},  # trainable\n";
}

struct Form {
  const char* name;
  std::string text;
};

/// The last of the initializers, which has no comma behind it.
constexpr const char* kLast = "   float one = {1}\n";

std::vector<Form> forms() {
  return {
      {"vocabulary of 17", "main (float[8,16] x) => (float[8,17] z) <\n" + weight("w", {16, 17}) +
                               weight("b", {17}) + kLast + "> { z = Gemm (x, w, b) }"},
      {"tied embedding, vocabulary of 9",
       "main (int64[4] x) => (float[4,9] z) <\n" + weight("table", {9, 5}) + kLast +
           "> { h = Gather (table, x)  t = Transpose <perm: ints = [1, 0]> (table)"
           " z = MatMul (h, t) }"},
      {"attention, heads of 5, 7 keys",
       "main (float[1,7,10] x) => (float[1,7,10] z) <\n" + weight("q", {10, 10}) +
           weight("k", {10, 10}) + weight("v", {10, 10}) +
           "   int64[4] heads = {1, 7, 2, 5},\n   int64[3] whole = {1, 7, 10},\n"
           "   float root = {0.4472136}\n> {\n"
           "   q0 = MatMul (x, q)  k0 = MatMul (x, k)  v0 = MatMul (x, v)\n"
           "   q1 = Reshape (q0, heads)  k1 = Reshape (k0, heads)  v1 = Reshape (v0, heads)\n"
           "   q2 = Transpose <perm: ints = [0, 2, 1, 3]> (q1)\n"
           "   k2 = Transpose <perm: ints = [0, 2, 3, 1]> (k1)\n"
           "   v2 = Transpose <perm: ints = [0, 2, 1, 3]> (v1)\n"
           "   s = MatMul (q2, k2)  m = Mul (s, root)  p = Softmax (m)  a = MatMul (p, v2)\n"
           "   a1 = Transpose <perm: ints = [0, 2, 1, 3]> (a)  z = Reshape (a1, whole) }"},
      {"grouped convolutions", "main (float[2,6,5,5] x) => (float[2,6,2,2] z) <\n" +
                                   weight("w", {4, 3, 3, 3}) + weight("b", {4}) +
                                   weight("v", {6, 2, 2, 2}) + kLast +
                                   "> { c = Conv <group: int = 2> (x, w, b)  r = Relu (c)"
                                   " z = Conv <group: int = 2> (r, v) }"},
      {"depthwise and pointwise convolution",
       "main (float[2,3,4,4] x) => (float[2,5,2,2] z) <\n" + weight("w", {6, 1, 3, 3}) +
           weight("v", {5, 6, 1, 1}) + kLast +
           "> { c = Conv <group: int = 3> (x, w)  r = Relu (c)  z = Conv (r, v) }"},
      {"LSTM of 3 behind a product of 5",
       "main (float[4,2,3] x) => (float[4,1,2,3] z) <\n" + weight("e", {3, 5}) +
           weight("w", {1, 12, 5}) + weight("r", {1, 12, 3}) + kLast +
           "> { h = MatMul (x, e)  z = LSTM <hidden_size: int = 3> (h, w, r) }"},
      {"GRU of 3 behind a product of 5",
       "main (float[4,2,3] x) => (float[4,1,2,3] z) <\n" + weight("e", {3, 5}) +
           weight("w", {1, 9, 5}) + weight("r", {1, 9, 3}) + kLast +
           "> { h = MatMul (x, e)  z = GRU <hidden_size: int = 3> (h, w, r) }"},
  };
}

int padding_nodes(const Model& model) {
  int count = 0;
  const Graph& step = model.training.front().graph;
  for (NodeId node : step.nodes()) count += is_padding(step.node(node));
  return count;
}

Model compiled(const Form& form, DType dtype, const std::string& loss, bool pad) {
  CompileOptions options;
  options.policy.dtype = dtype;
  options.policy.pad = pad;
  options.train.loss = loss;
  options.train.optimizer.kind = "momentum";
  Model model = model_of(form.text);
  run_all(model, options);
  return model;
}

TEST(Padding, ChangesNoBitOfAStep) {
  for (const Form& form : forms()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      // Cross entropy has the vocabulary as its classes; a mean sees every element of the result.
      const bool classes = std::string(form.name).find("vocabulary") != std::string::npos;
      const std::string loss = classes ? "cross_entropy" : "mse";
      SCOPED_TRACE(std::string(form.name) + " " + std::string(short_name(dtype)));
      const Model plain = compiled(form, dtype, loss, false);
      Model padded = compiled(form, dtype, loss, true);
      EXPECT_EQ(padding_nodes(plain), 0);
      EXPECT_GT(padding_nodes(padded), 0);
      const Results want = execute(plain);
      EXPECT_EQ(expect_agreement(want, execute(padded), 0), static_cast<int>(want.size()));
      // `run` takes it out where the device gains nothing.
      remove_padding(padded.training.front().graph);
      EXPECT_EQ(padding_nodes(padded), 0);
    }
  }
}

}  // namespace
}  // namespace halfnote::test
