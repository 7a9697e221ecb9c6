// The text of whole models: header, functions, training steps.
#include "tests/ir/support.h"

namespace halfnote {
namespace {

using testing::HasSubstr;

constexpr std::string_view kModel = R"(<
   ir_version: 10,
   opset_import: ["" : 23, "ai.halfnote" : 1],
   producer_name: "halfnote",
   producer_version: "0.1 \"x\"",
   domain: "org.example",
   model_version: 7,
   doc_string: "two\x0alines",
   metadata_props: ["a": "1", "halfnote.policy": "{}"]
>
main (float[N,2] x) => (float[N,2] y) <
   float[2,2] w = {1, 2, 3, 4},  # trainable
   float[3] v = {1, 2, 3}
> {
   float[N,2] y = MatMul (x, w)
}
<
   domain: "ai.halfnote",
   overload: "f32_2",
   opset_import: ["" : 23]
>
ReluGrad <beta, gamma, alpha: float = 0.5, axes: ints = [1, 2], none: ints = []> (float[N] dY, Y) => (dX) <
   float zero = {0}
> {  # name="body" doc="dY where Y > 0"
   [m] m = Greater (Y, zero)
   dX = Where <alpha: float = @alpha, beta = @beta> (m, dY, zero)
}
<
   domain: "",
   opset_import: []
>
"two words" (x) => (x) {
}
training_info accumulate {
   initialization: init () => (float[2,2] w_first, float s_first) {
      float[2,2] w_first = RandomNormal <shape: ints = [2, 2]> ()
      float s_first = Constant <value: tensor = float {1}> ()
   }
   initialization_binding: [w = w_first, "loss scale" = s_first]
   algorithm: train (float[N,2] x) => (float[2,2] w_new) <
      float[2,2] w = @w,  # trainable
      float "loss scale" = {1}  # scale=1
   > {
      float[2,2] w_new = ai.halfnote.SGD (w, x, "loss scale")  # role=optimizer
      state weight w -> w_new
      state scaler "loss scale" -> "loss scale"
   }
}
training_info apply {
   algorithm: "" () => () <
      float[3] v = {1, 2, 4}
   > {
   }
}
)";

TEST(TextModel, AllFieldsPrintAsWritten) {
  const Model model = parse_model(kModel, "m.onnxtxt");
  verify(model, {.code = ErrorCode::kModel});
  EXPECT_EQ(print(model), kModel);
}

TEST(TextModel, AllFieldsAreRead) {
  const Model model = parse_model(kModel, "m.onnxtxt");
  EXPECT_EQ(model.source, "m.onnxtxt");
  EXPECT_EQ(model.producer_version, "0.1 \"x\"");
  EXPECT_EQ(model.doc, "two\nlines");
  EXPECT_EQ(model.model_version, 7);
  EXPECT_EQ(model.metadata.at("halfnote.policy"), "{}");
  EXPECT_EQ(model.opsets.at("ai.halfnote"), 1);
  ASSERT_EQ(model.functions.size(), 2u);
  const Function& function = model.functions[0];
  EXPECT_EQ(function.domain + "." + function.name + ":" + function.overload,
            "ai.halfnote.ReluGrad:f32_2");
  EXPECT_EQ(function.attributes, (std::vector<std::string>{"beta", "gamma"}));
  ASSERT_EQ(function.default_attributes.size(), 3u);
  EXPECT_EQ(std::get<float>(function.default_attributes[0].second), 0.5f);
  EXPECT_EQ(function.body.name, "body");
  EXPECT_EQ(function.body.inputs().size(), 2u);
  const NodeId where = function.body.value(function.body.outputs()[0]).producer;
  EXPECT_TRUE(equal(*function.body.node(where).attributes.find("alpha"),
                    Attribute(AttributeReference{"alpha", 1})));
  EXPECT_TRUE(equal(*function.body.node(where).attributes.find("beta"),
                    Attribute(AttributeReference{"beta", 0})));
  ASSERT_EQ(model.training.size(), 2u);
  const TrainingStep& step = model.training[0];
  EXPECT_EQ(step.initialization_binding[1].first, "loss scale");
  EXPECT_EQ(step.graph.states().size(), 2u);
  EXPECT_EQ(step.graph.states()[0].kind, StateKind::kWeight);
  EXPECT_EQ(step.graph.value(step.graph.find("loss scale")).scale_power, 1);
}

TEST(TextModel, ReferencesToTheGraphShareItsBytes) {
  const Model model = parse_model(kModel, "m.onnxtxt");
  const Graph& step = model.training[0].graph;
  EXPECT_EQ(step.value(step.find("w")).tensor.bytes(),
            model.graph.value(model.graph.find("w")).tensor.bytes());
}

TEST(TextModel, PlainOnnxModelsAreRead) {
  const Model model = parse_model(R"(
    <
      ir_version: 8,
      opset_import: ["" : 17, "local" : 1],
      metadata_props: []
    >
    agraph (float[N] x) => (float[N] y) { y = local.f <alpha = 2.0> (x) }
    <opset_import: ["" : 17], domain: "local", doc_string: "says nothing here">
    f <alpha> (x) => (y) <float[N] t> {
      t = Elu <alpha: float = @alpha> (x)
      y = Neg (t)
    }
    g (a, float b) => (a) {}
  )",
                                  "plain");
  verify(model);
  EXPECT_EQ(model.functions.size(), 2u);
  EXPECT_EQ(model.functions[1].domain, "");
  const std::string text = print(model);
  EXPECT_EQ(print(parse_model(text, "again")), text);
  EXPECT_THAT(text, HasSubstr("   float[N] t = Elu <alpha: float = @alpha> (x)"));
}

