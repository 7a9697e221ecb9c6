// Reading and writing whole models.
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "tests/onnx/support.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using wire::Message;

const fs::path kModels = fs::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/models";

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kModels)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Fixtures : public testing::TestWithParam<std::string> {};

TEST_P(Fixtures, ReadWrittenAndReadAgain) {
  const Model model = import_model(kModels / GetParam() / "model.onnx");
  EXPECT_GT(model.graph.node_count(), 0u);
  const Model again = round_trip(model);
  EXPECT_EQ(again.graph.node_count(), model.graph.node_count());
  EXPECT_EQ(names_of(again.graph, again.graph.outputs()),
            names_of(model.graph, model.graph.outputs()));
  EXPECT_EQ(again.opsets, model.opsets);
  EXPECT_NO_THROW(check_model(again));
}

INSTANTIATE_TEST_SUITE_P(All, Fixtures, testing::ValuesIn(model_names()),
                         [](const auto& row) { return row.param; });

TEST(Fixtures, ThereAreThirteen) { EXPECT_EQ(model_names().size(), 13u); }

TEST(Import, KeepsTheHeader) {
  const std::string bytes = wire::model_header(17, 8)
                                .text(2, "maker")
                                .text(3, "1.2")
                                .text(4, "org.example")
                                .number(5, 3)
                                .text(6, "what it does")
                                .message(14, wire::entry("policy", "default"))
                                .message(7, wire::relu_graph().text(10, "graph doc"))
                                .bytes();
  const Model model = round_trip(import_text_bytes(bytes));
  EXPECT_EQ(model.ir_version, 8);  // what came with op-set 17
  EXPECT_EQ(model.opsets.at(""), 17);
  EXPECT_EQ(model.producer_name + model.producer_version, "maker1.2");
  EXPECT_EQ(model.domain, "org.example");
  EXPECT_EQ(model.model_version, 3);
  EXPECT_EQ(model.doc, "what it does");
  EXPECT_EQ(model.metadata.at("policy"), "default");
  EXPECT_EQ(model.graph.doc, "graph doc");
}

TEST(Import, KeepsWhatTheExporterDeclaresOfInitializers) {
  constexpr std::string_view kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
  const auto declared = [&](std::string_view name, std::string_view kind) {
    return wire::value_info(name, DType::kF32, {2}).message(4, wire::entry(kKind, kind));
  };
  const Message graph =
      wire::add_graph(wire::raw_tensor("w", DType::kF32, {2}, "aaaabbbb"))
          .message(wire::kInitializer, wire::raw_tensor("b", DType::kF32, {2}, "aaaabbbb"))
          .message(wire::kInitializer, wire::raw_tensor("c", DType::kF32, {2}, "aaaabbbb"))
          .message(wire::kValueInfo, declared("w", "PARAMETER"))
          .message(wire::kValueInfo, declared("b", "BUFFER"))
          .message(wire::kValueInfo, declared("c", "CONSTANT_TENSOR"))
          .message(wire::kValueInfo, declared("gone", "PARAMETER"))
          .message(wire::kValueInfo, declared("y", "USER_INPUT"));
  const Model model = round_trip(import_text_bytes(wire::model(graph)));
  EXPECT_EQ(model.metadata.at("halfnote.parameters"), "w\n");
  EXPECT_EQ(model.metadata.at("halfnote.buffers"), "b\nc\n");
}

