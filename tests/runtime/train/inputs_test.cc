// Fields to inputs: which goes where, every conversion against a formula, and refusals.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/train/data/inputs.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;

SymbolicShape batch_of(std::initializer_list<int64_t> dims) {
  SymbolicShape shape = {Dim::named("N")};
  for (const int64_t dim : dims) shape.push_back(dim < 0 ? Dim::named("?") : Dim(dim));
  return shape;
}

/// The first `rows` samples of one input.
Tensor rows_of(const InputMap& map, size_t input, int64_t rows) {
  Tensor batch = map.make_batch(input, rows);
  ConvertRoom room;
  for (int64_t row = 0; row < rows; ++row) map.fill(input, row, row, batch, room);
  return batch;
}

Tensor convert(const Tensor& field, DType dtype, SymbolicShape shape,
               const InputOptions& options = {}) {
  const ModelInput input{"x", dtype, std::move(shape)};
  const InputMap map(Dataset("d", {{"f", field}}), {&input, 1}, options);
  return rows_of(map, 0, field.shape()[0]);
}

Dataset mnist_like() {
  return Dataset("d", {{"image", test::random_tensor(DType::kU8, {3, 4, 4}, 1)},
                       {"label", Tensor::of<uint8_t>({3}, {1, 2, 3})}});
}

TEST(InputChoice, GoesByNameThenOrder) {
  const ModelInput by_order[] = {{"x.1", DType::kF32, batch_of({1, 4, 4})},
                                 {"y", DType::kI64, batch_of({})}};
  EXPECT_THAT(
      InputMap(mnist_like(), by_order).describe(),
      testing::ElementsAre("image u8[4,4] -> x.1 f32[1,4,4]: /255", "label u8[] -> y i64[]"));
  const ModelInput swapped[] = {{"label", DType::kI64, batch_of({})},
                                {"input", DType::kF32, batch_of({4, 4})}};
  const InputMap map(mnist_like(), swapped);
  EXPECT_EQ(map.field(0).name, "label");
  EXPECT_EQ(map.field(1).name, "image");
}

TEST(InputChoice, GoesByMapFirst) {
  const ModelInput inputs[] = {{"b", DType::kU8, batch_of({})}, {"a", DType::kU8, batch_of({})}};
  const Dataset data("d",
                     {{"a", Tensor::of<uint8_t>({1}, {1})}, {"b", Tensor::of<uint8_t>({1}, {2})}});
  InputOptions options;
  parse_input_names("a=b,b=a", options);
  const InputMap map(data, inputs, options);
  EXPECT_EQ(map.field(0).name, "a");
  EXPECT_EQ(map.field(1).name, "b");
}

TEST(WholeInputs, TakeTheirFieldAsItIs) {
  const ModelInput inputs[] = {
      {"x", DType::kF32, batch_of({2})},
      {"edges", DType::kI32, {Dim(2), Dim::named("E")}, true},
      {"rate", DType::kF32, {}, true},
  };
  const Tensor edges = Tensor::of<int64_t>({2, 3}, {0, 1, 2, 2, 1, 0});
  const Tensor x = test::random_tensor(DType::kF32, {5, 2}, 1);
  const Tensor rate = Tensor::scalar<double>(0.5);
  InputOptions options;
  options.limit = 4;
  const InputMap map(Dataset("d", {{"edges", edges}, {"rate", rate}, {"x", x}}), inputs, options);
  EXPECT_EQ(map.data().size(), 4);
  EXPECT_THAT(
      map.describe(),
      testing::ElementsAre("x f32[2] -> x f32[2]",
                           "edges i64[2,3] -> edges i32[2,3]: whole, refused where it does not fit",
                           "rate f64[] -> rate f32[]: whole"));
  EXPECT_EQ(map.batch_shape(0, 3), Shape({3, 2}));
  EXPECT_EQ(map.batch_shape(1, 3), Shape({2, 3}));
  EXPECT_EQ(map.batch_shape(2, 3), Shape());
  EXPECT_TRUE(identical(map.whole(1), edges.cast_to(DType::kI32)));
  EXPECT_EQ(map.whole(2).at_as_double(0), 0.5);
  EXPECT_EQ(map.rows_of(0, 3), 3);
  EXPECT_EQ(map.rows_of(1, 3), 2);
}

