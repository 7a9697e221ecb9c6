// The schema facade: inference on the IR, legality of nodes, tables, function bodies.
#include "compiler/onnx/schema.h"

#include "tests/onnx/support.h"

namespace halfnote {
namespace {

Dim sym(const char* name) { return Dim::named(name); }

/// A graph under construction whose nodes are inferred as they are made.
struct Bench {
  Graph graph;
  int inputs = 0;

  ValueId input(ValueType type) {
    return graph.add_input(graph.main(), "in" + std::to_string(inputs++), std::move(type));
  }
  ValueId ints(std::vector<int64_t> values) {
    return graph.add_initializer("ints", Tensor::of<int64_t>({static_cast<int64_t>(values.size())},
                                                             std::span<const int64_t>(values)));
  }
  NodeId node(NodeSpec spec, int outputs = 1) {
    return graph.create(std::move(spec), outputs, graph.end());
  }
  ValueId infer(NodeSpec spec, int64_t opset = kOpsetVersion) {
    const NodeId id = node(std::move(spec));
    infer_with_schema(graph, id, opset);
    return graph.output(id);
  }
  std::string type(NodeSpec spec, int64_t opset = kOpsetVersion) {
    return to_string(graph.value(infer(std::move(spec), opset)).type);
  }
  Error error(NodeSpec spec, int64_t opset = kOpsetVersion) {
    const NodeId id = node(std::move(spec));
    return error_of([&] { infer_with_schema(graph, id, opset); });
  }
  Error refused(NodeSpec spec, int outputs = 1) {
    const NodeId id = node(std::move(spec), outputs);
    return error_of([&] { check_node(graph, id); });
  }
};

TEST(Infer, CommonOperators) {
  Bench b;
  const ValueId image = b.input(floats({sym("N"), 3, 32, 32}));
  const ValueId kernel = b.input(floats({8, 3, 3, 3}));
  EXPECT_EQ(b.type({"Conv", {image, kernel}, {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}}),
            "float[N,8,32,32]");
  EXPECT_EQ(b.type({"MaxPool",
                    {image},
                    {{"kernel_shape", std::vector<int64_t>{2, 2}},
                     {"strides", std::vector<int64_t>{2, 2}}}}),
            "float[N,3,16,16]");
  const ValueId row = b.input(floats({sym("N"), 16})), weight = b.input(floats({10, 16}));
  EXPECT_EQ(b.type({"Gemm", {row, weight}, {{"transB", int64_t{1}}}}), "float[N,10]");
  EXPECT_EQ(b.type({"Cast", {row}, {{"to", int64_t{16}}}}), "bfloat16[N,16]");
  EXPECT_EQ(b.type({"Flatten", {image}}), "float[N,3072]");
  EXPECT_EQ(b.type({"Equal", {row, row}}), "bool[N,16]");
  EXPECT_EQ(b.type({"ReduceSum", {row, b.ints({1})}, {{"keepdims", int64_t{0}}}}), "float[N]");
}

/// What is inferred for `op` of these types, against the schema of op-set 13.
void expect_as_schema(const char* op, const ValueType& a, const ValueType& c) {
  Bench b;
  const NodeSpec call{op, {b.input(a), b.input(c)}};
  const NodeId one = b.node(call), other = b.node(call);
  std::string first, second;
  try {
    infer_with_schema(b.graph, one);
  } catch (const Error& error) {
    first = error.problem();
  }
  try {
    infer_with_schema(b.graph, other, 13);
  } catch (const Error& error) {
    second = error.problem();
  }
  EXPECT_EQ(first, second);
  first = to_string(b.graph.value(b.graph.output(one)).type);
  second = to_string(b.graph.value(b.graph.output(other)).type);
  EXPECT_EQ(first.substr(0, first.find('_')), second.substr(0, second.find('_')))
      << op << " " << to_string(a) << " " << to_string(c);
}

// Nodes of op-sets 14 to 23 that are inferred without the schema, against the same ones by the
// schema of op-set 13.
TEST(Infer, PlainOpsAsTheSchemaHasThem) {
  const ValueType scalar = floats({}), open = ValueType::tensor(DType::kF32);
  const std::vector<ValueType> types = {floats({sym("N"), 16}),
                                        floats({2, 1, 3}),
                                        floats({0}),
                                        scalar,
                                        floats({Dim(), 4}),
                                        open,
                                        floats({1, 16}),
                                        floats({sym("N"), 1}),
                                        ValueType::tensor(DType::kF64, {Dim(2), Dim(1), Dim(3)})};
  for (const ValueType& a : types) {
    for (const char* op : {"Abs", "Erf", "Exp", "Identity", "Log", "Neg", "Reciprocal", "Relu",
                           "Sigmoid", "Sqrt", "Tanh"}) {
      Bench b;
      const ValueId x = b.input(a);
      const std::string plain = b.type({op, {x}});
      const std::string by_schema = b.type({op, {x}}, 13);
      EXPECT_EQ(plain.substr(0, plain.find('_')), by_schema.substr(0, by_schema.find('_'))) << op;
    }
    for (int64_t to : {1, 7, 9, 10, 16}) {
      Bench b;
      const NodeSpec cast{"Cast", {b.input(a)}, {{"to", to}}};
      const std::string plain = b.type(cast), by_schema = b.type(cast, 13);
      EXPECT_EQ(plain.substr(0, plain.find('_')), by_schema.substr(0, by_schema.find('_'))) << to;
    }
  }
  for (const ValueType& a : types) {
    for (const ValueType& c : types) {
      if (a.shape && c.shape && a.rank() == 3 && c.rank() == 2) continue;  // do not broadcast
      if (a.shape && c.shape && a.rank() == 2 && c.rank() == 3) continue;
      for (const char* op : {"Add", "Sub", "Mul", "Div", "MatMul"}) {
        expect_as_schema(op, a, c);
      }
    }
  }
}

TEST(Infer, PlainBroadcastsAndProductsAsTheSchemaHasThem) {
  const auto n = sym("N"), m = sym("M");
  const std::pair<ValueType, ValueType> sums[] = {
      {floats({n, 16}), floats({16})},     {floats({16}), floats({n, 16})},
      {floats({2, n, 3}), floats({1, 3})}, {floats({2, n, 3}), floats({n, 1})},
      {floats({2, n, 3}), floats({n, 3})}, {floats({2, n, 3}), floats({m, 3})},
      {floats({Dim(), 4}), floats({4})},   {floats({Dim(), 4}), floats({1, 1})},
      {floats({0, 4}), floats({1, 4})},    {floats({1}), floats({0})},
      {floats({3, 1, 4}), floats({2, 4})}, {floats({3, 5}), floats({4})}};
  for (const auto& [a, c] : sums) {
    for (const char* op : {"Add", "Sub", "Mul", "Div"}) expect_as_schema(op, a, c);
  }
  const std::pair<ValueType, ValueType> products[] = {
      {floats({n, 16}), floats({16, 10})},
      {floats({2, n, 16}), floats({16, 10})},
      {floats({2, n, 16}), floats({2, 16, m})},
      {floats({Dim(), 16}), floats({16, n})},
      {floats({2, n}), floats({n, Dim()})},
      {floats({n, 16}), floats({8, 10})},
      {floats({n, 16}), floats({m, 10})},
      {floats({1, 3, 4}), floats({5, 4, 6})},
      {floats({3, 4}), floats({5, 4, 6})},
      {floats({4}), floats({4, 6})},
      {floats({0, 4}), floats({4, 0})},
      {ValueType::tensor(DType::kF64, {Dim(3), Dim(4)}), floats({4, 6})}};
  for (const auto& [a, c] : products) expect_as_schema("MatMul", a, c);
}

TEST(Infer, PlainConstantsAsTheSchemaHasThem) {
  const Tensor tensors[] = {Tensor::of<int64_t>({2, 0}, {}), Tensor::scalar(1.5f),
                            Tensor::full(DType::kBF16, {3, 1}, 2), Tensor::scalar(true),
                            Tensor::strings({2}, {"a", "b"})};
  for (const Tensor& tensor : tensors) {
    Bench b;
    const NodeSpec constant{"Constant", {}, {{"value", tensor}}};
    EXPECT_EQ(b.type(constant), b.type(constant, 13));
  }
  Bench b;
  EXPECT_EQ(b.type({"Constant", {}, {{"value_ints", std::vector<int64_t>{1, 2}}}}), "int64[2]");
  EXPECT_FALSE(b.error({"Constant", {}}).problem().empty());
}

TEST(Infer, PlainOpsThatTheSchemaRefuses) {
  Bench b;
  const ValueId x = b.input(floats({2}));
  EXPECT_FALSE(b.error({"Cast", {x}, {{"to", int64_t{99}}}}).problem().empty());
  EXPECT_FALSE(b.error({"Cast", {x}}).problem().empty());
  EXPECT_EQ(b.error({"Relu", {x, x}}).problem(), "wrong number of inputs");
  EXPECT_EQ(b.error({"Add", {x}}).problem(), "wrong number of inputs");
}

TEST(Infer, ReshapeByConstants) {
  Bench b;
  const ValueId x = b.input(floats({sym("N"), 64, 8, 8}));
  EXPECT_EQ(b.type({"Reshape", {x, b.ints({0, -1})}}), "float[N,4096]");
  EXPECT_EQ(b.type({"Reshape", {x, b.ints({-1, 4096})}}), "float[N,4096]");
  EXPECT_EQ(b.type({"Reshape", {x, b.ints({-1, 64, 64})}}), "float[N,64,64]");
  const ValueId y = b.input(floats({sym("N"), sym("S"), 768}));
  EXPECT_EQ(b.type({"Reshape", {y, b.ints({0, 0, 12, 64})}}), "float[N,S,12,64]");
  const ValueId known = b.input(floats({2, 6}));
  EXPECT_EQ(b.type({"Reshape", {known, b.ints({3, -1})}}), "float[3,4]");
}

TEST(Infer, OpenDimsAreNamedAfterTheirValue) {
  Bench b;
  const ValueId y = b.input(floats({sym("N"), sym("S"), 768}));
  const ValueId flat = b.infer({"Reshape", {y, b.ints({-1, 768})}});
  const std::string name = b.graph.value(flat).name + "_d0";
  EXPECT_EQ(to_string(b.graph.value(flat).type), "float[" + name + ",768]");
  EXPECT_EQ(b.type({"Relu", {flat}}), "float[" + name + ",768]");
}

TEST(Infer, ShapeArithmeticIsFollowed) {
  Bench b;
  const ValueId x = b.input(floats({sym("N"), sym("S"), 12, 64}));
  const ValueId shape = b.infer({"Shape", {x}});
  EXPECT_EQ(to_string(b.graph.value(shape).type), "int64[4]");
  const ValueId batch = b.infer({"Gather", {shape, b.ints({0})}});
  const ValueId sequence = b.infer({"Slice", {shape, b.ints({1}), b.ints({2})}});
  const ValueId goal =
      b.infer({"Concat", {batch, sequence, b.ints({768})}, {{"axis", int64_t{0}}}});
  EXPECT_EQ(b.type({"Reshape", {x, goal}}), "float[N,S,768]");
  EXPECT_EQ(b.type({"Expand", {b.input(floats({1, 1, 768})), goal}}), "float[N,S,768]");
}

TEST(Infer, LargeConstantsCostNothing) {
  Bench b;
  const Tensor big(DType::kI64, {100'000});
  const ValueId indices = b.graph.add_initializer("big", big);
  EXPECT_EQ(b.type({"Gather", {b.input(floats({5, 4})), indices}}), "float[100000,4]");
  EXPECT_EQ(b.type({"Constant", {}, {{"value", big}}}), "int64[100000]");
}

TEST(Infer, DeclaredAndInferredTypesAreJoined) {
  Bench b;
  const ValueId x = b.input(floats({sym("N"), 4}));
  const NodeId node = b.node({"Relu", {x}});
  Value& result = b.graph.value(b.graph.output(node));
  result.type = floats({8, sym("C")});
  infer_with_schema(b.graph, node);
  EXPECT_EQ(to_string(result.type), "float[8,4]") << "numbers win over symbols";
  result.type = floats({sym("M"), 4});
  infer_with_schema(b.graph, node);
  EXPECT_EQ(to_string(result.type), "float[N,4]") << "the dims of inputs win over declared symbols";
  for (const ValueType& wrong : {floats({sym("N"), 5}), floats({4}),
                                 ValueType::tensor(DType::kF16, SymbolicShape{sym("N"), 4})}) {
    result.type = wrong;
    const Error error = error_of([&] { infer_with_schema(b.graph, node); });
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_THAT(error.what(), testing::HasSubstr("has another type than declared: expected " +
                                                 to_string(wrong) + ", got float[N,4]"));
  }
}

TEST(Infer, ErrorsNameTheNode) {
  Bench b;
  const ValueId x = b.input(floats({2, 3})), y = b.input(floats({4, 5}));
  const Error mismatch = b.error({"MatMul", {x, y}, {}, "", "mm"});
  EXPECT_EQ(mismatch.code(), ErrorCode::kModel);
  EXPECT_EQ(mismatch.place().node, "mm");
  EXPECT_EQ(mismatch.place().op, "MatMul");
  EXPECT_THAT(b.error({"Relu", {x, y}}).what(), testing::HasSubstr("inputs: expected 1, got 2"));
  EXPECT_EQ(b.error({"NoSuchOp", {x}}).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(b.error({"Relu", {x}, {}, "some.domain"}).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(b.error({"Gelu", {x}}, 19).code(), ErrorCode::kUnsupported) << "Gelu came with 20";
  EXPECT_EQ(b.error({"Upsample", {x, y}}).code(), ErrorCode::kUnsupported) << "deprecated";
}

// Stride 0, kernels larger than the image and axes out of range have crashed other readers.
TEST(Infer, HostileAttributesAreErrors) {
  Bench b;
  const ValueId image = b.input(floats({1, 1, 4, 4})), kernel = b.input(floats({1, 1, 3, 3}));
  using Ints = std::vector<int64_t>;
  const std::vector<NodeSpec> specs = {
      {"MaxPool", {image}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{0, 0}}}},
      {"Conv", {image, kernel}, {{"strides", Ints{0, 0}}}},
      {"Conv", {image, kernel}, {{"dilations", Ints{1, 1, 1}}}},
      {"Conv", {image, kernel}, {{"pads", Ints{-9, -9, -9, -9}}}},
      {"Concat", {image}, {{"axis", int64_t{9}}}},
      {"Softmax", {image}, {{"axis", int64_t{-9}}}},
      {"Transpose", {image}, {{"perm", Ints{0, 0, 1, 2}}}},
      {"Transpose", {image}, {{"perm", Ints{0, 1, 2, 99}}}},
      {"Flatten", {image}, {{"axis", int64_t{7}}}},
      {"Gather", {image, kernel}, {{"axis", int64_t{5}}}},
      {"Squeeze", {image, b.ints({9})}},
      {"Unsqueeze", {image, b.ints({9, 9})}},
      {"Reshape", {image, b.ints({-1, -1})}},
      {"Reshape", {image, b.ints({3, 5})}},
      {"DepthToSpace", {image}, {{"blocksize", int64_t{0}}}},
  };
  for (const NodeSpec& spec : specs) {
    const NodeId id = b.node(spec);
    try {
      infer_with_schema(b.graph, id);
      const ValueType& type = b.graph.value(b.graph.output(id)).type;
      if (type.shape) {
        for (const Dim& dim : *type.shape) EXPECT_GE(dim.known() ? dim.value : 0, 0) << spec.op;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kModel) << error.what();
      EXPECT_EQ(error.place().op, spec.op);
    }
  }
}

TEST(Infer, NestedNodesMayBeInferredByTheCaller) {
  Bench b;
  const ValueId x = b.input(floats({2})),
                c = b.input(ValueType::tensor(DType::kBool, SymbolicShape{}));
  const auto branch = [&] {
    const RegionId region = b.graph.add_region(b.graph.main());
    const NodeId own =
        b.graph.create({"Own", {x}, {}, std::string(kHalfnoteDomain)}, 1, b.graph.end(region));
    b.graph.add_output(region, b.graph.output(own));
    return region;
  };
  const NodeId node = b.node({"If", {c}, {{"then_branch", branch()}, {"else_branch", branch()}}});
  int calls = 0;
  infer_with_schema(b.graph, node, kOpsetVersion, [&](Graph& graph, NodeId id) {
    ++calls;
    graph.value(graph.output(id)).type = graph.value(graph.input(id, 0)).type;
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(to_string(b.graph.value(b.graph.output(node)).type), "float[2]");
}

TEST(CheckNode, AcceptsWhatTheSchemaAllows) {
  Bench b;
  const ValueId x = b.input(floats({2, 3}));
  const ValueId half = b.input(ValueType::tensor(DType::kBF16, SymbolicShape{2, 3}));
  for (const NodeSpec& spec : std::vector<NodeSpec>{{"Add", {x, x}},
                                                    {"Relu", {half}},
                                                    {"Clip", {x, ValueId{}, b.input(floats({}))}},
                                                    {"Concat", {x, x, x}, {{"axis", int64_t{0}}}},
                                                    {"Pow", {x, half}}}) {
    const NodeId id = b.node(spec);
    EXPECT_NO_THROW(check_node(b.graph, id)) << spec.op;
  }
}

TEST(CheckNode, RefusesWithTheParameter) {
  Bench b;
  const ValueId x = b.input(floats({2, 3}));
  const ValueId i = b.input(ValueType::tensor(DType::kI64, SymbolicShape{2, 3}));
  const ValueId f16 = b.input(ValueType::tensor(DType::kF16, SymbolicShape{2, 3}));
  EXPECT_THAT(b.refused({"Add", {x, f16}}).what(),
              testing::HasSubstr("input \"B\" must have the type of \"A\": expected tensor(float), "
                                 "got tensor(float16)"));
  EXPECT_THAT(b.refused({"Max", {x, i}}).what(), testing::HasSubstr("must have the type of"));
  EXPECT_THAT(b.refused({"Sigmoid", {i}}).what(),
              testing::HasSubstr("input \"X\" has a type that the operator does not take"));
  EXPECT_THAT(b.refused({"Softmax", {x}, {{"axes", int64_t{1}}}}).what(),
              testing::HasSubstr("no attribute \"axes\"; did you mean \"axis\"?"));
  EXPECT_THAT(b.refused({"Softmax", {x}, {{"axis", 1.0f}}}).what(),
              testing::HasSubstr("expected int, got float"));
  EXPECT_THAT(b.refused({"Concat", {x}}).what(), testing::HasSubstr("\"axis\" is missing"));
  EXPECT_THAT(b.refused({"Add", {x}}).what(), testing::HasSubstr("wrong number of inputs"));
  EXPECT_THAT(b.refused({"Add", {x, ValueId{}}}).what(), testing::HasSubstr("\"B\" is missing"));
  EXPECT_THAT(b.refused({"Relu", {x}}, 2).what(), testing::HasSubstr("wrong number of outputs"));
  EXPECT_EQ(b.refused({"NoSuchOp", {x}}).code(), ErrorCode::kUnsupported);
}

TEST(CheckNode, KnowsTheHolesOfSixteenBit) {
  Bench b;
  const ValueId x = b.input(ValueType::tensor(DType::kBF16, SymbolicShape{1, 1, 4, 4}));
  const NodeId conv = b.node({"Conv", {x, x}});
  EXPECT_NO_THROW(check_node(b.graph, conv, 22));
  EXPECT_THAT(error_of([&] { check_node(b.graph, conv, 21); }).what(),
              testing::HasSubstr("tensor(bfloat16)"));
}

const SchemaOp& op_named(std::string_view name) {
  for (const SchemaOp& op : all_schema_ops()) {
    if (op.domain.empty() && op.name == name) return op;
  }
  ADD_FAILURE() << name;
  return all_schema_ops().front();
}

TEST(Tables, HoldAllOperators) {
  EXPECT_GT(all_schema_ops().size(), 200u);
  EXPECT_TRUE(std::is_sorted(all_schema_ops().begin(), all_schema_ops().end(),
                             [](const SchemaOp& a, const SchemaOp& b) {
                               return std::pair(a.domain, a.name) < std::pair(b.domain, b.name);
                             }));
  EXPECT_TRUE(has_schema("", "Relu"));
  EXPECT_FALSE(has_schema("", "Gelu", 19));
  EXPECT_TRUE(has_schema("", "Gelu", 20));
  EXPECT_TRUE(has_schema("ai.onnx.preview.training", "Adam"));
  EXPECT_FALSE(has_schema(kHalfnoteDomain, "MatMul"));
  EXPECT_EQ(newest_opset("no.such.domain"), 0);
  EXPECT_GE(newest_opset(""), kOpsetVersion);
}

TEST(Tables, DescribeParametersAndVersions) {
  const SchemaOp& conv = op_named("Conv");
  const auto allows_bf16 = [](const SchemaVersion* version) {
    const auto& dtypes = version->inputs.at(0).dtypes;
    return std::find(dtypes.begin(), dtypes.end(), DType::kBF16) != dtypes.end();
  };
  EXPECT_FALSE(allows_bf16(conv.in(21)));
  EXPECT_TRUE(allows_bf16(conv.in(22)));
  EXPECT_EQ(conv.in(23)->since, 22);
  EXPECT_EQ(conv.in(0), nullptr);
  EXPECT_EQ(conv.in(23)->inputs.at(2).option, ParameterOption::kOptional);
  EXPECT_EQ(op_named("Concat").in(23)->inputs.at(0).option, ParameterOption::kVariadic);
  EXPECT_EQ(op_named("Relu").in(23)->inputs.at(0).differentiable, true);
  EXPECT_TRUE(op_named("Gelu").in(23)->has_function);
  EXPECT_TRUE(op_named("Upsample").in(23)->deprecated);
}

// ONNX's own inference makes it -1, and writes to the dim before the first one.
TEST(Infer, AnAxisThatIsNoIntIsRefused) {
  Bench b;
  const ValueId x = b.input(floats({2, 3})), scale = b.input(floats({3}));
  for (const int64_t axis : {std::numeric_limits<int64_t>::max(), int64_t{1} << 31}) {
    const NodeId norm = b.node({"LayerNormalization", {x, scale}, {{"axis", axis}}}, 3);
    const Error error = error_of([&] { infer_with_schema(b.graph, norm); });
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_EQ(error.problem(), "attribute \"axis\" is out of range");
  }
}

// ONNX's own inference would read dims before the first one.
TEST(Infer, BatchDimsOfGatherNDMustNotBeNegative) {
  Bench b;
  const ValueId x = b.input(floats({2, 3})),
                places = b.input(ValueType::tensor(DType::kI64, SymbolicShape{Dim(4), Dim(2)}));
  const Error error = b.error({"GatherND", {x, places}, {{"batch_dims", int64_t{-3}}}});
  EXPECT_EQ(error.code(), ErrorCode::kModel);
  EXPECT_EQ(error.problem(), "attribute \"batch_dims\" is out of range");
}

TEST(Tables, Defaults) {
  const Attributes defaults = default_attributes("", "Gemm");
  EXPECT_EQ(defaults.get_float("alpha", 0), 1.0f);
  EXPECT_EQ(defaults.get_int("transB", 7), 0);
  EXPECT_TRUE(default_attributes("", "NoSuchOp").empty());
}

TEST(FunctionBody, DefaultsAreFilledIn) {
  Bench b;
  const NodeId swish = b.node({"Swish", {b.input(floats({2}))}});
  const auto body = schema_function_body(b.graph, swish, 24);
  ASSERT_TRUE(body);
  EXPECT_EQ(body->name, "Swish");
  EXPECT_EQ(body->body.inputs().size(), 1u);
  EXPECT_EQ(body->body.outputs().size(), 1u);
  ASSERT_EQ(body->default_attributes.size(), 1u);
  EXPECT_EQ(body->default_attributes[0].first, "alpha");
  EXPECT_EQ(body->opsets.at(""), 24);
}

TEST(FunctionBody, MayDependOnTypes) {
  Bench b;
  const NodeId norm = b.node({"RMSNormalization", {b.input(floats({2, 4})), b.input(floats({4}))}});
  const auto body = schema_function_body(b.graph, norm, 23);
  ASSERT_TRUE(body);
  EXPECT_GT(body->body.node_count(), 5u);
  const NodeId add = b.node({"Add", {b.input(floats({2})), b.input(floats({2}))}});
  EXPECT_FALSE(schema_function_body(b.graph, add, 23)) << "Add is no function";
}

// For all operators: asking never does worse than an Error.
TEST(FunctionBody, EveryOperatorCanBeAsked) {
  int found = 0;
  for (const SchemaOp& op : all_schema_ops()) {
    if (!op.domain.empty() || !op.versions.back().has_function) continue;
    Bench b;
    NodeSpec spec{op.name, {}};
    for (const SchemaParameter& parameter : op.versions.back().inputs) {
      if (parameter.option == ParameterOption::kOptional) break;
      const DType dtype = parameter.dtypes.empty() ? DType::kF32 : parameter.dtypes.front();
      spec.inputs.push_back(b.input(ValueType::tensor(dtype, SymbolicShape{2, 4})));
    }
    const NodeId id = b.node(std::move(spec));
    try {
      found += schema_function_body(b.graph, id, newest_opset("")).has_value();
    } catch (const Error& error) {
      EXPECT_EQ(error.place().op, op.name) << error.what();
    }
  }
  EXPECT_GT(found, 35);
}

}  // namespace
}  // namespace halfnote
