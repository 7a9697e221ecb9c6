// Files that are no valid models: each is refused with the reason, none does harm.
#include "compiler/onnx/schema.h"
#include "tests/onnx/support.h"

namespace halfnote {
namespace {

using wire::Message;

/// Asks the schemas about every node; only Error may come out.
void infer_all(Model& model) {
  const auto opset = model.opsets.find("");
  if (opset == model.opsets.end()) return;
  for (NodeId node : model.graph.nodes()) {
    try {
      infer_with_schema(model.graph, node, opset->second);
      check_node(model.graph, node, opset->second);
    } catch (const Error& error) {
      EXPECT_NE(error.place().op, "") << error.what();
    }
  }
}

/// Reads anything; only Error may come out. Returns whether it was accepted.
bool survives(const std::string& bytes) {
  try {
    Model model = import_text_bytes(bytes);
    export_model_bytes(model);  // what was accepted must be consistent enough to be written
    infer_all(model);
    return true;
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal) << error.what();
    EXPECT_EQ(error.place().file.empty() || error.place().file == "test.onnx", true);
    return false;
  }
}

/// A small model that has one of everything.
std::string rich_model() {
  const Message branch = Message()
                             .text(wire::kGraphName, "b")
                             .message(wire::kNode, wire::node("Relu", {"x"}, {"t"}))
                             .message(wire::kOutput, wire::value_info("t", DType::kF32, {2}));
  const Message choose =
      Message(wire::node("If", {"c"}, {"z"}, "if"))
          .message(wire::kAttribute, wire::graph_attribute("then_branch", branch))
          .message(wire::kAttribute, wire::graph_attribute("else_branch", branch));
  const Message graph =
      wire::add_graph(wire::raw_tensor("w", DType::kF32, {2}, wire::raw_of<float>({1, 2})))
          .message(wire::kNode, choose)
          .message(wire::kNode, Message(wire::node("twice", {"y"}, {"v"})).text(7, "d"))
          .message(wire::kInput, wire::value_info("c", DType::kBool, {}))
          .message(wire::kOutput, wire::value_info("z", DType::kF32, {"N"}));
  const Message function = Message()
                               .text(1, "twice")
                               .text(4, "a")
                               .text(5, "r")
                               .message(7, wire::node("Add", {"a", "a"}, {"r"}))
                               .message(9, Message().text(1, "").number(2, 17))
                               .text(10, "d");
  const Message algorithm = Message()
                                .text(wire::kGraphName, "s")
                                .message(wire::kNode, wire::node("Neg", {"w"}, {"w2"}))
                                .message(wire::kOutput, wire::value_info("w2", DType::kF32, {2}));
  return wire::model_header()
      .message(8, Message().text(1, "d").number(2, 1))
      .message(7, graph)
      .message(wire::kTrainingInfo,
               Message().message(2, algorithm).message(4, wire::entry("w", "w2")))
      .message(wire::kFunction, function)
      .bytes();
}

TEST(Malformed, TheSeedItselfIsValid) { EXPECT_TRUE(survives(rich_model())); }

TEST(Malformed, TruncationAtEveryByte) {
  const std::string bytes = rich_model();
  for (size_t length = 0; length < bytes.size(); ++length) survives(bytes.substr(0, length));
}

TEST(Malformed, EverySingleBitFlipped) {
  const std::string bytes = rich_model();
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    survives(changed);
  }
}

/// Changes, removes or inserts a few bytes (in place: changes only); the numbers come from `state`
/// alone.
std::string edited(std::string bytes, uint64_t& state, bool in_place = false) {
  const auto next = [&] {
    return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
  };
  const uint64_t edits = 1 + next() % 4;
  for (uint64_t i = 0; i < edits && !bytes.empty(); ++i) {
    const size_t at = next() % bytes.size();
    switch (in_place ? 0 : next() % 3) {
      case 0:
        bytes[at] = static_cast<char>(next());
        break;
      case 1:
        bytes.erase(at, 1 + next() % 4);
        break;
      default:
        bytes.insert(at, 1 + next() % 3, static_cast<char>(next()));
    }
  }
  return bytes;
}