TEST(WholeInputs, RefuseWhatDoesNotFit) {
  const ModelInput whole{"edges", DType::kI64, {Dim(2), Dim(4)}, true};
  const Tensor edges = Tensor::of<int64_t>({2, 3}, {0, 1, 2, 2, 1, 0});
  expect_error(ErrorCode::kData,
               {"does not fit input \"edges\"", "expected i64[2,4], whole, got edges i64[2,3]"},
               [&] {
                 InputMap(Dataset("d", {{"edges", edges}}), {&whole, 1});
               });
  const ModelInput both[] = {{"edges", DType::kI64, {Dim(2), Dim(3)}, true},
                             {"x", DType::kI64, batch_of({3})}};
  InputOptions options;
  parse_input_names("x=edges", options);
  expect_error(ErrorCode::kUsage, {"field \"edges\" cannot be fed whole and by samples"}, [&] {
    InputMap(Dataset("d", {{"edges", edges}}), both, options);
  });
  const ModelInput samples[] = {{"edges", DType::kI64, {Dim(2), Dim(3)}},
                                {"x", DType::kI64, batch_of({})}};
  const Tensor x = Tensor::of<int64_t>({3}, {1, 2, 3});
  expect_error(ErrorCode::kData, {"arrays hold different numbers of samples", "--whole INPUT"},
               [&] {
                 InputMap(Dataset("d", {{"edges", edges}, {"x", x}}), samples);
               });
  Tensor bad(DType::kF32, {2});
  bad.mutable_data<float>()[1] = INFINITY;
  const ModelInput rates{"rates", DType::kF32, {Dim(2)}, true};
  expect_error(ErrorCode::kData, {"\"rates\" is not finite", "element 1"}, [&] {
    InputMap(Dataset("d", {{"rates", bad}}), {&rates, 1});
  });
}

TEST(InputChoice, NamesUnusedFields) {
  const ModelInput input{"x", DType::kF32, batch_of({4, 4})};
  EXPECT_THAT(InputMap(mnist_like(), {&input, 1}).describe(),
              testing::Contains("label u8[] is not used"));
}

TEST(InputChoice, RefusesWhatIsNotThere) {
  const ModelInput inputs[] = {{"x", DType::kF32, batch_of({4, 4})},
                               {"y", DType::kI64, batch_of({})},
                               {"mask", DType::kI64, batch_of({})}};
  expect_error(ErrorCode::kData,
               {"no data for input \"mask\"", "expected 3 fields, got image u8[4,4], label u8[]"},
               [&] { InputMap(mnist_like(), inputs); });
  InputOptions options;
  parse_input_names("x=imag", options);
  expect_error(ErrorCode::kUsage, {"no such field", "did you mean image?"},
               [&] { InputMap(mnist_like(), inputs, options); });
  options.names = {{"z", "image"}};
  expect_error(ErrorCode::kUsage, {"no such input"},
               [&] { InputMap(mnist_like(), inputs, options); });
}

TEST(Conversion, ScalesTheBytesOfImages) {
  const Tensor field = Tensor::of<uint8_t>({2, 1, 2}, {0, 1, 128, 255});
  const Tensor expected = Tensor::of<float>({2, 1, 2}, {0, 1 / 255.0f, 128 / 255.0f, 1});
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    EXPECT_TRUE(identical(convert(field, dtype, batch_of({1, 2})), expected.cast_to(dtype)));
  }
}

