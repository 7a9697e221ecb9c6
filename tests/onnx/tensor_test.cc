// Every encoding of a TensorProto, good and bad.
#include "tests/onnx/support.h"

namespace halfnote {
namespace {

using wire::Message;
using wire::raw_of;
using wire::raw_tensor;
using wire::tensor;

/// A graph that only holds the initializer.
std::string holding(const Message& initializer) {
  return wire::model(wire::relu_graph().message(wire::kInitializer, initializer), 17, 10);
}

Tensor read(const Message& initializer) {
  const Model model = import_text_bytes(holding(initializer));
  const Tensor* found = model.graph.constant(model.graph.find("w"));
  return found == nullptr ? Tensor() : *found;
}

Message packed(Message message, uint32_t field, const std::vector<uint64_t>& values) {
  for (uint64_t value : values) message.number(field, value);
  return message;
}
uint64_t negative(int64_t value) { return static_cast<uint64_t>(value); }

TEST(TensorEncoding, RawDataOfEveryWidth) {
  EXPECT_TRUE(identical(read(raw_tensor("w", DType::kF32, {2}, raw_of<float>({1.5f, -2}))),
                        Tensor::of<float>({2}, {1.5f, -2})));
  EXPECT_TRUE(identical(read(raw_tensor("w", DType::kF64, {1}, raw_of<double>({0.1}))),
                        Tensor::of<double>({1}, {0.1})));
  EXPECT_TRUE(identical(read(raw_tensor("w", DType::kI64, {}, raw_of<int64_t>({-7}))),
                        Tensor::scalar<int64_t>(-7)));
  EXPECT_TRUE(identical(read(raw_tensor("w", DType::kU16, {2}, raw_of<uint16_t>({1, 65535}))),
                        Tensor::of<uint16_t>({2}, {1, 65535})));
  EXPECT_TRUE(identical(read(raw_tensor("w", DType::kBool, {2}, std::string("\1\0", 2))),
                        Tensor::of<bool>({2}, {true, false})));
}

TEST(TensorEncoding, TypedLists) {
  EXPECT_TRUE(identical(read(tensor("w", DType::kF32, {2}).f32(4, 0.5f).f32(4, -1)),
                        Tensor::of<float>({2}, {0.5f, -1})));
  EXPECT_TRUE(identical(read(packed(tensor("w", DType::kI64, {2}), 7, {3, negative(-1)})),
                        Tensor::of<int64_t>({2}, {3, -1})));
  EXPECT_TRUE(identical(read(packed(tensor("w", DType::kI32, {1}), 5, {negative(-5)})),
                        Tensor::of<int32_t>({1}, {-5})));
  EXPECT_TRUE(identical(read(packed(tensor("w", DType::kI8, {2}), 5, {negative(-128), 127})),
                        Tensor::of<int8_t>({2}, {-128, 127})));
  EXPECT_TRUE(identical(read(packed(tensor("w", DType::kU32, {1}), 11, {4294967295u})),
                        Tensor::of<uint32_t>({1}, {4294967295u})));
  EXPECT_TRUE(identical(read(packed(tensor("w", DType::kBool, {2}), 5, {1, 0})),
                        Tensor::of<bool>({2}, {true, false})));
}

TEST(TensorEncoding, SixteenBitFloatsAreBitPatternsInInt32Data) {
  const Tensor half = read(packed(tensor("w", DType::kF16, {2}), 5, {0x3c00, 0xc000}));
  EXPECT_EQ(half.at_as_double(0), 1.0);
  EXPECT_EQ(half.at_as_double(1), -2.0);
  const Tensor extended = read(packed(tensor("w", DType::kBF16, {1}), 5, {negative(-0x4080)}));
  EXPECT_EQ(extended.data<BFloat16>()[0].bits, 0xbf80);
}

TEST(TensorEncoding, LowBitTypesAreUnpackedAndPackedAgain) {
  const Tensor signed4 = read(raw_tensor("w", DType::kI4, {3}, "\x8f\x07"));
  ASSERT_EQ(signed4.byte_size(), 3u);
  const auto* bytes = reinterpret_cast<const int8_t*>(signed4.bytes());
  EXPECT_EQ(bytes[0], -1);
  EXPECT_EQ(bytes[1], -8);
  EXPECT_EQ(bytes[2], 7);
  const Tensor unsigned2 = read(raw_tensor("w", DType::kU2, {5}, "\xe4\x02"));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(std::to_integer<int>(unsigned2.bytes()[i]), i);
  for (auto [dtype, text] : {std::pair(DType::kI4, "\x8f\x07"), {DType::kF4E2M1, "\x21\x03"}}) {
    const Model model = import_text_bytes(holding(raw_tensor("w", dtype, {3}, text)));
    const Model again = round_trip(model);
    EXPECT_TRUE(identical(again.graph.value(again.graph.find("w")).tensor,
                          model.graph.value(model.graph.find("w")).tensor));
  }
}

TEST(TensorEncoding, Float8KeepsItsBytes) {
  const Tensor read8 = read(raw_tensor("w", DType::kF8E4M3FN, {2}, "\x38\xff"));
  EXPECT_EQ(std::to_integer<int>(read8.bytes()[1]), 0xff);
  const Tensor listed = read(packed(tensor("w", DType::kF8E5M2, {1}), 5, {0x7c}));
  EXPECT_EQ(std::to_integer<int>(listed.bytes()[0]), 0x7c);
}

TEST(TensorEncoding, Strings) {
  const Tensor text = read(tensor("w", DType::kString, {2}).text(6, "a").text(6, ""));
  EXPECT_EQ(text.string_data(), (std::vector<std::string>{"a", ""}));
}

TEST(TensorEncoding, EmptyTensorsNeedNoData) {
  EXPECT_EQ(read(tensor("w", DType::kF32, {0, 3})).size(), 0);
  EXPECT_EQ(read(raw_tensor("w", DType::kF32, {0}, "")).size(), 0);
}

TEST(TensorEncoding, RawDataSharesTheFile) {
  TempFolder folder;
  const Message graph =
      wire::relu_graph()
          .message(wire::kInitializer, raw_tensor("a", DType::kU8, {4096}, std::string(4096, '\1')))
          .message(wire::kInitializer, raw_tensor("b", DType::kU8, {2}, std::string(2, '\2')));
  const Model model = import_model(folder.write("m.onnx", wire::model(graph)));
  const auto& a = model.graph.value(model.graph.find("a")).tensor.storage();
  const auto& b = model.graph.value(model.graph.find("b")).tensor.storage();
  EXPECT_FALSE(a.owner_before(b) || b.owner_before(a)) << "two owners: the bytes were copied";
  EXPECT_EQ(a.use_count(), 2);
  EXPECT_EQ(std::to_integer<int>(a.get()[4095]), 1);
}

TEST(TensorEncoding, MisalignedRawDataIsCopiedToAnAlignedPlace) {
  for (size_t name_length = 1; name_length <= 8; ++name_length) {
    const std::string name(name_length, 'n');
    const Message w = raw_tensor(name, DType::kF64, {1}, raw_of<double>({0.25}));
    const Model model = import_text_bytes(holding(w));
    const Tensor& read_back = model.graph.value(model.graph.find(name)).tensor;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(read_back.bytes()) % alignof(double), 0u);
    EXPECT_EQ(read_back.at_as_double(0), 0.25);
  }
}

TEST(TensorEncoding, SparseBecomesDense) {
  const Message values = raw_tensor("w", DType::kF32, {2}, raw_of<float>({5, 7}));
  const Message flat = raw_tensor("", DType::kI64, {2}, raw_of<int64_t>({1, 5}));
  const Message full = raw_tensor("", DType::kI64, {2, 2}, raw_of<int64_t>({0, 1, 1, 2}));
  for (const Message& indices : {flat, full}) {
    const Message sparse =
        Message().message(1, values).message(2, indices).number(3, 2).number(3, 3);
    const Model model =
        import_text_bytes(wire::model(wire::relu_graph().message(wire::kSparse, sparse)));
    EXPECT_TRUE(identical(*model.graph.constant(model.graph.find("w")),
                          Tensor::of<float>({2, 3}, {0, 5, 0, 0, 0, 7})));
  }
}

struct BadTensor {
  const char* name;
  Message message;
  const char* says;
};

void PrintTo(const BadTensor& bad, std::ostream* out) { *out << bad.name; }

class BadTensors : public testing::TestWithParam<BadTensor> {};

TEST_P(BadTensors, AreRefusedWithTheReason) {
  const Error error = import_error(holding(GetParam().message));
  EXPECT_EQ(error.code(), ErrorCode::kModel);
  EXPECT_EQ(error.place().file, "test.onnx");
  EXPECT_THAT(error.what(), testing::HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadTensors,
    testing::Values(
        BadTensor{"RawTooShort", raw_tensor("w", DType::kF32, {2}, std::string(7, 'a')),
                  "initializer \"w\": raw_data has the wrong size: expected 8 for f32[2], got 7"},
        BadTensor{"RawTooLong", raw_tensor("w", DType::kF32, {2}, std::string(9, 'a')), "got 9"},
        BadTensor{"NoData", tensor("w", DType::kF32, {2}), "float_data has the wrong size"},
        BadTensor{"ScalarWithoutData", tensor("w", DType::kI64, {}), "int64_data"},
        BadTensor{"DataForNothing", raw_tensor("w", DType::kF32, {0}, "aaaa"), "wrong size"},
        BadTensor{"RawAndTyped", raw_tensor("w", DType::kF32, {1}, "aaaa").f32(4, 1),
                  "more than once"},
        BadTensor{"WrongList", tensor("w", DType::kF32, {1}).number(7, 1), "float_data"},
        BadTensor{"NegativeDim", tensor("w", DType::kF32, {-1}), "bad dim"},
        BadTensor{"HugeDim", tensor("w", DType::kF32, {int64_t{1} << 62}), "size of a dim"},
        BadTensor{"ProductOverflow", tensor("w", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40}),
                  "elements"},
        BadTensor{"Rank9", tensor("w", DType::kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), "rank"},
        BadTensor{"Type0", tensor("w", DType::kUndefined, {1}), "unknown element type"},
        BadTensor{"Type99", tensor("w", static_cast<DType>(99), {1}), "unknown element type"},
        BadTensor{"Bool2", raw_tensor("w", DType::kBool, {1}, "\2"), "expected 0 or 1"},
        BadTensor{"Int8Range", tensor("w", DType::kI8, {1}).number(5, 128), "out of range"},
        BadTensor{"HalfRange", tensor("w", DType::kF16, {1}).number(5, 65536), "out of range"},
        BadTensor{"RawStrings", raw_tensor("w", DType::kString, {1}, "a"), "string_data"},
        BadTensor{"NoName", raw_tensor("", DType::kF32, {1}, "aaaa"), "no name"},
        BadTensor{"ExternalWithoutFolder",
                  wire::external_tensor("w", DType::kF32, {1}, {{"location", "a"}}), "folder"}),
    [](const auto& row) { return row.param.name; });

TEST(TensorEncoding, CopiesAreWithinTheBudget) {
  ImportOptions options;
  options.limits.copied_bytes = 7;
  const std::string bytes = holding(tensor("w", DType::kF32, {2}).f32(4, 1).f32(4, 2));
  EXPECT_THAT(import_error(bytes, options).what(), testing::HasSubstr("over the limit"));
  options.limits.copied_bytes = 8;
  EXPECT_NO_THROW(import_text_bytes(bytes, options));
}

TEST(TensorEncoding, SparseLimitsAndIndices) {
  const auto sparse = [](int64_t dim, int64_t index) {
    return wire::model(wire::relu_graph().message(
        wire::kSparse, Message()
                           .message(1, raw_tensor("w", DType::kF32, {1}, raw_of<float>({1})))
                           .message(2, raw_tensor("", DType::kI64, {1}, raw_of<int64_t>({index})))
                           .number(3, static_cast<uint64_t>(dim))));
  };
  EXPECT_NO_THROW(import_text_bytes(sparse(4, 3)));
  EXPECT_THAT(import_error(sparse(4, 4)).what(), testing::HasSubstr("out of range"));
  EXPECT_THAT(import_error(sparse(4, -1)).what(), testing::HasSubstr("out of range"));
  EXPECT_THAT(import_error(sparse(int64_t{1} << 39, 0)).what(), testing::HasSubstr("too large"));
}

}  // namespace
}  // namespace halfnote
