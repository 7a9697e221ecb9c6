// safetensors: what is written, read back here and by an independent reader in Python, and files
// that are wrong.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>

#include "runtime/train/checkpoint/safetensors.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::random_tensor;
using test::TempFolder;
using test::write_bytes;

std::vector<DType> stored_types() {
  std::vector<DType> types;
  for (int i = 1; i < kDTypeCount; ++i) {
    if (size_of(static_cast<DType>(i)) > 0) types.push_back(static_cast<DType>(i));
  }
  return types;
}

std::vector<NamedTensor> one_of_each() {
  std::vector<NamedTensor> tensors;
  for (const DType dtype : stored_types()) {
    tensors.push_back(
        {fmt::format("{}.matrix", short_name(dtype)), random_tensor(dtype, {3, 5}, 1)});
    tensors.push_back({fmt::format("{}.scalar", short_name(dtype)), random_tensor(dtype, {}, 2)});
    tensors.push_back(
        {fmt::format("{}.empty", short_name(dtype)), random_tensor(dtype, {0, 4}, 3)});
  }
  return tensors;
}

TEST(Safetensors, KeepsEveryType) {
  const TempFolder folder;
  const std::vector<NamedTensor> tensors = one_of_each();
  write_safetensors(real_disk(), folder / "a", tensors, {{"who", "me"}});
  const SafetensorsFile file(folder / "a");
  ASSERT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("who"), "me");
  for (const NamedTensor& tensor : tensors) {
    const SafetensorsFile::Entry* entry = file.find(tensor.name);
    ASSERT_NE(entry, nullptr) << tensor.name;
    EXPECT_TRUE(identical(file.tensor(*entry), tensor.tensor)) << tensor.name;
    EXPECT_EQ(entry->offset % std::min<size_t>(8, size_of(entry->dtype)), 0u) << tensor.name;
  }
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(file.header().size() % 8, 0u);
}

TEST(Safetensors, WritesTheSameBytesInAnyOrder) {
  std::vector<NamedTensor> tensors = one_of_each();
  const std::string header = lay_out_safetensors(tensors).header;
  std::reverse(tensors.begin(), tensors.end());
  EXPECT_EQ(lay_out_safetensors(tensors).header, header);
}

TEST(Safetensors, IsReadByAnIndependentReader) {
  const TempFolder folder;
  const std::vector<NamedTensor> tensors = {{"w", Tensor::of<float>({2}, {1, -2})},
                                            {"b\"é\n", Tensor::of<int64_t>({}, {258})},
                                            {"flag", Tensor::of<bool>({2, 1}, {true, false})},
                                            {"half", Tensor::scalar_of(DType::kBF16, 1)},
                                            {"nothing", Tensor(DType::kF16, {0, 3})}};
  write_safetensors(real_disk(), folder / "a.safetensors", tensors, {{"format", "halfnote"}});
  const auto output = test::run_judge("read_safetensors.py", folder / "a.safetensors");
  if (!output) GTEST_SKIP() << "no Python";
  EXPECT_EQ(*output,
            "{\"format\": \"halfnote\"}\n"
            "b\"é\n I64 [] 0201000000000000\n"
            "w F32 [2] 0000803f000000c0\n"
            "half BF16 [] 803f\n"
            "nothing F16 [0, 3] \n"
            "flag BOOL [2, 1] 0100\n");
}