TEST(Conversion, KeepsOtherBytesUnlessTold) {
  const Tensor field = Tensor::of<uint8_t>({2, 2}, {0, 1, 128, 255});
  const Tensor kept = Tensor::of<float>({2, 2}, {0, 1, 128, 255});
  const Tensor scaled = Tensor::of<float>({2, 2}, {0, 1 / 255.0f, 128 / 255.0f, 1});
  EXPECT_TRUE(identical(convert(field, DType::kF32, batch_of({2})), kept));
  EXPECT_TRUE(identical(convert(field, DType::kBF16, batch_of({-1})), kept.cast_to(DType::kBF16)));
  InputOptions options;
  options.scaling.bytes = Bytes::kScale;
  EXPECT_TRUE(identical(convert(field, DType::kF32, batch_of({2}), options), scaled));
  options.scaling.bytes = Bytes::kKeep;
  const Tensor image = Tensor::of<uint8_t>({1, 1, 2}, {51, 255});
  EXPECT_TRUE(identical(convert(image, DType::kF32, batch_of({1, 2}), options),
                        Tensor::of<float>({1, 1, 2}, {51, 255})));
  EXPECT_EQ(bytes_from_name("keep"), Bytes::kKeep);
  expect_error(ErrorCode::kUsage, {"auto, scale or keep", "\"all\""},
               [] { bytes_from_name("all"); });
}

TEST(Conversion, ShapesImages) {
  const Tensor grey = test::random_tensor(DType::kU8, {2, 3, 5}, 1);
  struct Case {
    SymbolicShape input;
    Shape expected;
  };
  const Case cases[] = {{batch_of({1, 3, 5}), {2, 1, 3, 5}},
                        {batch_of({-1, -1, -1}), {2, 1, 3, 5}},
                        {batch_of({3, 5}), {2, 3, 5}},
                        {batch_of({-1, 5}), {2, 3, 5}},
                        {batch_of({15}), {2, 15}},
                        {batch_of({-1}), {2, 15}},
                        {batch_of({1, 1, 3, 5}), {2, 1, 1, 3, 5}}};
  for (const Case& row : cases) {
    const Tensor result = convert(grey, DType::kF32, row.input);
    EXPECT_EQ(result.shape(), row.expected);
    for (int64_t i = 0; i < grey.size(); ++i) {
      ASSERT_EQ(result.at_as_double(i), static_cast<float>(grey.at_as_int(i)) / 255.0f);
    }
  }
}

TEST(Conversion, ReplicatesGrey) {
  const Tensor result =
      convert(Tensor::of<uint8_t>({1, 1, 2}, {51, 255}), DType::kF32, batch_of({3, 1, 2}));
  EXPECT_TRUE(identical(result, Tensor::of<float>({1, 3, 1, 2}, {0.2f, 1, 0.2f, 1, 0.2f, 1})));
}

TEST(Conversion, NormalisesEachChannel) {
  InputOptions options;
  parse_normalize("0.5/0.25/0,0.5/1/2", options);
  const Tensor result =
      convert(Tensor::of<uint8_t>({1, 1, 1}, {255}), DType::kF32, batch_of({3, 1, 1}), options);
  EXPECT_TRUE(identical(result, Tensor::of<float>({1, 3, 1, 1}, {1, 0.75f, 0.5f})));
  options = {};
  parse_normalize("0.5,0.25", options);
  EXPECT_TRUE(
      identical(convert(Tensor::of<float>({1, 2}, {1, 0}), DType::kF32, batch_of({2}), options),
                Tensor::of<float>({1, 2}, {2, -2})));
}

TEST(Conversion, ResizesBilinearly) {
  // torch.nn.functional.interpolate([[[[0, 1], [2, 3]]]], size=(4, 4), mode="bilinear")
  InputOptions options;
  options.resize = Resize::kBilinear;
  const Tensor result = convert(Tensor::of<float>({1, 2, 2}, {0, 1, 2, 3}), DType::kF32,
                                batch_of({1, 4, 4}), options);
  EXPECT_TRUE(identical(
      result, Tensor::of<float>({1, 1, 4, 4}, {0, 0.25f, 0.75f, 1, 0.5f, 0.75f, 1.25f, 1.5f, 1.5f,
                                               1.75f, 2.25f, 2.5f, 2, 2.25f, 2.75f, 3})));
}