TEST(Malformed, RandomEdits) {
  uint64_t state = 1;
  for (int round = 0; round < 20'000; ++round) survives(edited(rich_model(), state));
}

TEST(Malformed, RandomEditsOfRealModels) {
  for (const char* name : {"gcn", "dlrm"}) {
    std::ifstream file(
        std::string(HALFNOTE_SOURCE_DIR "/tests/fixtures/models/") + name + "/model.onnx",
        std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    ASSERT_TRUE(survives(bytes));
    uint64_t state = 2;
    for (int round = 0; round < 1500; ++round) survives(edited(bytes, state, round % 4 != 0));
  }
}

struct BadModel {
  const char* name;
  std::string bytes;
  const char* says;
  ErrorCode code = ErrorCode::kModel;
};

Message with_nodes(std::initializer_list<Message> nodes) {
  Message graph = Message().text(wire::kGraphName, "g");
  for (const Message& node : nodes) graph.message(wire::kNode, node);
  return graph.message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
      .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
}
std::string with_attribute(const Message& attribute) {
  return wire::model(with_nodes({Message(wire::node("LeakyRelu", {"x"}, {"y"}, "leaky"))
                                     .message(wire::kAttribute, attribute)}));
}
std::string nested(int levels) {
  Message graph = wire::relu_graph();
  for (int i = 1; i < levels; ++i) {
    graph = Message().message(wire::kNode,
                              Message(wire::node("If", {}, {}))
                                  .message(wire::kAttribute, wire::graph_attribute("b", graph)));
  }
  return wire::model(graph);
}
std::string typed(const Message& type) {
  return wire::model(Message(wire::relu_graph())
                         .message(wire::kValueInfo, Message().text(1, "q").message(2, type))
                         .message(wire::kInput, Message().text(1, "q").message(2, type)));
}
Message sequence_of(int levels) {
  Message type = wire::type(DType::kF32, {2});
  for (int i = 1; i < levels; ++i) type = Message().message(4, Message().message(1, type));
  return type;
}

class BadModels : public testing::TestWithParam<BadModel> {};

TEST_P(BadModels, IsRefusedWithTheReason) {
  const Error error = import_error(GetParam().bytes);
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_EQ(error.place().file, "test.onnx");
  EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().says));
}

const std::string kValidModel = wire::model(wire::relu_graph());