TEST(Safetensors, IsReadByAnIndependentReaderInEveryType) {
  const TempFolder folder;
  write_safetensors(real_disk(), folder / "a.safetensors", one_of_each());
  const auto output = test::run_judge("read_safetensors.py", folder / "a.safetensors");
  if (!output) GTEST_SKIP() << "no Python";
  EXPECT_EQ(std::count(output->begin(), output->end(), '\n'),
            1 + static_cast<int64_t>(one_of_each().size()));
  EXPECT_THAT(*output, testing::HasSubstr("\"dtype:i4.matrix\": \"i4\""));
  EXPECT_THAT(*output, testing::HasSubstr("i4.matrix U8 [3, 5] "));
  EXPECT_THAT(*output, testing::HasSubstr("c128.matrix U8 [3, 5, 16] "));
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const Tensor one = Tensor::scalar<float>(1);
  const std::vector<NamedTensor> twice = {{"a", one}, {"a", one}};
  expect_error(ErrorCode::kCheckpoint, {"\"a\" is used twice"},
               [&] { lay_out_safetensors(twice); });
  const std::vector<NamedTensor> reserved = {{"__metadata__", one}};
  expect_error(ErrorCode::kCheckpoint, {"reserved"}, [&] { lay_out_safetensors(reserved); });
  const std::vector<NamedTensor> binary = {{"\xff\xfe", one}};
  expect_error(ErrorCode::kCheckpoint, {"not UTF-8"}, [&] { lay_out_safetensors(binary); });
  const std::vector<NamedTensor> text = {{"a", Tensor::strings({1}, {"x"})}};
  expect_error(ErrorCode::kUnsupported, {"cannot be saved", "got string"},
               [&] { lay_out_safetensors(text); });
  const std::vector<NamedTensor> longest = {{std::string(kSafetensorsHeaderLimit, 'x'), one}};
  expect_error(ErrorCode::kCheckpoint,
               {"header would be too long: expected at most 100000000 bytes"},
               [&] { lay_out_safetensors(longest); });
}

TEST(Safetensors, NeverOverwrites) {
  const TempFolder folder;
  write_bytes(folder / "a", "mine");
  expect_error(ErrorCode::kIo, {"cannot create the file"},
               [&] { write_safetensors(real_disk(), folder / "a", {}); });
  EXPECT_EQ(test::read_bytes(folder / "a"), "mine");
}

std::string with_length(std::string json, std::string_view data) {
  const uint64_t length = json.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return bytes + json + std::string(data);
}

struct FileCase {
  const char* name;
  std::string bytes;
  std::vector<std::string> message;
};

class BadSafetensors : public testing::TestWithParam<FileCase> {};

TEST_P(BadSafetensors, IsRefused) {
  const TempFolder folder;
  write_bytes(folder / "bad", GetParam().bytes);
  std::vector<std::string> parts = GetParam().message;
  parts.push_back("bad: ");
  expect_error(ErrorCode::kCheckpoint, parts, [&] { SafetensorsFile(folder / "bad"); });
}