TEST(Conversion, ResizesToTheNearest) {
  InputOptions options;
  options.resize = Resize::kNearest;
  const Tensor field = Tensor::of<uint8_t>({1, 1, 3, 2}, {0, 51, 102, 153, 204, 255});
  const Tensor larger = convert(field, DType::kF32, batch_of({1, 4, 3}), options);
  EXPECT_TRUE(identical(larger, Tensor::of<float>({1, 1, 4, 3}, {0, 0, 0.2f, 0, 0, 0.2f, 0.4f, 0.4f,
                                                                 0.6f, 0.8f, 0.8f, 1})));
  const Tensor smaller = convert(field, DType::kF32, batch_of({1, 1, 1}), options);
  EXPECT_TRUE(identical(smaller, Tensor::of<float>({1, 1, 1, 1}, {0})));
}

TEST(Conversion, FitsFashionMnistToTheCifarModel) {
  InputOptions options;
  options.resize = Resize::kBilinear;
  const ModelInput inputs[] = {{"input.1", DType::kF32, batch_of({3, 32, 32})},
                               {"y", DType::kI64, batch_of({})}};
  const Dataset data("d", {{"image", test::random_tensor(DType::kU8, {2, 28, 28}, 5)},
                           {"label", Tensor::of<uint8_t>({2}, {7, 9})}});
  const InputMap map(data, inputs, options);
  EXPECT_THAT(
      map.describe(),
      testing::Contains(
          "image u8[28,28] -> input.1 f32[3,32,32]: /255, resized (bilinear), grey to 3 channels"));
  const Tensor images = rows_of(map, 0, 2);
  const auto pixels = images.data<float>();
  for (size_t sample = 0; sample < 2; ++sample) {
    const float* red = pixels.data() + sample * 3072;
    EXPECT_EQ(std::memcmp(red, red + 1024, 4096), 0);
    EXPECT_EQ(std::memcmp(red, red + 2048, 4096), 0);
    EXPECT_EQ(red[0], static_cast<float>(
                          data.fields()[0].data.at_as_int(static_cast<int64_t>(sample) * 784)) /
                          255.0f);
  }
  EXPECT_TRUE(identical(rows_of(map, 1, 2), Tensor::of<int64_t>({2}, {7, 9})));
}

TEST(Conversion, CopiesWhatIsEqual) {
  for (const DType dtype :
       {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kBool, DType::kU8}) {
    const Tensor field = test::random_tensor(dtype, {3, 2, 2, 2}, 9);
    EXPECT_TRUE(identical(convert(field, dtype, batch_of({2, 2, 2})), field)) << short_name(dtype);
  }
}

TEST(Conversion, ChangesFloatTypesThroughF32) {
  const Tensor wide = Tensor::of<double>({1, 3}, {0.1, -1e-3, 65000});
  EXPECT_TRUE(identical(convert(wide, DType::kF32, batch_of({3})), wide.cast_to(DType::kF32)));
  EXPECT_TRUE(identical(convert(wide, DType::kF16, batch_of({3})),
                        wide.cast_to(DType::kF32).cast_to(DType::kF16)));
  const Tensor half = Tensor::of<float>({1, 2}, {0.1f, 2}).cast_to(DType::kF16);
  EXPECT_TRUE(identical(convert(half, DType::kF64, batch_of({2})), half.cast_to(DType::kF64)));
}

TEST(Conversion, ChangesIntegerTypes) {
  const Tensor tokens = Tensor::of<uint16_t>({2, 3}, {0, 1, 2, 50000, 65535, 5});
  EXPECT_TRUE(identical(convert(tokens, DType::kI64, batch_of({3})), tokens.cast_to(DType::kI64)));
  const Tensor column = Tensor::of<int32_t>({2, 1}, {3, 4});
  EXPECT_TRUE(
      identical(convert(column, DType::kI64, batch_of({})), Tensor::of<int64_t>({2}, {3, 4})));
  EXPECT_TRUE(
      identical(convert(column, DType::kU8, batch_of({1})), Tensor::of<uint8_t>({2, 1}, {3, 4})));
}