TEST(TextModel, AModelNeedsNoHeader) {
  const Model model = parse_model("g (x) => (x) {}", "short");
  EXPECT_EQ(model.ir_version, kIrVersion);
  EXPECT_TRUE(model.opsets.empty());
}

TEST(TextModel, AFunctionMayBeCalledTrainingInfo) {
  const Model model = parse_model("g (x) => (x) {} training_info (a) => (a) {}", "f");
  ASSERT_EQ(model.functions.size(), 1u);
  EXPECT_EQ(model.functions[0].name, "training_info");
  EXPECT_TRUE(model.training.empty());
}

struct BadModelText {
  const char* text;
  const char* message;
};

class ModelErrors : public testing::TestWithParam<BadModelText> {};

TEST_P(ModelErrors, SayWhereAndWhat) {
  const std::string text = GetParam().text;
  EXPECT_THAT(error_of([&] { parse_model(text, "m"); }, ErrorCode::kModel),
              HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    TextModel, ModelErrors,
    testing::Values(
        BadModelText{"<ir_versio: 3> g () => () {}", "m:1:2: unknown key: expected ir_version"},
        BadModelText{"<ir_version: \"3\"> g () => () {}",
                     "m:1:14: syntax error: expected an integer"},
        BadModelText{"<ir_version: -3> g () => () {}", "m:1:14: an integer is out of range"},
        BadModelText{"<opset_import: [\"\" : 1, \"\" : 2]> g () => () {}", "is imported twice"},
        BadModelText{"<metadata_props: [\"a\": \"\", \"a\": \"\"]> g () => () {}",
                     "\"a\" is given twice"},
        BadModelText{"<> g () => () {}", "m:1:2: syntax error: expected ir_version"},
        BadModelText{"g () => () {} f <a, a> () => () {}", "the attribute \"a\" is given twice"},
        BadModelText{"g () => () {} f <a: int> () => () {}", "expected \"=\", got \">\""},
        BadModelText{"g () => () {} training_info s {}",
                     "m:1:15: a training step has no algorithm"},
        BadModelText{"g () => () {} training_info s { x: 1 }",
                     "m:1:33: syntax error: expected initialization"},
        BadModelText{
            "g () => () {} training_info s { algorithm: a () => () {} algorithm: a () => () {} }",
            "\"algorithm\" is given twice"},
        BadModelText{"g () => () {} training_info s { algorithm: a () => () <float w = @w> {} }",
                     "m:1:67: the model's graph has no initializer \"w\""},
        BadModelText{
            "g () => () <float[2] w = {1, 2}> {} training_info s { algorithm: a () => () <float w "
            "= "
            "@w> {} }",
            "the type of \"w\" is not that of \"w\""},
        BadModelText{"g () => () <float w = @w> {}",
                     "\"@\" is for the initializers of a training step"},
        BadModelText{"g () => () {} }",
                     "m:1:15: syntax error: expected the name of a function, got \"}\""},
        BadModelText{
            "", "m:1:1: syntax error: expected the name of a graph, got the end of the text"}));

TEST(TextModel, AFunctionHasNoGraphAsADefault) {
  EXPECT_THAT(error_of([] { parse_model("g () => () {} f <a = b () => () {}> () => () {}", "m"); },
                       ErrorCode::kUnsupported),
              HasSubstr("a function attribute cannot have a graph as its default"));
}

}  // namespace
}  // namespace halfnote
