// The trained model: exported, checked and read again it gives the outputs of the session; the f32
// form is plain ONNX without 16-bit types.
#include <gmock/gmock.h>

#include <cmath>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/export.h"
#include "compiler/onnx/import.h"
#include "passes/precision/to_f32.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "support.h"

namespace halfnote::test {
namespace {

Session trained(DType precision, int steps = 5) {
  Session session = reference_session(cnn_model(), options_for("adamw", precision));
  for (int i = 0; i < steps; ++i) session.step(cnn_batch(8, static_cast<uint64_t>(90 + i)));
  return session;
}

Tensor logits_of(const Model& model, const Tensor& x) {
  const Shape shape = x.shape();
  const Graph ready =
      make_device_ready(model.graph, dims_from_shapes(model.graph, std::span(&shape, 1)));
  return evaluate(ready, {x}).front();
}

void expect_plain(const Model& model) {
  EXPECT_TRUE(model.functions.empty());
  EXPECT_FALSE(model.is_training());
  for (const auto& [key, value] : model.metadata) {
    const bool declares =
        key == "halfnote.parameters" || key == "halfnote.constants" || key == "halfnote.dropouts";
    EXPECT_TRUE(declares || !key.starts_with("halfnote.")) << key;
  }
  const Graph& graph = model.graph;
  for (NodeId id : graph.all_nodes()) {
    EXPECT_EQ(graph.node(id).domain, "") << graph.node(id).op;
    EXPECT_TRUE(graph.node(id).precision.reason.empty());
    for (ValueId output : graph.outputs(id)) {
      if (output.valid()) {
        EXPECT_FALSE(is_16bit_float(graph.value(output).type.dtype)) << graph.value(output).name;
      }
    }
  }
  for (ValueId id : graph.initializers())
    EXPECT_FALSE(is_16bit_float(graph.value(id).type.dtype)) << graph.value(id).name;
  EXPECT_TRUE(find_nodes(graph, "Cast").empty());
}

TEST(TrainedModel, F32FormIsPlainOnnx) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    const Session session = trained(precision);
    const Model model = session.trained_model();
    expect_plain(model);
    EXPECT_NO_THROW(check_model(model));
    const Model again = import_model_bytes(export_model_bytes(model), "trained");
    expect_plain(again);
    EXPECT_EQ(again.opsets, (std::map<std::string, int64_t>{{"", kOpsetVersion}}));
    const Tensor x = cnn_batch(5, 77)[0];
    EXPECT_TRUE(identical(logits_of(model, x), logits_of(again, x)));
  }
}

TEST(TrainedModel, HasTheOpsetOfTheSource) {
  // The source has axes as an attribute, and op-set 23 as an input, of which no trace stays.
  const std::string source =
      "<ir_version: 8, opset_import: [\"\" : 17]>\n"
      "main (float[N,3,4] x) => (float[N,2] y)\n"
      "<float[4,2] w = {1,2,3,4,5,6,7,8}> {\n"
      "  m = ReduceMean <axes: ints = [1], keepdims: int = 0> (x)\n"
      "  y = MatMul(m, w)\n}\n";
  Model model = parse_model(source, "source");
  Session session(compile_model(std::move(model), options_for("sgd", DType::kBF16)).model, {});
  const Model trained = session.trained_model();
  EXPECT_EQ(trained.opsets.at(""), 17);
  const NodeId mean = find_nodes(trained.graph, "ReduceMean").at(0);
  EXPECT_EQ(trained.graph.node(mean).attributes.get_ints("axes"), std::vector<int64_t>{1});
  EXPECT_EQ(trained.graph.initializers().size(), 1u);
  EXPECT_NO_THROW(check_model(trained));
  const Tensor x = Tensor::full(DType::kF32, {2, 3, 4}, 0.5);
  CompileOptions lifted;
  lifted.inference_only = true;
  lifted.policy.dtype = DType::kF32;
  Model again = import_model_bytes(export_model_bytes(trained), "trained");
  const Tensor got = logits_of(compile_model(std::move(again), lifted).model, x);
  EXPECT_EQ(got.at_as_double(0), 0.5 * (1 + 3 + 5 + 7));
}

TEST(TrainedModel, F32FormGivesTheOutputsOfTheSession) {
  Session session = trained(DType::kF32);
  const std::vector<Tensor> batch = cnn_batch(6, 78);
  const Tensor want = session.evaluate(batch)[1];
  EXPECT_TRUE(identical(logits_of(session.trained_model(), batch[0]), want));
  EXPECT_TRUE(identical(logits_of(session.trained_model(TrainedForm::kAsTrained), batch[0]), want));
}