TEST(Import, KeepsWhatTheExporterComputedParametersFromAndWhichAreGone) {
  const auto folded = [](std::string_view name, std::string_view from) {
    return wire::value_info(name, DType::kF32, {2})
        .message(4, wire::entry("pkg.onnxscript.optimizer.folded_from", from));
  };
  const std::string_view signature =
      "\n# inputs\np_w: PARAMETER target='m.w'\np_b: PARAMETER target='w'\n"
      "p_g: PARAMETER target='m.gone'\nb_mean: BUFFER target='mean' persistent=True\nx: "
      "USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n";
  const auto tensor = [](std::string_view name) {
    return wire::raw_tensor(name, DType::kF32, {2}, "aaaabbbb");
  };
  const auto model_with = [&](bool has_signature, bool has_sources) {
    Message graph = wire::add_graph(tensor("w"))
                        .message(wire::kInitializer, tensor("val_1"))
                        .message(wire::kInitializer, tensor("val_2"));
    if (has_sources) {
      graph = graph.message(wire::kValueInfo, folded("val_1", "['m.w', 'val_0']"))
                  .message(wire::kValueInfo, folded("val_2", "['mean', 'val_0']"))
                  .message(wire::kValueInfo, folded("y", "['m.gone']"));
    }
    constexpr uint32_t kMetadata = 16;  // of GraphProto
    if (has_signature) {
      graph = graph.message(
          kMetadata, wire::entry("pkg.torch.export.ExportedProgram.graph_signature", signature));
    }
    return round_trip(import_text_bytes(wire::model(graph)));
  };
  const Model model = model_with(true, true);
  EXPECT_EQ(model.metadata.at("halfnote.folded"), "val_1\nm.w\n");
  EXPECT_EQ(model.metadata.at("halfnote.constants"), "val_2\n");
  EXPECT_EQ(model.metadata.at("halfnote.lost_parameters"), "m.gone\n");
  // Where all are there, the file is said to be whole.
  const Message whole =
      wire::add_graph(tensor("w"))
          .message(16, wire::entry("pkg.torch.export.ExportedProgram.graph_signature",
                                   "\n# inputs\np_w: PARAMETER target='w'\n"));
  EXPECT_EQ(
      round_trip(import_text_bytes(wire::model(whole))).metadata.at("halfnote.lost_parameters"),
      "");
  for (const Model& untold : {model_with(false, true), model_with(true, false)}) {
    for (const char* key : {"halfnote.folded", "halfnote.constants", "halfnote.lost_parameters"}) {
      EXPECT_FALSE(untold.metadata.contains(key)) << key;
    }
  }
}

constexpr std::string_view kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kSignature = "pkg.torch.export.ExportedProgram.graph_signature";

/// `w` is a parameter; of the others the value info says what they were computed from.
Model import_folded(std::string_view signature) {
  const auto tensor = [](std::string_view name) {
    return wire::raw_tensor(name, DType::kF32, {2}, "aaaabbbb");
  };
  const auto folded = [&](std::string_view name, std::string_view from) {
    return wire::value_info(name, DType::kF32, {2}).message(4, wire::entry(kFoldedFrom, from));
  };
  Message graph = wire::add_graph(tensor("w"));
  for (const char* name : {"gain", "mask", "traceless"}) {
    graph.message(wire::kInitializer, tensor(name));
  }
  graph.message(wire::kValueInfo, folded("gain", "['it\\'s', \"scale\", 'val_3']"))
      .message(wire::kValueInfo, folded("mask", "['val_1', 'val_2']"));
  if (!signature.empty()) graph.message(16, wire::entry(kSignature, signature));
  return round_trip(import_text_bytes(wire::model(graph)));
}

TEST(Import, WhatWasComputedFromNoParameterIsAConstant) {
  const Model model = import_folded(
      "\n# inputs\np_w: PARAMETER target='w'\np_scale: PARAMETER target='scale'\n"
      "b_k: BUFFER target='k' persistent=True\nx: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n");
  EXPECT_EQ(model.metadata.at("halfnote.constants"), "mask\ntraceless\n");
}

TEST(Import, SignaturesOfOlderVersions) {
  const Model model = import_folded(
      "ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, "
      "arg=TensorArgument(name='p_w'), target='w', persistent=None), "
      "InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_scale'), "
      "target='scale', persistent=None), InputSpec(kind=<InputKind.BUFFER: 3>, "
      "arg=TensorArgument(name='b_k'), target='k', persistent=True)], output_specs=[])");
  EXPECT_EQ(model.metadata.at("halfnote.constants"), "mask\ntraceless\n");
}

TEST(Import, ATensorWithoutATraceMayBeTheParameterThatIsMissing) {
  const Model model = import_folded(
      "p_w: PARAMETER target='w'\np_scale: PARAMETER target='scale'\n"
      "p_gone: PARAMETER target='gone'\n");
  EXPECT_EQ(model.metadata.at("halfnote.constants"), "mask\n");
}