TEST(Conversion, RefusesIntegersThatDoNotFit) {
  expect_error(
      ErrorCode::kData,
      {"d: a number of \"f\" does not fit its input, sample 1", "expected i32, got 4294967296"},
      [] {
        convert(Tensor::of<int64_t>({2}, {1, int64_t{1} << 32}), DType::kI32, batch_of({}));
      });
  expect_error(ErrorCode::kData, {"sample 0", "expected u8, got -1"},
               [] { convert(Tensor::of<int8_t>({1}, {-1}), DType::kU8, batch_of({})); });
}

TEST(Conversion, TakesLabelsOfEveryTypeThatHoldsThem) {
  const Tensor labels = Tensor::of<int64_t>({4}, {0, 1, 1, 0});
  const DType types[] = {DType::kBool, DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                         DType::kU32,  DType::kI32, DType::kU64, DType::kI64, DType::kF16,
                         DType::kBF16, DType::kF32, DType::kF64};
  for (const DType from : types) {
    for (const DType to : types) {
      EXPECT_TRUE(identical(convert(labels.cast_to(from), to, batch_of({})), labels.cast_to(to)))
          << short_name(from) << " to " << short_name(to);
    }
  }
  const Tensor ids = Tensor::of<float>({2, 2}, {16777216, -3, 0, 7});
  EXPECT_TRUE(identical(convert(ids, DType::kI64, batch_of({2})),
                        Tensor::of<int64_t>({2, 2}, {16777216, -3, 0, 7})));
  const Tensor large = Tensor::of<int64_t>({2}, {16777216, int64_t{3} << 40});
  EXPECT_TRUE(identical(convert(large, DType::kF32, batch_of({})), large.cast_to(DType::kF32)));
  const Tensor least = Tensor::of<int64_t>({1}, {std::numeric_limits<int64_t>::min()});
  EXPECT_TRUE(identical(convert(least, DType::kF32, batch_of({})), least.cast_to(DType::kF32)));
}

TEST(Conversion, SaysOfTypesWhatMayBeRefused) {
  const auto steps = [](DType from, DType to) {
    const ModelInput input{"x", to, batch_of({})};
    return InputMap(Dataset("d", {{"f", Tensor(from, {2})}}), {&input, 1}).describe().at(0);
  };
  EXPECT_EQ(steps(DType::kBool, DType::kI64), "f bool[] -> x i64[]");
  EXPECT_EQ(steps(DType::kI32, DType::kI64), "f i32[] -> x i64[]");
  EXPECT_EQ(steps(DType::kF32, DType::kI64), "f f32[] -> x i64[]: refused where it does not fit");
  EXPECT_EQ(steps(DType::kI64, DType::kBool), "f i64[] -> x bool[]: refused where it does not fit");
  EXPECT_EQ(steps(DType::kI64, DType::kF32),
            "f i64[] -> x f32[]: not scaled, refused where it does not fit");
  EXPECT_EQ(steps(DType::kI16, DType::kF32), "f i16[] -> x f32[]: not scaled");
}