TEST(TrainedModel, ViewsAreTheSessionsMemory) {
  Session session = trained(DType::kBF16);
  const Model copies = session.trained_model();
  const Model views = session.trained_model(TrainedForm::kF32, TensorsAs::kViews);
  EXPECT_EQ(export_model_bytes(copies), export_model_bytes(views));
  int shared = 0;
  for (const ValueId id : views.graph.initializers()) {
    const Value& value = views.graph.value(id);
    const StateEntry* entry = session.state().find(value.name);
    if (entry == nullptr) continue;
    EXPECT_EQ(value.tensor.bytes(), std::as_const(session).state().data(*entry)) << value.name;
    ++shared;
  }
  EXPECT_GT(shared, 0);
}

TEST(TrainedModel, F32FormOfAMixedModelIsCloseToTheF32Model) {
  // The same weights in an f32 session: the f32 form must give exactly its outputs.
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    Session mixed = trained(precision);
    Session plain = trained(DType::kF32, 0);
    for (const StateEntry& entry : plain.state().entries()) {
      const StateEntry* other = mixed.state().find(entry.name);
      ASSERT_NE(other, nullptr) << entry.name;
      plain.state().set(entry, mixed.state().get(*other));
    }
    const std::vector<Tensor> batch = cnn_batch(6, 79);
    const Tensor want = plain.evaluate(batch)[1];
    const Tensor f32 = logits_of(mixed.trained_model(), batch[0]);
    EXPECT_TRUE(identical(f32, want)) << short_name(precision);

    // And the mixed outputs lie within some roundings to 16 bits of them: about a dozen, each
    // relative to the largest logit.
    const double unit = precision == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    const Tensor low = logits_of(mixed.trained_model(TrainedForm::kAsTrained), batch[0]);
    ASSERT_TRUE(identical(low, mixed.evaluate(batch)[1]));
    double largest = 0;
    for (int64_t i = 0; i < want.size(); ++i)
      largest = std::max(largest, std::fabs(want.at_as_double(i)));
    for (int64_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(low.at_as_double(i), want.at_as_double(i), 12 * unit * largest);
  }
}

// A parameter of no dims and a weight are trained; a buffer, and a constant that the exporter
// computed, are not: neither at first nor when the trained model is trained again.
TEST(TrainedModel, TrainsAgainWhatItsExporterDeclared) {
  Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23], metadata_props: [
  "halfnote.parameters": "w\x0at\x0a", "halfnote.buffers": "mean\x0a",
  "halfnote.constants": "triu\x0a"]>
g (float[N,2] x) => (float[N,2] y) <
   float[2,2] w = {0.5, -0.25, 0.25, 0.5}, float t = {2}, float[2] mean = {0.5, 0.25},
   float[1,2] triu = {0, 1}
> {
   c = Sub (x, mean)
   m = MatMul (c, w)
   d = Div (m, t)
   y = Add (d, triu)
})",
                            "declared.onnxtxt");
  const std::vector<Tensor> batch = {uniform({4, 2}, 1), Tensor::of<int64_t>({4}, {0, 1, 1, 0})};
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    Session session = reference_session(model, options_for("sgd"));
    const std::vector<Tensor> before = {state(session, "w"), state(session, "t")};
    session.step(batch);
    EXPECT_FALSE(identical(state(session, "w"), before[0]));
    EXPECT_FALSE(identical(state(session, "t"), before[1]));
    EXPECT_EQ(session.state().find("mean"), nullptr);
    EXPECT_EQ(session.state().find("triu"), nullptr);
    model = import_model_bytes(export_model_bytes(session.trained_model()), "trained");
  }
}