// The rule that folds a BatchNormalization writes the weight anew, under its name, without its
// kind.
TEST(Import, ParametersOfAFoldedNormAreLostAndTheWeightThatHoldsItIsOne) {
  const auto import = [](std::string_view second) {
    const std::string_view signature =
        "p_c: PARAMETER target='w'\np_n: PARAMETER target='n.weight'\n"
        "p_b: PARAMETER target='n.bias'\np_o: PARAMETER target='o.weight'\n"
        "b_m: BUFFER target='n.running_mean' persistent=True\n"
        "b_v: BUFFER target='n.running_var' persistent=True\n\n# outputs\n"
        "m: BUFFER_MUTATION target='n.running_mean'\n";
    const auto tensor = [](std::string_view name) {
      return wire::raw_tensor(name, DType::kF32, {2}, "aaaabbbb");
    };
    const Message graph = wire::add_graph(tensor("w"))
                              .message(wire::kInitializer, tensor(second))
                              .message(16, wire::entry(kSignature, signature));
    return round_trip(import_text_bytes(wire::model(graph)));
  };
  const Model folded = import("other");
  EXPECT_EQ(folded.metadata.at("halfnote.parameters"), "w\n");
  // o.weight may be in any tensor.
  EXPECT_EQ(folded.metadata.at("halfnote.lost_parameters"), "n.weight\nn.bias\n");
  const Model kept = import("n.running_mean");
  EXPECT_FALSE(kept.metadata.contains("halfnote.lost_parameters"));
}

TEST(Import, WithoutASignatureNothingIsSaidOfConstants) {
  for (const char* signature :
       {"", "x: USER_INPUT\n", "p: PARAMETER\ntarget='w'", "PARAMETER target='w"}) {
    EXPECT_FALSE(import_folded(signature).metadata.contains("halfnote.constants")) << signature;
  }
}

TEST(Import, InitializerThatIsAlsoAnInputIsNoInput) {
  const Message w = wire::raw_tensor("w", DType::kF32, {2}, wire::raw_of<float>({1, 2}));
  const Message graph =
      wire::add_graph(w).message(wire::kInput, wire::value_info("w", DType::kF32, {2}));
  const Model model = import_text_bytes(wire::model(graph, 9, 3));
  EXPECT_EQ(model.ir_version, 3);
  EXPECT_EQ(names_of(model.graph, model.graph.inputs()), (wire::Names{"x"}));
  EXPECT_EQ(names_of(model.graph, model.graph.initializers()), (wire::Names{"w"}));
  const Message other =
      wire::add_graph(w).message(wire::kInput, wire::value_info("w", DType::kF32, {3}));
  EXPECT_THAT(import_error(wire::model(other, 9, 3)).what(),
              testing::HasSubstr("input \"w\" and its initializer differ: expected float[3], got "
                                 "float[2]"));
}

// Types of inputs and outputs become messages, those between become bytes at once.
TEST(Export, TypesOfAllKindsStandAlike) {
  const auto element = std::make_shared<const ValueType>(floats({Dim::named("N"), 2}));
  const ValueType types[] = {floats({}),
                             floats({0, 3, int64_t{1} << 40}),
                             floats({Dim(), Dim::named("längs"), 1}),
                             ValueType::tensor(DType::kBF16),
                             ValueType::tensor(DType::kString, {Dim(200)}),
                             {TypeKind::kSequence, {}, {}, {}, element},
                             {TypeKind::kOptional, {}, {}, {}, element},
                             {TypeKind::kMap, {}, {}, DType::kI64, element},
                             {TypeKind::kSparseTensor, DType::kF32, SymbolicShape{4}, {}, nullptr}};
  for (const ValueType& type : types) {
    Model model;
    Graph& graph = model.graph;
    const ValueId x = graph.add_input(graph.main(), "x", type);
    const NodeId inner = graph.create({"Identity", {x}}, {"between"}, graph.end());
    const NodeId last = graph.create({"Identity", {graph.output(inner)}}, {"y"}, graph.end());
    for (NodeId node : {inner, last}) graph.value(graph.output(node)).type = type;
    graph.set_outputs(graph.main(), {graph.output(last)});
    model.opsets[""] = kOpsetVersion;
    const Model read = round_trip(model);
    for (const char* name : {"x", "between", "y"}) {
      EXPECT_EQ(read.graph.value(read.graph.find(name)).type, type) << name << to_string(type);
    }
  }
}

TEST(Export, ModelsOfSeveralMegabytes) {
  Model model;
  Graph& graph = model.graph;
  ValueId value = graph.add_input(graph.main(), "x", floats({2}));
  for (int i = 0; i < 20000; ++i) {
    const NodeId node =
        graph.create({"Relu", {value}, {}, "", std::string(100, 'n') + std::to_string(i)},
                     {"v" + std::to_string(i)}, graph.end());
    value = graph.output(node);
    graph.value(value).type = floats({2});
  }
  graph.set_outputs(graph.main(), {value});
  model.opsets[""] = kOpsetVersion;
  const std::vector<std::byte> bytes = export_model_bytes(model);
  EXPECT_GT(bytes.size(), size_t{2} << 20);
  const Model read = import_model_bytes(bytes, "large.onnx");
  EXPECT_EQ(read.graph.node_count(), 20000u);
  EXPECT_EQ(export_model_bytes(read), bytes);
}