TEST(Conversion, RefusesNumbersThatWouldChange) {
  expect_error(ErrorCode::kData,
               {"d: a number of \"f\" does not fit its input, sample 1", "expected i64, got 0.5",
                "round the array and store it as integers"},
               [] {
                 convert(Tensor::of<float>({2}, {1, 0.5f}), DType::kI64, batch_of({}));
               });
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {nan, std::numeric_limits<float>::infinity(), 9.3e18f, -9.3e18f}) {
    expect_error(ErrorCode::kData, {"does not fit its input, sample 0", "expected i64"},
                 [&] { convert(Tensor::of<float>({1}, {bad}), DType::kI64, batch_of({})); });
  }
  expect_error(ErrorCode::kData, {"sample 0", "expected u8, got 256"},
               [] { convert(Tensor::of<double>({1}, {256}), DType::kU8, batch_of({})); });
  expect_error(ErrorCode::kData, {"sample 1", "expected bool, which is 0 or 1, got 2"}, [] {
    convert(Tensor::of<int64_t>({2}, {1, 2}), DType::kBool, batch_of({}));
  });
  expect_error(
      ErrorCode::kData,
      {"sample 1", "expected a number of at most 24 significant bits, as FP32 holds, got 16777217"},
      [] {
        convert(Tensor::of<int64_t>({2}, {1, 16777217}), DType::kF32, batch_of({}));
      });
  const auto to = [](int64_t number, DType dtype, const InputOptions& options = {}) {
    return convert(Tensor::of<int64_t>({1}, {number}), dtype, batch_of({}), options)
        .at_as_double(0);
  };
  EXPECT_EQ(to(-2047, DType::kF16), -2047);
  EXPECT_EQ(to(65472, DType::kF16), 65472);
  EXPECT_EQ(to(255 << 20, DType::kBF16), 255 << 20);
  expect_error(ErrorCode::kData,
               {"at most 11 significant bits below 65536, as f16 holds, got 4025"},
               [&] { to(4025, DType::kF16); });
  expect_error(ErrorCode::kData, {"below 65536, as f16 holds, got 131072"},
               [&] { to(131072, DType::kF16); });
  expect_error(ErrorCode::kData, {"at most 8 significant bits, as bf16 holds, got -257"},
               [&] { to(-257, DType::kBF16); });
  InputOptions options;
  parse_normalize("4000,8", options);
  EXPECT_EQ(to(4025, DType::kF16, options), 3.125);
}

struct MisfitCase {
  const char* name;
  DType from;
  Shape field;
  DType to;
  SymbolicShape input;
  std::vector<std::string> message;
};

class Misfit : public testing::TestWithParam<MisfitCase> {};

TEST_P(Misfit, IsRefused) {
  const MisfitCase& row = GetParam();
  expect_error(ErrorCode::kData, row.message,
               [&] { convert(Tensor(row.from, row.field), row.to, row.input); });
}

INSTANTIATE_TEST_SUITE_P(
    All, Misfit,
    testing::Values(
        MisfitCase{"size",
                   DType::kU8,
                   {2, 28, 28},
                   DType::kF32,
                   batch_of({1, 32, 32}),
                   {"the data does not fit input \"x\" (the sizes differ)",
                    "expected f32[1,32,32] a sample, got f u8[28,28]", "--resize"}},
        MisfitCase{"no_channels",
                   DType::kF32,
                   {2, 3, 32},
                   DType::kF32,
                   batch_of({3, 32, 32}),
                   {"(a dim is missing)", "expected f32[3,32,32] a sample, got f f32[3,32]"}},
        MisfitCase{"channels",
                   DType::kU8,
                   {2, 3, 4, 4},
                   DType::kF32,
                   batch_of({1, 4, 4}),
                   {"the channels differ"}},
        MisfitCase{"channels_last",
                   DType::kU8,
                   {2, 32, 32, 3},
                   DType::kF32,
                   batch_of({3, 32, 32}),
                   {"transpose it to (N, C, H, W)"}},
        MisfitCase{"label_as_image",
                   DType::kU8,
                   {2},
                   DType::kF32,
                   batch_of({1, 4, 4}),
                   {"the shapes differ"}},
        MisfitCase{"image_as_label",
                   DType::kU8,
                   {2, 4, 4},
                   DType::kI64,
                   batch_of({}),
                   {"the shapes differ", "expected i64[] a sample"}},
        MisfitCase{"complex_as_label",
                   DType::kC64,
                   {2},
                   DType::kI64,
                   batch_of({}),
                   {"the types differ", "bool, integers and floats become each other"}},
        MisfitCase{"complex_as_float",
                   DType::kC64,
                   {2, 3},
                   DType::kF32,
                   batch_of({3}),
                   {"the types differ", "bool, integers and floats become each other"}},
        MisfitCase{"length",
                   DType::kF32,
                   {2, 5},
                   DType::kF32,
                   batch_of({6}),
                   {"the shapes differ", "got f f32[5]"}},
        MisfitCase{
            "no_batch", DType::kF32, {2}, DType::kF32, {}, {"a scalar has no dim for the batch"}},
        MisfitCase{"huge",
                   DType::kU8,
                   {2, 4, 4},
                   DType::kF32,
                   batch_of({1, int64_t{1} << 40, int64_t{1} << 40}),
                   {"the image is too large"}},
        MisfitCase{
            "type", DType::kU8, {2}, DType::kC64, batch_of({}), {"no data becomes this type"}}),
    [](const auto& row) { return row.param.name; });