INSTANTIATE_TEST_SUITE_P(
    Wire, BadModels,
    testing::Values(
        BadModel{"Empty", "", "it is empty"},
        BadModel{"NotOnnx", "PK\3\4 this is a zip file", "not a valid ONNX file"},
        BadModel{"NumberTooLong", std::string("\x08") + std::string(11, '\xff'), "too long"},
        BadModel{"NumberCut", "\x08\xff", "ends too early"},
        BadModel{"LengthTooBig", std::string("\x3a\xff\xff\xff\xff\x07", 6),
                 "longer than what holds it"},
        BadModel{"GroupTag", std::string("\x0b\x0c", 2), "wire type"},
        BadModel{"FieldZero", std::string("\x00\x01", 2), "field number"},
        BadModel{"NoGraph", wire::model_header().bytes(), "no graph"},
        BadModel{"NameNotUtf8",
                 wire::model(with_nodes({wire::node("Relu", {"x"}, {"y"}, "\xff\xfe")})), "UTF-8"}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Versions, BadModels,
    testing::Values(
        BadModel{"IrTooOld", wire::model(wire::relu_graph(), 7, 2), "IR version",
                 ErrorCode::kUnsupported},
        BadModel{"IrTooNew", wire::model(wire::relu_graph(), 23, 99), "got 99",
                 ErrorCode::kUnsupported},
        BadModel{"OpsetTooOld", wire::model(wire::relu_graph(), 0), "expected 1 to",
                 ErrorCode::kUnsupported},
        BadModel{"OpsetTooNew", wire::model(wire::relu_graph(), 1000), "got 1000",
                 ErrorCode::kUnsupported},
        BadModel{"OpsetNegative", wire::model(wire::relu_graph(), -1), "got -1",
                 ErrorCode::kUnsupported},
        BadModel{"OpsetTwice",
                 wire::model_header()
                     .message(8, Message().number(2, 17))
                     .message(7, wire::relu_graph())
                     .bytes(),
                 "imported twice"},
        BadModel{"NoOpset", Message().number(1, 8).message(7, wire::relu_graph()).bytes(),
                 "node \"relu\" (Relu): the model does not import the op-set of \"ai.onnx\""}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Structure, BadModels,
    testing::Values(
        BadModel{
            "Cycle",
            wire::model(with_nodes({wire::node("Add", {"x", "b"}, {"a"}, "one"),
                                    wire::node("Relu", {"a"}, {"b"}, "two"),
                                    wire::node("Neg", {"b"}, {"y"}, "three")})),
            "the graph has a cycle: expected an acyclic graph, got \"two\" <- \"one\" <- \"two\""},
        BadModel{"SelfLoop", wire::model(with_nodes({wire::node("Add", {"x", "y"}, {"y"}, "n")})),
                 "cycle"},
        BadModel{"MissingInput", wire::model(with_nodes({wire::node("Relu", {"xx"}, {"y"}, "n")})),
                 "node \"n\" (Relu): input \"xx\" is not defined; did you mean \"x\"?"},
        BadModel{"MissingOutput", wire::model(with_nodes({wire::node("Relu", {"x"}, {"z"}, "n")})),
                 "graph output \"y\" is not defined"},
        BadModel{"NameTwice",
                 wire::model(with_nodes({wire::node("Relu", {"x"}, {"y"}, "n"),
                                         wire::node("Neg", {"x"}, {"y"}, "m")})),
                 "node \"m\" (Neg): the name \"y\" is defined twice: expected a name of its own "
                 "for every value, got a result of node \"n\" and a result of node \"m\""},
        BadModel{"NodeAndInitializerBeforeItsReader",
                 wire::model(with_nodes({wire::node("Add", {"x", "w"}, {"a"}, "n"),
                                         wire::node("Relu", {"a"}, {"w"}, "m"),
                                         wire::node("Neg", {"w"}, {"y"}, "o")})
                                 .message(wire::kInitializer,
                                          wire::raw_tensor("w", DType::kF32, {1}, "aaaa"))),
                 "the name \"w\" is defined twice: expected a name of its own for every value, got "
                 "an initializer and a result of node \"m\""},
        BadModel{"ResultNamedAsInput",
                 wire::model(with_nodes({wire::node("Relu", {"x"}, {"x"}, "n")})),
                 "the name \"x\" is defined twice: expected a name of its own for every value, got "
                 "a graph input and a result of node \"n\""},
        BadModel{"InputTwice",
                 wire::model(wire::relu_graph().message(wire::kInput,
                                                        wire::value_info("x", DType::kF32, {2}))),
                 "graph input \"x\" stands twice"},
        BadModel{"OutputTwice",
                 wire::model(wire::relu_graph().message(wire::kOutput,
                                                        wire::value_info("y", DType::kF32, {2}))),
                 "graph output \"y\" stands twice"},
        BadModel{"InitializerTwice",
                 wire::model(wire::add_graph(wire::raw_tensor("w", DType::kF32, {1}, "aaaa"))
                                 .message(wire::kInitializer,
                                          wire::raw_tensor("w", DType::kF32, {1}, "aaaa"))),
                 "\"w\" is defined twice: expected a name of its own for every value, got an "
                 "initializer and an initializer"},
        BadModel{"NoOperator", wire::model(with_nodes({wire::node("", {"x"}, {"y"}, "n")})),
                 "a node has no operator"},
        BadModel{"InputWithoutName",
                 wire::model(wire::relu_graph().message(wire::kInput,
                                                        wire::value_info("", DType::kF32, {2}))),
                 "a graph input has no name"},
        BadModel{
            "CaptureOfMissing",
            wire::model(with_nodes(
                {Message(wire::node("If", {"x"}, {"y"}, "n"))
                     .message(wire::kAttribute,
                              wire::graph_attribute(
                                  "then_branch",
                                  Message().message(wire::kNode,
                                                    wire::node("Abs", {"no"}, {"q"}, "inner"))))})),
            "node \"inner\" (Abs): input \"no\" is not defined"},
        BadModel{"TooDeep", nested(17), "nesting of graphs is over the limit: expected at most 16"},
        BadModel{"MuchTooDeep", nested(500), "nesting of graphs"}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    TypesAndShapes, BadModels,
    testing::Values(
        BadModel{"NegativeDim", typed(wire::type(DType::kF32, {-1})), "value \"q\": bad dim"},
        BadModel{"HugeDim", typed(wire::type(DType::kF32, {int64_t{1} << 62})),
                 "size of a dim is over"},
        BadModel{"DimOverTheLimit", typed(wire::type(DType::kF32, {(int64_t{1} << 40) + 1})),
                 "the size of a dim is over the limit: expected at most 1099511627776, got "
                 "1099511627777"},
        BadModel{"Rank9", typed(wire::type(DType::kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1})), "rank"},
        BadModel{"Type99", typed(wire::type(static_cast<DType>(99), {1})), "unknown element type"},
        BadModel{"Opaque", typed(Message().message(7, Message().text(1, "d"))), "opaque",
                 ErrorCode::kUnsupported},
        BadModel{"DeepType", typed(sequence_of(17)), "nesting of types"}),
    row_name);

INSTANTIATE_TEST_SUITE_P(
    Attributes, BadModels,
    testing::Values(
        BadModel{"Twice",
                 wire::model(with_nodes(
                     {Message(wire::node("LeakyRelu", {"x"}, {"y"}, "n"))
                          .message(wire::kAttribute, wire::float_attribute("alpha", 1))
                          .message(wire::kAttribute, wire::float_attribute("alpha", 2))})),
                 "attribute \"alpha\" stands twice"},
        BadModel{"NoType", with_attribute(Message().text(1, "alpha").f32(2, 1)), "has no type"},
        BadModel{"WrongType", with_attribute(Message().text(1, "alpha").f32(2, 1).number(20, 7)),
                 "expected ints, got float"},
        BadModel{"TwoValues",
                 with_attribute(Message().text(1, "alpha").f32(2, 1).number(3, 1).number(20, 1)),
                 "values of several types"},
        BadModel{"NoTensor", with_attribute(Message().text(1, "alpha").number(20, 4)),
                 "got no value"},
        BadModel{"NoName", with_attribute(Message().f32(2, 1).number(20, 1)),
                 "an attribute has no name"},
        BadModel{"ReferenceOutsideOfFunction",
                 with_attribute(Message().text(1, "alpha").text(21, "a").number(20, 1)),
                 "refers to an attribute of a function"},
        BadModel{"ConstantTwice",
                 wire::model(with_nodes(
                     {Message(wire::node("Constant", {}, {"y"}, "n"))
                          .message(wire::kAttribute, wire::int_attribute("value_int", 1))
                          .message(wire::kAttribute, wire::float_attribute("value_float", 2))})),
                 "more than one value"},
        BadModel{"ConstantWithout",
                 wire::model(with_nodes({wire::node("Constant", {}, {"y"}, "n")})), "has no value"},
        BadModel{"ConstantWrongType",
                 wire::model(with_nodes({Message(wire::node("Constant", {}, {"y"}, "n"))
                                             .message(wire::kAttribute,
                                                      wire::int_attribute("value_float", 1))})),
                 "wrong type"},
        BadModel{"BadRole",
                 wire::model(with_nodes({Message(wire::node("Relu", {"x"}, {"y"}, "n"))
                                             .message(9, wire::entry("halfnote.role", "boss"))})),
                 "bad value of metadata \"halfnote.role\""}),
    row_name);

struct Limit {
  const char* name;
  void (*set)(ImportLimits&, uint64_t);
  uint64_t exact;  // the smallest limit under which the seed is accepted
};

class Limits : public testing::TestWithParam<Limit> {};

TEST_P(Limits, HoldExactly) {
  const auto read = [](uint64_t limit) {
    ImportOptions options;
    GetParam().set(options.limits, limit);
    import_text_bytes(rich_model(), options);
  };
  EXPECT_NO_THROW(read(GetParam().exact));
  const Error error = error_of([&] { read(GetParam().exact - 1); });
  EXPECT_EQ(error.code(), ErrorCode::kModel);
  EXPECT_THAT(error.what(), testing::HasSubstr("over the limit"));
}

INSTANTIATE_TEST_SUITE_P(
    Table, Limits,
    testing::Values(
        Limit{"FileBytes", [](ImportLimits& l, uint64_t n) { l.file_bytes = n; },
              rich_model().size()},
        Limit{"Nesting", [](ImportLimits& l, uint64_t n) { l.graph_nesting = static_cast<int>(n); },
              2},
        Limit{"Nodes", [](ImportLimits& l, uint64_t n) { l.nodes = n; }, 7},
        Limit{"Operands", [](ImportLimits& l, uint64_t n) { l.node_operands = n; }, 2},
        Limit{"Attributes", [](ImportLimits& l, uint64_t n) { l.attributes = n; }, 2},
        Limit{"Initializers", [](ImportLimits& l, uint64_t n) { l.initializers = n; }, 1},
        Limit{"NameBytes", [](ImportLimits& l, uint64_t n) { l.name_bytes = n; }, 11},
        Limit{"Dim", [](ImportLimits& l, uint64_t n) { l.dim = static_cast<int64_t>(n); }, 2},
        Limit{"Rank", [](ImportLimits& l, uint64_t n) { l.rank = static_cast<int>(n); }, 1},
        Limit{"Elements", [](ImportLimits& l, uint64_t n) { l.elements = static_cast<int64_t>(n); },
              2}),
    [](const auto& row) { return row.param.name; });

TEST(Limits, ADimMayHaveTwoToTheFortieth) {
  EXPECT_NO_THROW(import_text_bytes(typed(wire::type(DType::kF32, {int64_t{1} << 40}))));
}

/// The text form of a model with one of everything that a limit counts.
constexpr const char* kText = R"(<ir_version: 10, opset_import: ["" : 23, "d" : 1]>
g (float[2] x, bool c, seq(seq(float)) s) => (float[N] z) <float[2] w = {1, 2}> {
  y = Add (x, w)
  v = d.twice (y)
  z = If (c) <then_branch = a () => (t) { t = Relu (x) }, else_branch = b () => (u) { u = Neg (v) }>
}
<opset_import: ["" : 23], domain: "d">
twice (p) => (r) { r = Add (p, p) }
)";

TEST(Limits, HoldExactlyInTextToo) {
  const Limit rows[] = {
      {"FileBytes", [](ImportLimits& l, uint64_t n) { l.file_bytes = n; },
       std::string_view(kText).size()},
      {"Nesting", [](ImportLimits& l, uint64_t n) { l.graph_nesting = static_cast<int>(n); }, 2},
      {"Types", [](ImportLimits& l, uint64_t n) { l.type_nesting = static_cast<int>(n); }, 3},
      {"Nodes", [](ImportLimits& l, uint64_t n) { l.nodes = n; }, 6},
      {"Operands", [](ImportLimits& l, uint64_t n) { l.node_operands = n; }, 2},
      {"Attributes", [](ImportLimits& l, uint64_t n) { l.attributes = n; }, 2},
      {"Initializers", [](ImportLimits& l, uint64_t n) { l.initializers = n; }, 1},
      {"NameBytes", [](ImportLimits& l, uint64_t n) { l.name_bytes = n; }, 11},
      {"Dim", [](ImportLimits& l, uint64_t n) { l.dim = static_cast<int64_t>(n); }, 2},
      {"Rank", [](ImportLimits& l, uint64_t n) { l.rank = static_cast<int>(n); }, 1},
      {"Elements", [](ImportLimits& l, uint64_t n) { l.elements = static_cast<int64_t>(n); }, 2},
  };
  TempFolder folder;
  const auto path = folder.write("m.onnxtxt", kText);
  for (const Limit& row : rows) {
    SCOPED_TRACE(row.name);
    ImportOptions options;
    row.set(options.limits, row.exact);
    EXPECT_NO_THROW(import_model(path, options));
    row.set(options.limits, row.exact - 1);
    const Error error = error_of([&] { import_model(path, options); });
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_THAT(error.what(), testing::HasSubstr("over the limit"));
    EXPECT_THAT(error.what(), testing::HasSubstr("at most " + std::to_string(row.exact - 1)));
  }
}

TEST(MalformedErrors, NameAllThatIsKnown) {
  const Error error =
      import_error(wire::model(with_nodes({wire::node("Relu", {"missing"}, {"y"}, "n")})));
  EXPECT_EQ(error.place().file, "test.onnx");
  EXPECT_EQ(error.place().node, "n");
  EXPECT_EQ(error.place().op, "Relu");
}

TEST(MalformedErrors, FilesThatCannotBeRead) {
  TempFolder folder;
  EXPECT_EQ(error_of([&] { import_model(folder / "none.onnx"); }).code(), ErrorCode::kIo);
  EXPECT_EQ(error_of([&] { import_model(folder.path()); }).code(), ErrorCode::kIo);
  EXPECT_EQ(error_of([&] { import_model(folder.write("e.onnx", "")); }).code(), ErrorCode::kModel);
}

}  // namespace
}  // namespace halfnote