TEST(Import, UnsortedNodesKeepAsMuchOrderAsPossible) {
  const Message graph = Message()
                            .text(wire::kGraphName, "g")
                            .message(wire::kNode, wire::node("Relu", {"b"}, {"c"}, "third"))
                            .message(wire::kNode, wire::node("Abs", {"x"}, {"d"}, "free"))
                            .message(wire::kNode, wire::node("Neg", {"a"}, {"b"}, "second"))
                            .message(wire::kNode, wire::node("Exp", {"x"}, {"a"}, "first"))
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("c", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("d", DType::kF32, {2}));
  const Model model = round_trip(import_text_bytes(wire::model(graph)));
  wire::Names names;
  for (NodeId id : model.graph.nodes()) names.push_back(model.graph.node(id).name);
  EXPECT_EQ(names, (wire::Names{"free", "first", "second", "third"}));
}

TEST(Import, NodesWithoutNameAreCalledAfterTheirResult) {
  const Message graph = Message()
                            .message(wire::kNode, wire::node("Relu", {"x"}, {"y"}))
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const Model model = round_trip(import_text_bytes(wire::model(graph)));
  EXPECT_EQ(model.graph.node(model.graph.first(model.graph.main())).name, "y");
}

TEST(Import, ConstantsHaveOneSpelling) {
  const auto constant = [](const Message& attribute) {
    const Message node =
        Message(wire::node("Constant", {}, {"c"}, "c")).message(wire::kAttribute, attribute);
    const Message graph = Message()
                              .message(wire::kNode, node)
                              .message(wire::kOutput, wire::value_info("c", DType::kF32, {}));
    const Model model = import_text_bytes(wire::model(graph));
    return *model.graph.constant(model.graph.find("c"));
  };
  EXPECT_TRUE(
      identical(constant(wire::float_attribute("value_float", 2.5f)), Tensor::scalar(2.5f)));
  EXPECT_TRUE(
      identical(constant(wire::int_attribute("value_int", -3)), Tensor::scalar<int64_t>(-3)));
  const Message ints = Message().text(1, "value_ints").number(8, 4).number(8, 5).number(20, 7);
  EXPECT_TRUE(identical(constant(ints), Tensor::of<int64_t>({2}, {4, 5})));
  const Message floats = Message().text(1, "value_floats").f32(7, 1).number(20, 6);
  EXPECT_TRUE(identical(constant(floats), Tensor::of<float>({1}, {1})));
  const Message text = Message().text(1, "value_string").text(4, "hi").number(20, 3);
  EXPECT_EQ(constant(text).string_data(), (wire::Names{"hi"}));
  const Message sparse =
      Message()
          .message(1, wire::raw_tensor("", DType::kF32, {1}, wire::raw_of<float>({9})))
          .message(2, wire::raw_tensor("", DType::kI64, {1}, wire::raw_of<int64_t>({1})))
          .number(3, 2);
  const Message attribute = Message().text(1, "sparse_value").message(22, sparse).number(20, 11);
  EXPECT_TRUE(identical(constant(attribute), Tensor::of<float>({2}, {0, 9})));
}

TEST(Import, DomainAiOnnxIsTheDefaultDomain) {
  const Message node = Message(wire::node("Relu", {"x"}, {"y"})).text(7, "ai.onnx");
  const Message graph = Message()
                            .message(wire::kNode, node)
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const Model model = import_text_bytes(wire::model(graph));
  EXPECT_EQ(model.graph.node(model.graph.first(model.graph.main())).domain, "");
}

TEST(Import, OptionalOperandsMayBeAbsent) {
  const Message node = wire::node("Clip", {"x", "", "high", ""}, {"y"}, "clip");
  const Message high = wire::raw_tensor("high", DType::kF32, {}, wire::raw_of<float>({1}));
  const Message graph = Message()
                            .message(wire::kNode, node)
                            .message(wire::kInitializer, high)
                            .message(wire::kInput, wire::value_info("x", DType::kF32, {2}))
                            .message(wire::kOutput, wire::value_info("y", DType::kF32, {2}));
  const Model model = round_trip(import_text_bytes(wire::model(graph)));
  const NodeId clip = find_op(model.graph, "Clip");
  EXPECT_EQ(names_of(model.graph, model.graph.inputs(clip)), (wire::Names{"x", "", "high"}));
}

