// Random ops in a training step: other numbers in every step and node, the same ones from the same
// seed, the stream of a resumed run; and no gradient, as in PyTorch.
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "passes/device/emit_step.h"
#include "passes/train/step.h"
#include "support.h"

namespace halfnote::test {
namespace {

const std::vector<std::string> kNoise = {"e1", "e2", "e3", "e4", "e5", "e6", "b1"};

Model noisy_model() {
  return parse_model(R"(<ir_version: 10, opset_import: ["" : 22]>
noisy (float[N,6] x) => (float[N,3] y, float[N,3] e1, float[N,3] e2, float[8,3] e3, float[N,3] e4,
                         float[N,3] e5, float[N,3] e6, float[N,3] b1)
  <float[6,3] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}> {
  h = MatMul (x, w)
  e1 = RandomNormalLike (h)
  e2 = RandomNormalLike (h)
  e3 = RandomNormal <shape = [8, 3]> ()
  e4 = RandomUniformLike (h)
  e5 = RandomUniformLike <seed = 3.0> (h)
  e6 = RandomUniformLike <seed = 3.0> (h)
  q = Sigmoid (h)
  b1 = Bernoulli (q)
  s = Sum (e1, e2, e4, e5, e6, b1)
  y = Add (h, s)
})",
                     "noisy.onnxtxt");
}

std::vector<Tensor> draws(const Session& session) {
  std::vector<Tensor> all;
  for (const std::string& name : kNoise) all.push_back(session.output(name));
  return all;
}

TEST(RandomOps, DrawAnewInEveryStepAndNode) {
  Session session = reference_session(noisy_model(), options_for("sgd"));
  const std::vector<Tensor> batch = mlp_batch(8, 1);
  session.step(batch);
  const std::vector<Tensor> first = draws(session);
  session.step(batch);
  const std::vector<Tensor> second = draws(session);
  for (size_t i = 0; i < kNoise.size(); ++i) {
    EXPECT_FALSE(identical(first[i], second[i])) << kNoise[i];
    for (size_t k = 0; k < i; ++k) EXPECT_FALSE(identical(first[i], first[k])) << kNoise[i];
  }
}

TEST(RandomOps, FollowTheSeedAndTheStatesOfARun) {
  const std::vector<Tensor> batch = mlp_batch(8, 1);
  CompileOptions options = options_for("sgd");
  Session a = reference_session(noisy_model(), options);
  a.step(batch);
  const std::vector<Tensor> first = draws(a);
  a.step(batch);

  Session same = reference_session(noisy_model(), options, 2);
  same.step(batch);
  expect_same(draws(same), first);
  Session resumed = reference_session(noisy_model(), options);
  for (const StateEntry& entry : same.state().entries()) {
    resumed.state().set(entry, same.state().get(entry));
  }
  resumed.step(batch);
  expect_same(draws(resumed), draws(a));

  options.train.seed = 8;
  Session other = reference_session(noisy_model(), options);
  other.step(batch);
  const std::vector<Tensor> third = draws(other);
  for (size_t i = 0; i < kNoise.size(); ++i) {
    const bool own = kNoise[i] == "e5" || kNoise[i] == "e6";  // the seed of the node
    EXPECT_EQ(identical(third[i], first[i]), own) << kNoise[i];
  }
}

TEST(RandomOps, EvaluateTheSameEachTimeAndOthersInEachNode) {
  Session session = reference_session(noisy_model(), options_for("sgd"));
  const std::vector<Tensor> batch = mlp_batch(8, 1);
  const std::vector<Tensor> first = session.evaluate(batch);  // loss, y, e1, …
  expect_same(session.evaluate(batch), first);
  EXPECT_FALSE(identical(first[2], first[3]));
}

TEST(RandomOps, StayAsTheyAreInTheInferenceGraph) {
  const Model model = compile_model(noisy_model(), options_for("sgd")).model;
  EXPECT_EQ(find_nodes(model.graph, "RandomNormalLike").size(), 2u);
  EXPECT_EQ(find_nodes(model.graph, "ai.halfnote.RandomNormal").size(), 0u);
  EXPECT_EQ(find_nodes(model.training.front().graph, "RandomNormalLike").size(), 0u);
}

// The bodies of two draws are inlined: `Range_d0` of one is not that of the other.
TEST(RandomOps, OpenDimsOfTheirBodiesHaveNamesOfTheirOwn) {
  const Model step = emit_step(compile_model(noisy_model(), options_for("sgd")).model, kStepName,
                               Emulation::kNone);
  std::map<std::string, std::string> owners;
  int ranges = 0;
  for (NodeId node : find_nodes(step.graph, "Range")) {
    const Value& value = step.graph.value(step.graph.output(node));
    const Dim& dim = value.type.shape.value().at(0);
    if (dim.known()) continue;
    ++ranges;
    EXPECT_TRUE(owners.emplace(dim.symbol, value.name).second)
        << value.name << " and " << owners[dim.symbol] << " have the size " << dim.symbol;
  }
  EXPECT_GE(ranges, 6);
}

/// The gradient of an element by what SGD with a rate of 0.1 made of it: off by its rounding / 0.1.
double moved(const Tensor& before, const Tensor& after, int64_t element) {
  return (before.at_as_double(element) - after.at_as_double(element)) / 0.1f;
}