TEST(Scaling, LeavesTheTargetOfTheLossAloneUnlessItIsNamed) {
  const Tensor bytes = Tensor::of<uint8_t>({1, 1, 2}, {1, 255});
  const auto scaled = [&](bool target, const std::vector<std::string>& flags) {
    ModelInput input{"t", DType::kF32, batch_of({1, 2})};
    input.target = target;
    if (target) input.range = Range{-1e3, 1e3};
    InputOptions options;
    for (const std::string& flag : flags) {
      flag.find(',') == std::string::npos ? parse_bytes(flag, options)
                                          : parse_normalize(flag, options);
    }
    const InputMap map(Dataset("d", {{"t", bytes}}), {&input, 1}, options);
    const Tensor row = rows_of(map, 0, 1);
    return std::vector<float>{row.data<float>()[0], row.data<float>()[1]};
  };
  using testing::ElementsAre;
  EXPECT_THAT(scaled(false, {}), ElementsAre(1 / 255.0f, 1));
  EXPECT_THAT(scaled(true, {}), ElementsAre(1, 255));
  EXPECT_THAT(scaled(true, {"scale", "0.5,0.5"}), ElementsAre(1, 255));
  EXPECT_THAT(scaled(true, {"t=scale"}), ElementsAre(1 / 255.0f, 1));
  EXPECT_THAT(scaled(true, {"t=1,2"}), ElementsAre(0, 127));
  EXPECT_THAT(scaled(false, {"keep", "t=scale"}), ElementsAre(1 / 255.0f, 1));
}

TEST(Scaling, BytesOfAPictureThatTheLossComparesWithMustBeNamed) {
  ModelInput input{"t", DType::kF32, batch_of({1, 2})};
  input.target = true;
  const Dataset data("d", {{"t", Tensor::of<uint8_t>({1, 1, 2}, {1, 255})}});
  expect_error(ErrorCode::kUsage,
               {"not clear what the bytes of \"t\" are to the loss", "--bytes t=scale",
                "--bytes t=keep", "got t u8[1,2]"},
               [&] {
                 InputMap(data, {&input, 1});
               });
  InputOptions options;
  parse_bytes("t=scale", options);
  EXPECT_EQ(rows_of(InputMap(data, {&input, 1}, options), 0, 1).at_as_double(1), 1);
}

TEST(Scaling, OfOneInputMustHaveOne) {
  const ModelInput inputs[] = {{"x", DType::kF32, batch_of({2})},
                               {"y", DType::kF32, batch_of({2})},
                               {"n", DType::kI64, batch_of({})}};
  const Tensor floats(DType::kF32, {3, 2});
  const Dataset data("d", {{"x", floats}, {"y", floats}, {"n", Tensor(DType::kI64, {3})}});
  struct Row {
    const char *normalize, *bytes;
    std::vector<std::string> message;
  };
  const Row rows[] = {
      {"0,1", nullptr, {"does not say which input is meant", "got x, y", "--normalize x=MEAN,STD"}},
      {"n=0,1", nullptr, {"--normalize n=… does nothing here", "an input of floats"}},
      {"z=0,1", nullptr, {"--normalize z=…: no such input", "expected x, y, n"}},
      {nullptr, "x=keep", {"--bytes x=… does nothing here", "data of type u8"}},
      {nullptr, "x=alle", {"auto, scale or keep"}},
  };
  for (const Row& row : rows) {
    expect_error(ErrorCode::kUsage, row.message, [&] {
      InputOptions options;
      if (row.normalize != nullptr) parse_normalize(row.normalize, options);
      if (row.bytes != nullptr) parse_bytes(row.bytes, options);
      InputMap(data, inputs, options);
    });
  }
  InputOptions options;
  parse_normalize("x=1,2", options);
  const InputMap map(data, inputs, options);
  EXPECT_EQ(rows_of(map, 0, 1).at_as_double(0), -0.5);
  EXPECT_EQ(rows_of(map, 1, 1).at_as_double(0), 0);
}