TEST(Import, ReadsTheTextFormToo) {
  TempFolder folder;
  const auto path = folder.write("m.onnxtxt",
                                 "<ir_version: 10, opset_import: [\"\" : 23]>\n"
                                 "g (float[2] x) => (float[2] y) { y = Relu (x) }\n");
  const Model model = import_model(path);
  EXPECT_EQ(model.source, path.string());
  EXPECT_EQ(model.graph.node_count(), 1u);
  EXPECT_NO_THROW(check_model(round_trip(model)));
}

TEST(Export, SameModelSameBytes) {
  const Model model = import_model(kModels / "mlp" / "model.onnx");
  EXPECT_EQ(export_model_bytes(model), export_model_bytes(model));
}

TEST(Export, KeepsWhatTheCompilerKnowsOfNodesAndValues) {
  Model model = import_text_bytes(wire::model(wire::relu_graph(), 23));
  Graph& graph = model.graph;
  const NodeId relu = find_op(graph, "Relu");
  graph.node(relu).role = Role::kBackward;
  graph.node(relu).precision = {DType::kBF16, "allow list: Relu"};
  graph.node(relu).origin = "conv 1";
  graph.node(relu).metadata = {{"z", "1"}, {"a", "2"}};
  graph.value(graph.output(relu)).scale_power = -1;
  const ValueId w = graph.add_initializer("w\n\\x", Tensor::scalar(1.0f));
  graph.value(w).trainable = true;
  graph.value(w).scale_power = 1;
  graph.add_state(w, graph.output(relu), StateKind::kStatistic);

  const Model read = round_trip(model);
  const Node& node = read.graph.node(find_op(read.graph, "Relu"));
  EXPECT_EQ(node.role, Role::kBackward);
  EXPECT_EQ(node.precision, (Precision{DType::kBF16, "allow list: Relu"}));
  EXPECT_EQ(node.origin, "conv 1");
  EXPECT_EQ(node.metadata, graph.node(relu).metadata);
  EXPECT_EQ(read.graph.value(read.graph.find("y")).scale_power, -1);
  const ValueId read_w = read.graph.find("w\n\\x");
  ASSERT_TRUE(read_w.valid());
  EXPECT_TRUE(read.graph.value(read_w).trainable);
  EXPECT_EQ(read.graph.value(read_w).scale_power, 1);
  ASSERT_EQ(read.graph.states().size(), 1u);
  EXPECT_EQ(read.graph.states()[0].kind, StateKind::kStatistic);
  EXPECT_EQ(read.graph.states()[0].next, read.graph.find("y"));
}

// Small tensors stand in the message, larger ones are spliced in, from 4 KiB on aligned: all sizes
// around these limits, and that of a token.
TEST(Export, TensorsOfAllSizes) {
  Model model;
  model.opsets[""] = kOpsetVersion;
  Graph& graph = model.graph;
  std::vector<int64_t> sizes = {0, 1, 15, 16, 17, 18, 1023, 1024, 1025, 4095, 4096, 4097, 70'001};
  for (int64_t size : sizes) {
    std::vector<uint8_t> bytes(static_cast<size_t>(size));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + bytes.size());
    const ValueId tensor = graph.add_initializer(
        "t" + std::to_string(size), Tensor::of<uint8_t>({size}, std::span<const uint8_t>(bytes)));
    graph.add_output(graph.main(), tensor);
  }
  const std::vector<std::byte> file = export_model_bytes(model);
  const Model again = import_model_bytes(file, "file", {});
  for (int64_t size : sizes) {
    const std::string name = "t" + std::to_string(size);
    const Tensor& tensor = graph.value(graph.find(name)).tensor;
    EXPECT_TRUE(identical(tensor, again.graph.value(again.graph.find(name)).tensor)) << name;
    if (size < 4096) continue;
    const auto bytes = std::as_bytes(std::span(tensor.bytes(), tensor.byte_size()));
    const auto at = std::search(file.begin(), file.end(), bytes.begin(), bytes.end());
    EXPECT_EQ((at - file.begin()) % 64, 0) << name;
  }
}