TEST(RandomOps, StepOfAVaeEqualsTheInterpreterAndItsFormula) {
  const Model vae = parse_model(R"(<ir_version: 10, opset_import: ["" : 17]>
vae (float[N,3] x, float[N,3] t) => (float loss, float[N,3] z, float[N,3] e)
  <float[3] mu = {0.1, 0.2, 0.3}, float[3] sigma = {0.3, -0.2, 0.1}, float half = {0.5}> {
  mean = Add (x, mu)
  logvar = Add (x, sigma)
  e = RandomNormalLike (logvar)
  l = Mul (logvar, half)
  d = Exp (l)
  n = Mul (e, d)
  z = Add (mean, n)
  o = Sub (z, t)
  q = Mul (o, o)
  loss = ReduceMean <keepdims = 0> (q)
})",
                                "vae.onnxtxt");
  CompileOptions options = options_for("sgd");
  options.train.loss.clear();
  options.train.loss_outputs = {"loss"};
  Session session = reference_session(vae, options);
  SlowStep slow(session.model().training.front().graph);
  const std::vector<Tensor> batch = {uniform({4, 3}, 1), uniform({4, 3}, 2)};
  for (int step = 0; step < 3; ++step) {
    const Tensor mu = state(session, "mu"), sigma = state(session, "sigma");
    session.step(batch);
    EXPECT_TRUE(identical(slow.run(batch)[0], session.output("loss")));
    const Tensor z = session.output("z"), e = session.output("e");
    double mean = 0, spread = 0;
    for (int i = 0; i < 12; i += 3) {
      const double dz = 2.0 / 12 * (z.data<float>()[i] - batch[1].data<float>()[i]);
      mean += dz;
      spread += dz * e.data<float>()[i] * 0.5 *
                std::exp(0.5 * (batch[0].data<float>()[i] + sigma.data<float>()[0]));
    }
    EXPECT_NEAR(moved(mu, state(session, "mu"), 0), mean, 4e-6);
    EXPECT_NEAR(moved(sigma, state(session, "sigma"), 0), spread, 4e-6);
  }
}

/// y = x·w and what `body` makes of h = x·w, both summed in the loss.
Model beside(const std::string& body) {
  return parse_model(
      "<ir_version: 10, opset_import: [\"\" : 22]>\n"
      "m (float[4,3] x) => (float[4,3] y) <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 10}> {\n"
      "  h = MatMul (x, w)\n" +
          body + "\n  y = Add (h, e)\n}",
      "beside.onnxtxt");
}

TEST(RandomOps, AndOthersWithoutASlopePassNoGradient) {
  CompileOptions options = options_for("sgd");
  options.train.loss = "mse";
  const std::vector<Tensor> batch = {uniform({4, 3}, 1), uniform({4, 3}, 2)};
  const std::vector<std::string> bodies = {
      "e = RandomNormalLike (h)",
      "e = RandomUniformLike (h)",
      "s = Sigmoid (h)\n e = Bernoulli (s)",
      "k = Multinomial <sample_size = 3, dtype = 6> (h)\n e = Cast <to = 1> (k)",
      "e = EyeLike (h)",
      "e = Hardmax (h)",
      "z = Constant <value_float = 0.0> ()\n g = Greater (h, z)\n e = Cast <to = 1> (g)"};
  for (const std::string& body : bodies) {
    Session session = reference_session(beside(body), options);
    const Tensor w = state(session, "w");
    session.step(batch);
    const Tensor y = session.output("y");
    for (int i = 0; i < 3; ++i) {
      double want = 0;  // of h alone
      for (int n = 0; n < 4; ++n) {
        want += batch[0].data<float>()[3 * n + i] * 2.0 / 12 *
                (y.data<float>()[3 * n] - batch[1].data<float>()[3 * n]);
      }
      EXPECT_NEAR(moved(w, state(session, "w"), 3 * i), want, 1e-4) << body;
    }
  }
}

TEST(RandomOps, DrawWithTheRightProbability) {
  const std::string zeros = "z = Constant <value_float = 0.0> ()\n p = Mul (h, z)\n ";
  CompileOptions options = options_for("sgd");
  options.train.loss = "mse";
  const std::vector<Tensor> batch = {uniform({4, 3}, 1), uniform({4, 3}, 2)};
  const auto mean_of = [&](const std::string& body) {
    Model model = beside(body);
    model.graph.add_output(model.graph.main(), model.graph.find("e"));
    Session session = reference_session(model, options);
    double sum = 0;
    for (int i = 0; i < 200; ++i) {
      session.step(batch);
      const Tensor e = session.output("e");
      for (int64_t k = 0; k < 12; ++k) sum += e.data<float>()[k] / 2400.0;
    }
    return sum;
  };
  EXPECT_EQ(mean_of(zeros + "e = Bernoulli (p)"), 0);
  EXPECT_NEAR(mean_of(zeros + "i = Exp (p)\n e = Bernoulli (i)"), 1, 1e-9);
  // Four standard errors: 4·√(0.25·0.75/2400), 4·√(2/3/2400).
  EXPECT_NEAR(mean_of(zeros + "q = Constant <value_float = 0.25> ()\n i = Add (p, q)\n"
                              " e = Bernoulli (i)"),
              0.25, 0.036);
  EXPECT_NEAR(mean_of(zeros + "k = Multinomial <sample_size = 3> (p)\n e = Cast <to = 1> (k)"), 1,
              0.067);
}

TEST(RandomOps, AreRefusedInBodies) {
  const Model model = beside(
      "r = ReduceSum <keepdims = 0> (x)\n z = Constant <value_float = 0.0> ()\n"
      " c = Greater (r, z)\n"
      " e = If (c) <then_branch = t () => (float[4,3] a) { [drawn] a = RandomNormalLike (h) },"
      " else_branch = f () => (float[4,3] b) { b = Neg (h) }>");
  try {
    compile_model(model, options_for("sgd"));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("it stands in a body"));
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("drawn"));
  }
}

}  // namespace
}  // namespace halfnote::test