TEST(TrainedModel, TrainsAgainWhatWasTrainedWhereNothingIsDeclared) {
  // t is a scalar that --trainable named at first; the mask is folded from parts that nobody
  // trains, and cold is frozen.
  Model model = parse_model(R"(<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x) => (float[N,2] y) <
   float[2,2] w = {0.5, -0.25, 0.25, 0.5}, float[2] cold = {0.5, 0.25}, float t = {2},
   bool[2] hidden = {0, 1}
> {
   zero = Constant <value = float {0}> ()
   much = Constant <value = float {-1e9}> ()
   mask = Where (hidden, much, zero)
   c = Sub (x, cold)
   p = MatMul (c, w)
   d = Div (p, t)
   y = Add (d, mask)
})",
                            "old.onnxtxt");
  CompileOptions options = options_for("sgd");
  options.train.frozen = {"cold"};
  const std::vector<Tensor> batch = {uniform({4, 2}, 1), Tensor::of<int64_t>({4}, {0, 0, 0, 0})};
  std::vector<std::string> weights;
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    options.train.trainable =
        round == 0 ? std::vector<std::string>{"w", "t"} : std::vector<std::string>{};
    Session session = reference_session(model, options);
    std::vector<std::string> now;
    for (const StateEntry& entry : session.state().entries()) {
      if (entry.kind == StateKind::kWeight) now.push_back(entry.name);
    }
    if (round == 0) weights = now;
    EXPECT_EQ(now, weights);
    session.step(batch);
    model = import_model_bytes(export_model_bytes(session.trained_model()), "trained");
    EXPECT_THAT(model.metadata.at("halfnote.parameters"), testing::HasSubstr("cold\n"));
  }
  EXPECT_EQ(weights.size(), 2u);
  options.train.frozen.clear();
  const Session thawed = reference_session(model, options);
  EXPECT_NE(thawed.state().find("cold"), nullptr);
}

/// Equal parameters that are frozen are not one, and of a frozen matrix nothing is computed:
/// trained on, the model has all it had.
TEST(TrainedModel, HasWhatWasFrozenAsItIs) {
  const Model model = parse_model(R"(<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x) => (float[N,2] y) <
   float[2,2] first = {0.5, -0.25, 0.25, 0.5}, float[2] s1 = {1, 1}, float[2] s2 = {1, 1},
   float[2,2] last = {0.5, 0.25, -0.5, 1}
> {
   f = Transpose <perm = [1, 0]> (first)
   a = MatMul (x, f)
   b = Mul (a, s1)
   t = Tanh (b)
   c = Mul (t, s2)
   y = MatMul (c, last)
})",
                                  "old.onnxtxt");
  CompileOptions options = options_for("sgd");
  options.train.frozen = {"first", "s1", "s2"};
  Session session = reference_session(model, options);
  session.step({uniform({4, 2}, 1), Tensor::of<int64_t>({4}, {0, 1, 0, 1})});
  const Model trained = import_model_bytes(export_model_bytes(session.trained_model()), "trained");
  options.train.frozen.clear();
  const Session thawed = reference_session(trained, options);
  for (const char* name : {"first", "s1", "s2", "last"})
    EXPECT_NE(thawed.state().find(name), nullptr) << name;
}

/// The warnings of a compilation that speak of dropout.
std::vector<std::string> words_on_dropout(const Model& model, const CompileOptions& options) {
  std::vector<std::string> found;
  for (const Remark& remark : compile_model(model, options).remarks) {
    const bool says = remark.text.find("dropout") != std::string::npos;
    if (says && remark.level == Remark::Level::kWarning) found.push_back(remark.text);
  }
  return found;
}

TEST(TrainedModel, SaysThatItsDropoutIsGoneWhenItIsTrainedAgain) {
  const CompileOptions options = options_for("sgd");
  EXPECT_TRUE(words_on_dropout(cnn_model(), options).empty());
  Model model = cnn_model();
  for (int round = 0; round < 2; ++round) {  // what the second run exports says it, too
    SCOPED_TRACE(round);
    const Session session = reference_session(model, options);
    model = import_model_bytes(export_model_bytes(session.trained_model()), "trained");
    EXPECT_EQ(model.metadata.at("halfnote.dropouts"), "1");
    EXPECT_THAT(words_on_dropout(model, options),
                testing::ElementsAre(testing::HasSubstr("Dropout nodes: 1")));
  }
  CompileOptions inference = options;
  inference.inference_only = true;
  EXPECT_TRUE(words_on_dropout(model, inference).empty());
  const Session plain = reference_session(mlp_model(), options);
  EXPECT_FALSE(plain.trained_model().metadata.contains("halfnote.dropouts"));
}

TEST(TrainedModel, AsTrainedKeepsItsTypes) {
  const Model model = trained(DType::kBF16).trained_model(TrainedForm::kAsTrained);
  EXPECT_NO_THROW(check_model(model));
  EXPECT_TRUE(runs_in(model.graph, "Conv", DType::kBF16));
  EXPECT_TRUE(model.metadata.contains("halfnote.policy"));
}