std::string entry(std::string_view fields) { return fmt::format("{{\"w\":{{{}}}}}", fields); }

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensors,
    testing::Values(
        FileCase{"empty", "", {"not a safetensors file"}}, FileCase{"seven", "1234567", {"got 7"}},
        FileCase{"zero", std::string(8, '\0'), {"bad safetensors header"}},
        FileCase{"header_limit",
                 std::string("\1\xe1\xf5\5\0\0\0\0", 8),
                 {"header is too long: expected at most 100000000 bytes, got 100000001"}},
        FileCase{"header_limit_ok",
                 std::string("\0\xe1\xf5\5\0\0\0\0", 8),
                 {"truncated inside its header"}},
        FileCase{"no_json", with_length("hello", ""), {"expected {"}},
        FileCase{"space_first", with_length(" {}", ""), {"expected {"}},
        FileCase{"open", with_length("{", ""), {"no JSON at byte"}},
        FileCase{"not_utf8", with_length("{\"\xff\":1}", ""), {"no JSON at byte"}},
        FileCase{"trailing", with_length("{}x", ""), {"no JSON at byte"}},
        FileCase{"second_object", with_length("{}{}", ""), {"no JSON at byte"}},
        FileCase{
            "number_entry", with_length("{\"w\":1}", ""), {"an object of tensors, got a number"}},
        FileCase{"null_entry", with_length("{\"w\":null}", ""), {"got null"}},
        FileCase{
            "deep", with_length("{\"w\":" + std::string(100000, '[') + "}", ""), {"got an array"}},
        FileCase{"missing_key",
                 with_length(entry(R"("dtype":"U8","shape":[])"), ""),
                 {"without dtype, shape or data_offsets"}},
        FileCase{"other_key", with_length(entry(R"("type":"U8")"), ""), {"the key \"type\""}},
        FileCase{"key_twice",
                 with_length(entry(R"("dtype":"U8","dtype":"U8")"), ""),
                 {"the key \"dtype\""}},
        FileCase{"name_twice",
                 with_length(R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                             R"("w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                             ""),
                 {"the name \"w\" twice"}},
        FileCase{
            "metadata_number", with_length(R"({"__metadata__":{"a":1}})", ""), {"got a number"}},
        FileCase{"metadata_twice",
                 with_length(R"({"__metadata__":{},"__metadata__":{}})", ""),
                 {"a second __metadata__"}},
        FileCase{"unknown_type",
                 with_length(entry(R"("dtype":"F7","shape":[],"data_offsets":[0,1])"), "x"),
                 {"the unknown type \"F7\""}},
        FileCase{"negative_dim",
                 with_length(entry(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), "x"),
                 {"a negative number"}},
        FileCase{"fraction",
                 with_length(entry(R"("dtype":"U8","shape":[1.5],"data_offsets":[0,1])"), "x"),
                 {"a fraction"}},
        FileCase{
            "huge_dim",
            with_length(
                entry(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1])"), "x"),
            {"a dim above 2^40"}},
        FileCase{
            "overflow",
            with_length(
                entry(R"("dtype":"U8","shape":[1099511627776,1099511627776],"data_offsets":[0,0])"),
                ""),
            {"too large"}},
        FileCase{
            "rank",
            with_length(entry(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
                        "x"),
            {"too many dims"}},
        FileCase{"three_offsets",
                 with_length(entry(R"("dtype":"U8","shape":[],"data_offsets":[0,1,2])"), "x"),
                 {"got a number"}},
        FileCase{"one_offset",
                 with_length(entry(R"("dtype":"U8","shape":[],"data_offsets":[0])"), "x"),
                 {"number of offsets"}},
        FileCase{"backwards",
                 with_length(entry(R"("dtype":"U8","shape":[],"data_offsets":[1,0])"), "x"),
                 {"lies in the wrong place"}},
        FileCase{"size",
                 with_length(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "1234"),
                 {"\"w\" lies in the wrong place: expected bytes 0 to 8 for f32[2], got 0 to 4"}},
        FileCase{"hole",
                 with_length(entry(R"("dtype":"U8","shape":[],"data_offsets":[1,2])"), "xy"),
                 {"lies in the wrong place"}},
        FileCase{"overlap",
                 with_length(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                             "xyz"),
                 {"\"b\" lies in the wrong place"}},
        FileCase{"short",
                 with_length(entry(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), "1234"),
                 {"truncated in tensor \"w\": expected 5 bytes of tensors, got 4"}},
        FileCase{"tail",
                 with_length(entry(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), "12"),
                 {"bytes behind the last tensor: expected 1 bytes of tensors, got 2"}},
        FileCase{"false_type",
                 with_length(R"({"__metadata__":{"dtype:w":"f32"},)"
                             R"("w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                             "123"),
                 {"does not have the type that the metadata says"}},
        FileCase{"no_type",
                 with_length(R"({"__metadata__":{"dtype:w":"x"},)"
                             R"("w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                             "123"),
                 {"does not have the type"}}),
    [](const auto& row) { return row.param.name; });

TEST(Safetensors, CopiesUnalignedTensors) {
  const TempFolder folder;
  const float value = 2.5f;
  std::string json = entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])");
  while (json.size() % 4 != 1) json += ' ';
  write_bytes(folder / "a", with_length(json, {reinterpret_cast<const char*>(&value), 4}));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.tensor(file.entries()[0]).data<float>()[0], 2.5f);
}

TEST(Safetensors, RefusesBoolsThatAreNone) {
  const TempFolder folder;
  write_bytes(folder / "a", with_length(entry(R"("dtype":"BOOL","shape":[2],"data_offsets":[0,2])"),
                                        std::string_view("\1\2", 2)));
  const SafetensorsFile file(folder / "a");
  expect_error(ErrorCode::kCheckpoint, {"\"w\" is no bool", "expected 0 or 1, got 2"},
               [&] { file.tensor(file.entries()[0]); });
}

TEST(Safetensors, SurvivesDamage) {
  const TempFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", random_tensor(DType::kF32, {2}, 1)},
                                            {"b", random_tensor(DType::kI4, {3}, 1)}};
  write_safetensors(real_disk(), folder / "good", tensors);
  const std::string path = folder / "a";
  test::expect_robust(path, test::read_bytes(folder / "good"), 5000, [&] {
    const SafetensorsFile file(path);
    for (const auto& found : file.entries()) file.tensor(found);
  });
}

}  // namespace
}  // namespace halfnote