TEST(BatchAxis, PutsSamplesSideBySide) {
  // Three samples of (2 times, 2 features), time first.
  const Tensor x = Tensor::of<float>({3, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  ModelInput input{"x", DType::kF32, batch_of({2, 2})};
  input.batch_axis = 1;
  const InputMap map(Dataset("d", {{"x", x}}), {&input, 1});
  EXPECT_EQ(map.batch_shape(0, 3), Shape({2, 3, 2}));
  EXPECT_TRUE(identical(rows_of(map, 0, 3),
                        Tensor::of<float>({2, 3, 2}, {0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11})));
  EXPECT_EQ(map.row_of(0, 0, 3), 0);
  EXPECT_EQ(map.row_of(0, 5, 3), 2);
  EXPECT_EQ(map.row_of(0, 6, 3), 0);
  EXPECT_THAT(map.describe(), testing::Contains(testing::HasSubstr("samples along axis 1")));
}

TEST(Fill, NamesTheSampleThatIsNoTarget) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    ModelInput input{"t", type, batch_of({2})};
    input.range = Range{0, 1};
    const Tensor values = Tensor::of<float>({2, 2}, {0, 1, 0.5, -2}).cast_to(type);
    const InputMap map(Dataset("d", {{"t", values}}), {&input, 1});
    Tensor batch = map.make_batch(0, 2);
    ConvertRoom room;
    map.fill(0, 0, 0, batch, room);
    expect_error(ErrorCode::kData,
                 {"sample 1 of \"t\" is no target of the loss", "expected numbers from 0 to 1",
                  "got -2 in element 1"},
                 [&] { map.fill(0, 1, 1, batch, room); });
  }
}

TEST(Fill, NamesTheSampleThatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const DType from : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (const DType to : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
        const Tensor x = Tensor::of<float>({3, 2}, {1, 2, 3, 4, 5, bad}).cast_to(from);
        const ModelInput input{"x", to, batch_of({2})};
        const InputMap map(Dataset("data.npz", {{"x", x}}), {&input, 1});
        Tensor batch = map.make_batch(0, 3);
        ConvertRoom room;
        map.fill(0, 0, 0, batch, room);
        expect_error(ErrorCode::kData, {"data.npz", "sample 2 of \"x\"", "in element 1"},
                     [&] { map.fill(0, 2, 2, batch, room); });
      }
    }
  }
}

TEST(Fill, NamesTheSampleThatTheInputCannotHold) {
  const Tensor x = Tensor::of<float>({2, 2}, {1, 2, 65504, 1e6f});
  const ModelInput input{"x", DType::kF16, batch_of({2})};
  const InputMap map(Dataset("data.npz", {{"x", x}}), {&input, 1});
  Tensor batch = map.make_batch(0, 2);
  ConvertRoom room;
  map.fill(0, 0, 0, batch, room);
  expect_error(ErrorCode::kData, {"sample 1 of \"x\"", "too large a number for f16, in element 1"},
               [&] { map.fill(0, 1, 1, batch, room); });
}

TEST(Normalize, MustFitTheChannels) {
  InputOptions options;
  parse_normalize("0/0,1/1", options);
  expect_error(ErrorCode::kUsage, {"expected 1 or 3 numbers each, got 2"}, [&] {
    convert(Tensor(DType::kU8, {1, 3, 2, 2}), DType::kF32, batch_of({3, 2, 2}), options);
  });
}

}  // namespace
}  // namespace halfnote