TEST(Export, FailureLeavesNoFile) {
  TempFolder folder;
  const Model model = import_text_bytes(wire::model(wire::relu_graph()));
  EXPECT_EQ(error_of([&] { export_model(model, folder / "no" / "m.onnx"); }).code(),
            ErrorCode::kIo);
  EXPECT_TRUE(fs::is_empty(folder.path()));
  export_model(model, folder / "m.onnx");
  EXPECT_EQ(import_model(folder / "m.onnx").graph.node_count(), 1u);
}

TEST(Export, ExternalDataIsOneFileBesideTheModel) {
  TempFolder folder;
  const Model model = import_model(kModels / "mlp" / "model.onnx");
  export_model(model, folder / "m.onnx", {.external = ExternalTensors::kAlways});
  EXPECT_TRUE(fs::exists(folder / "m.onnx.data"));
  EXPECT_LT(fs::file_size(folder / "m.onnx"), fs::file_size(kModels / "mlp" / "model.onnx"));
  const Model read = import_model(folder / "m.onnx");
  EXPECT_EQ(export_model_bytes(read), export_model_bytes(model));
}

TEST(Export, ExternalDataIsUsedWhenTheFileWouldBeTooLarge) {
  TempFolder folder;
  const Model model = import_model(kModels / "mlp" / "model.onnx");
  const uint64_t size = export_model_bytes(model).size();
  export_model(model, folder / "in.onnx", {.max_file_bytes = size});
  EXPECT_FALSE(fs::exists(folder / "in.onnx.data"));
  export_model(model, folder / "out.onnx", {.max_file_bytes = size - 1});
  EXPECT_TRUE(fs::exists(folder / "out.onnx.data"));
  EXPECT_EQ(export_model_bytes(import_model(folder / "out.onnx")), export_model_bytes(model));
}

// What is written is halfnote's own work: the user's model is not to blame for it.
TEST(Export, AFileThatTheCheckerRefusesIsABug) {
  TempFolder folder;
  Model model = import_text_bytes(wire::model(wire::relu_graph()));
  model.graph.node(find_op(model.graph, "Relu")).op = "NoSuchOperator";
  const Error error = error_of([&] { export_model(model, folder / "m.onnx"); });
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_EQ(error.place().file, (folder / "m.onnx").string());
  for (const char* part : {"NoSuchOperator", "what halfnote made", "bug of halfnote"}) {
    EXPECT_THAT(error.what(), testing::HasSubstr(part));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(Check, SaysWhatTheCheckerSays) {
  Model model = import_text_bytes(wire::model(wire::relu_graph()));
  model.graph.node(find_op(model.graph, "Relu")).op = "NoSuchOperator";
  EXPECT_THAT(error_of([&] { check_model(model); }).what(), testing::HasSubstr("NoSuchOperator"));
}

TEST(Check, NamesTheNodeAndBothTypes) {
  const Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
      main (float[2] a, double[2] b) => (float[2] y) { [sum] float[2] y = Add (a, b) })",
                                  "model.onnxtxt");
  const std::string message = error_of([&] { check_model(model); }).what();
  for (const char* part : {"sum", "Add", "tensor(float)", "tensor(double)", "in one float type"}) {
    EXPECT_THAT(message, testing::HasSubstr(part));
  }
}

// A model makes few kinds of calls, and each is judged once: the one that differs in a type, an
// attribute or a shape's data must be among them.
TEST(Check, FindsTheOneWrongCallAmongMany) {
  const std::string head = R"(<ir_version: 10, opset_import: ["" : 23]>
      main (float[2,3] x, float[3,2] z) => (float[6] y) <int64[1] six = {6}, int64[1] five = {5}> {)";
  std::string many;
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    many += "[a" + n + "] float[2,3] a" + n + " = Relu (x)\n";
    many += "[r" + n + "] float[6] r" + n + " = Reshape (a" + n + ", six)\n";
  }
  const std::string tail = "[y] float[6] y = Relu (r19) }";
  EXPECT_NO_THROW(check_model(parse_model(head + many + tail, "m.onnxtxt")));
  for (const char* wrong :
       {"[bad] float[3,3] bad = Relu (x)", "[bad] float[6] bad = Reshape (x, five)",
        "[bad] float[6] bad = Reshape <allowzero: float = 1> (x, six)",
        "[bad] float[2,3] bad = Add (x, z)", "[bad] float[2,3] bad = Relu (x, x)"}) {
    const Model model = parse_model(head + many + wrong + "\n" + tail, "m.onnxtxt");
    EXPECT_THAT(error_of([&] { check_model(model); }).what(), testing::HasSubstr("bad")) << wrong;
  }
}

}  // namespace
}  // namespace halfnote