TEST(ToF32, KeepsTablesAndTheModelsOwnCasts) {
  // 0.1 is of a table that the step rounds to bf16; the model's own trip through f16 stays.
  Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[N,4] x) => (float[N,4] y, float[N,4] z)
<float[4,4] w = {1.0, 0.5, 0.25, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3},
 float[4] c = {0.1, 0.2, 0.3, 0.4}> {
  m = MatMul (x, w)
  y = Add (m, c)
  h = Cast <to = 10> (x)
  z = Cast <to = 1> (h)
})",
                            "g.onnxtxt");
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  options.policy.cost_refinement = false;
  options.inference_only = true;
  Model mixed = compile_model(std::move(model), options).model;
  ASSERT_TRUE(runs_in(mixed.graph, "MatMul", DType::kBF16));
  to_f32(mixed.graph);
  EXPECT_TRUE(runs_in(mixed.graph, "MatMul", DType::kF32));
  EXPECT_EQ(find_nodes(mixed.graph, "Cast").size(), 2u);
  EXPECT_EQ(mixed.graph.value(mixed.graph.outputs()[0]).name, "y");
  EXPECT_EQ(mixed.graph.value(mixed.graph.outputs()[1]).name, "z");
  EXPECT_NO_THROW(check_model(mixed));
  const NodeId product = find_nodes(mixed.graph, "MatMul").front();
  const Tensor& w = mixed.graph.value(mixed.graph.input(product, 1)).tensor;
  ASSERT_EQ(w.dtype(), DType::kF32);
  EXPECT_EQ(w.at_as_double(3), double{0.1f});
  EXPECT_EQ(mixed.graph.value(mixed.graph.input(product, 1)).name, "w");
}

TEST(ToF32, KeepsTheSymbolsThatTheModelGave) {
  // No rule knows that (4·batch, 2) reshaped to (?, 4, 2) is (batch, 4, 2).
  const Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[batch,8] x) => (float[batch,4,3] y) <
   float[2,3] w = {0.5, -0.25, 0.25, 0.5, 0.125, 0.5}, int64[2] a = {-1, 2}, int64[3] b = {-1, 4, 2}
> {
   float["4*batch",2] f = Reshape (x, a)
   t = Tanh (f)
   float[batch,4,2] r = Reshape (t, b)
   y = MatMul (r, w)
})",
                                  "symbols.onnxtxt");
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(short_name(precision));
    const Session session = reference_session(model, options_for("sgd", precision));
    const Model trained = session.trained_model();
    EXPECT_EQ(to_string(trained.graph.value(trained.graph.outputs()[0]).type), "float[batch,4,3]");
  }
}

TEST(ToF32, CastsThe16BitInputsOfTheModel) {
  const Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float16[N,4] x) => (float16[N,2] y) <
   float16[4,2] w = {0.5, -0.25, 0.25, 0.5, 0.125, 0.5, -0.5, 0.25}
> {
   t = Transpose <perm = [1, 0]> (x)
   u = Transpose <perm = [1, 0]> (t)
   r = Tanh (u)
   y = MatMul (r, w)
})",
                                  "half.onnxtxt");
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    const Session session = reference_session(model, options_for("sgd", precision));
    const Model trained = session.trained_model();
    EXPECT_NO_THROW(check_model(trained));
    EXPECT_TRUE(runs_in(trained.graph, "MatMul", DType::kF32));
    const Tensor x = uniform({3, 4}, 1).cast_to(DType::kF16);
    const Tensor y = logits_of(trained, x);
    for (int64_t line = 0; line < 3; ++line) {
      double want = 0;
      const double w[] = {0.5, 0.25, 0.125, -0.5};
      for (int64_t i = 0; i < 4; ++i) want += std::tanh(x.at_as_double(line * 4 + i)) * w[i];
      EXPECT_NEAR(y.at_as_double(line * 2), want, 0x1p-10) << "one rounding of y to f16";
    }
  }
}

TEST(ToF32, LeavesAnF32GraphAlone) {
  const Model model = compile_model(cnn_model(), options_for("sgd")).model;
  Graph graph = model.graph;
  to_f32(graph);
  EXPECT_EQ(graph.nodes().size(), model.graph.nodes().size());
  const Tensor x = cnn_batch(3, 1)[0];
  EXPECT_TRUE(identical(evaluate(graph, {x})[0], evaluate(model.graph, {x})[0]));
}

}  // namespace
}  // namespace halfnote::test
