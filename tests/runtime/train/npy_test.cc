// NumPy's .npy and .npz: files that NumPy wrote, files written here byte by byte, and damaged ones.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <zip.h>

#include "runtime/train/data/format/readers.h"
#include "support.h"

namespace halfnote {
namespace {

using test::expect_error;
using test::TempFolder;
using test::write_bytes;

/// A version 1 file with this header text, padded as NumPy pads, or not.
std::string npy(std::string header, std::string_view data, bool padded = true) {
  while (padded && (10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes("\x93NUMPY\x01\0", 8);
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + std::string(data);
}

std::string small_header(std::string_view descr = "<f4") {
  return fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': (2,), }}", descr);
}

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(float)};
}

TEST(Npy, MapsAlignedData) {
  const TempFolder folder;
  write_bytes(folder / "a.npy", npy(small_header(), floats({1.5f, -2})));
  EXPECT_TRUE(identical(read_npy(folder / "a.npy"), Tensor::of<float>({2}, {1.5f, -2})));
}

TEST(Npy, CopiesUnalignedData) {
  const TempFolder folder;
  for (int spaces = 0; spaces < 5; ++spaces) {
    write_bytes(folder / "a.npy",
                npy(small_header() + std::string(spaces, ' '), floats({1.5f, -2}), false));
    const Tensor tensor = read_npy(folder / "a.npy");
    EXPECT_TRUE(identical(tensor, Tensor::of<float>({2}, {1.5f, -2})));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes()) % alignof(float), 0u);
  }
}

TEST(Npy, OutlivesTheFile) {
  const TempFolder folder;
  write_bytes(folder / "a.npy", npy(small_header(), floats({1.5f, -2})));
  const Tensor tensor = read_npy(folder / "a.npy");
  std::filesystem::remove(folder / "a.npy");
  EXPECT_EQ(tensor.data<float>()[1], -2);
}

TEST(Npy, TakesTheKeysInAnyOrderAndQuotes) {
  const TempFolder folder;
  write_bytes(folder / "a.npy",
              npy("{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}", floats({1, 2})));
  EXPECT_EQ(read_npy(folder / "a.npy").shape(), Shape({1, 2}));
}

struct HeaderCase {
  const char* name;
  std::string header;
  std::vector<std::string> message;
};

class NpyHeader : public testing::TestWithParam<HeaderCase> {};

TEST_P(NpyHeader, IsRefused) {
  const TempFolder folder;
  write_bytes(folder / "bad.npy", npy(GetParam().header, floats({1, 2})));
  std::vector<std::string> parts = GetParam().message;
  parts.push_back("bad.npy: ");
  expect_error(ErrorCode::kData, parts, [&] { read_npy(folder / "bad.npy"); });
}

INSTANTIATE_TEST_SUITE_P(
    All, NpyHeader,
    testing::Values(
        HeaderCase{"empty", "", {"no '{'"}}, HeaderCase{"no_keys", "{}", {"a missing key"}},
        HeaderCase{"unknown_key",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
                   {"the key 'x'"}},
        HeaderCase{
            "double_key", "{'descr': '<f4', 'descr': '<f4', 'shape': (2,)}", {"the key 'descr'"}},
        HeaderCase{"no_shape", "{'descr': '<f4', 'fortran_order': False}", {"a missing key"}},
        HeaderCase{"number_shape",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
                   {"instead of a tuple"}},
        HeaderCase{
            "negative", "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", {"no dim"}},
        HeaderCase{"text_after", small_header() + "x", {"text after the closing brace"}},
        HeaderCase{"open_string", "{'descr: ", {"an open string"}},
        HeaderCase{"number_order",
                   "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
                   {"neither True nor False"}},
        HeaderCase{"call", "{'descr': __import__('os'), 'shape': (2,)}", {"no quoted string"}},
        HeaderCase{"rank",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}",
                   {"more than 8 dims"}},
        HeaderCase{"overflow",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
                   {"no dim"}},
        HeaderCase{"huge",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296)}",
                   {"too large"}},
        HeaderCase{"huge_and_empty",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (0,4294967296,4294967296)}",
                   {"too large"}},
        HeaderCase{"short_data",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
                   {"truncated", "140 bytes for shape [3], got 136"}},
        HeaderCase{"long_data",
                   "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
                   {"more bytes follow"}},
        HeaderCase{"big_endian", small_header(">f4"), {"got '>f4'", "newbyteorder"}},
        HeaderCase{"object", small_header("|O"), {"pickled code, which is never run"}},
        HeaderCase{"text", small_header("<U1"), {"got '<U1'"}},
        HeaderCase{"complex", small_header("<c8"), {"got '<c8'"}},
        HeaderCase{"structured",
                   "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}",
                   {"a structured type"}}),
    [](const auto& row) { return row.param.name; });

TEST(Npy, RefusesOtherStarts) {
  const TempFolder folder;
  write_bytes(folder / "a", "PK\3\4 something else");
  expect_error(ErrorCode::kData, {"not an .npy array"}, [&] { read_npy(folder / "a"); });
  write_bytes(folder / "b", std::string("\x93NUMPY\4\0\0\0", 10));
  expect_error(ErrorCode::kData, {"unknown version", "got 4.0"}, [&] { read_npy(folder / "b"); });
  write_bytes(folder / "c", std::string("\x93NUMPY\2\0\0\0\0\x7f", 12));
  expect_error(ErrorCode::kData, {"header of an .npy array is too long"},
               [&] { read_npy(folder / "c"); });
}

TEST(Npy, RefusesBoolsThatAreNone) {
  const TempFolder folder;
  write_bytes(folder / "a.npy", npy(small_header("|b1"), std::string_view("\1\2", 2)));
  expect_error(ErrorCode::kData, {"element 1 of a bool array", "got 2"},
               [&] { read_npy(folder / "a.npy"); });
}

TEST(Npy, HoldsCopiesToTheMemoryLimit) {
  const TempFolder folder;
  write_bytes(folder / "a.npy",
              npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1,2)}", floats({1, 2})));
  DataLimits limits;
  limits.copied_bytes = 8;
  EXPECT_EQ(read_npy(folder / "a.npy", limits).size(), 2);
  limits.copied_bytes = 7;
  expect_error(ErrorCode::kMemory, {"expected at most 7 bytes, got 8"},
               [&] { read_npy(folder / "a.npy", limits); });
}

TEST(Npy, SurvivesDamage) {
  const TempFolder folder;
  const std::string path = folder / "a.npy";
  test::expect_robust(path, npy(small_header(), floats({1, 2})), 3000, [&] { read_npy(path); });
}

TEST(Npy, ReadsWhatNumpyWrites) {
  const TempFolder folder;
  if (!test::run_judge("make_arrays.py", folder.path().string()))
    GTEST_SKIP() << "no Python with NumPy";
  const std::pair<const char*, Shape> shapes[] = {
      {"scalar", {}}, {"vector", {5}}, {"matrix", {3, 4}}, {"cube", {2, 3, 4}}, {"empty", {0, 7}}};
  const std::pair<const char*, DType> types[] = {
      {"float16", DType::kF16}, {"float32", DType::kF32}, {"float64", DType::kF64},
      {"uint8", DType::kU8},    {"int8", DType::kI8},     {"uint16", DType::kU16},
      {"int16", DType::kI16},   {"uint32", DType::kU32},  {"int32", DType::kI32},
      {"uint64", DType::kU64},  {"int64", DType::kI64},   {"bool", DType::kBool}};
  const std::vector<DataField> stored = read_npz(folder / "stored.npz");
  const std::vector<DataField> deflated = read_npz(folder / "deflated.npz");
  ASSERT_EQ(stored.size(), std::size(shapes) * std::size(types));
  ASSERT_EQ(deflated.size(), stored.size());
  size_t index = 0;
  for (const auto& [shape_name, shape] : shapes) {
    for (const auto& [type_name, dtype] : types) {
      const std::string name = fmt::format("{}_{}", shape_name, type_name);
      const Tensor plain = read_npy(folder / (name + ".npy"));
      ASSERT_EQ(plain.dtype(), dtype) << name;
      ASSERT_EQ(plain.shape(), shape) << name;
      for (int64_t i = 0; i < plain.size(); ++i) {
        EXPECT_EQ(plain.at_as_int(i), dtype == DType::kBool ? i % 2 : i) << name;
      }
      EXPECT_TRUE(identical(plain, read_npy(folder / (name + "_fortran.npy")))) << name;
      EXPECT_EQ(stored[index].name, name);
      EXPECT_TRUE(identical(plain, stored[index].data)) << name;
      EXPECT_EQ(deflated[index].name, name);
      EXPECT_TRUE(identical(plain, deflated[index].data)) << name;
      ++index;
    }
  }
  for (int version = 1; version <= 3; ++version) {
    EXPECT_EQ(read_npy(folder / fmt::format("version{}.npy", version)).shape(), Shape({2, 3}));
  }
  for (const char* name : {"big_endian", "complex", "text", "object", "structured"}) {
    expect_error(ErrorCode::kData, {name, "training cannot use"},
                 [&] { read_npy(folder / (std::string(name) + ".npy")); });
  }
}

struct Member {
  std::string name, bytes;
};

void write_zip(const std::string& path, const std::vector<Member>& members, bool encrypt = false) {
  int error = 0;
  zip_t* archive = zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &error);
  ASSERT_NE(archive, nullptr) << error;
  for (const Member& member : members) {
    zip_source_t* source = zip_source_buffer(archive, member.bytes.data(), member.bytes.size(), 0);
    const zip_int64_t index = zip_file_add(archive, member.name.c_str(), source, ZIP_FL_ENC_UTF_8);
    ASSERT_GE(index, 0) << zip_strerror(archive);
    if (encrypt)
      zip_file_set_encryption(archive, static_cast<zip_uint64_t>(index), ZIP_EM_AES_128, "secret");
  }
  ASSERT_EQ(zip_close(archive), 0) << zip_strerror(archive);
}

std::string zeros_npy(size_t count) {
  return npy(fmt::format("{{'descr': '|u1', 'fortran_order': False, 'shape': ({},), }}", count),
             std::string(count, '\0'));
}

TEST(Npz, KeepsTheOrderOfTheArchive) {
  const TempFolder folder;
  write_zip(folder / "a.npz",
            {{"z.npy", npy(small_header(), floats({1, 2}))}, {"a.npy", zeros_npy(3)}});
  const std::vector<DataField> fields = read_npz(folder / "a.npz");
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].name, "z");
  EXPECT_EQ(fields[1].name, "a");
}

TEST(Npz, RefusesOtherMembers) {
  const TempFolder folder;
  write_zip(folder / "a.npz", {{"notes.txt", "hello"}});
  expect_error(ErrorCode::kData, {"member 0 of the archive is no array", "\"notes.txt\""},
               [&] { read_npz(folder / "a.npz"); });
  write_zip(folder / "b.npz", {{"x.npy", "hello"}});
  expect_error(ErrorCode::kData, {"b.npz:x.npy", "truncated"}, [&] { read_npz(folder / "b.npz"); });
  write_zip(folder / "c.npz", {{"x.npy", zeros_npy(3) + "tail"}});
  expect_error(ErrorCode::kData, {"c.npz:x.npy", "wrong size", "got 135"},
               [&] { read_npz(folder / "c.npz"); });
  write_zip(folder / "d.npz", {{"x.npy", zeros_npy(3)}}, true);
  expect_error(ErrorCode::kData, {"d.npz:x.npy", "encrypted"}, [&] { read_npz(folder / "d.npz"); });
}

TEST(Npz, HoldsMembersToTheLimits) {
  const TempFolder folder;
  write_zip(folder / "a.npz",
            {{"x.npy", zeros_npy(10000)}, {"y.npy", zeros_npy(872)}});  // 10128 and 1000 bytes
  DataLimits limits;
  limits.copied_bytes = 11128;
  limits.members = 2;
  limits.member_bytes = 10128;
  EXPECT_EQ(read_npz(folder / "a.npz", limits).size(), 2u);
  DataLimits less = limits;
  less.copied_bytes = 11127;
  expect_error(ErrorCode::kMemory, {"at most 11127 bytes"},
               [&] { read_npz(folder / "a.npz", less); });
  less = limits;
  less.members = 1;
  expect_error(ErrorCode::kData, {"too many arrays", "expected at most 1, got 2"},
               [&] { read_npz(folder / "a.npz", less); });
  less = limits;
  less.member_bytes = 10127;
  expect_error(ErrorCode::kData, {"x.npy", "expected at most 10127 bytes, got 10128"},
               [&] { read_npz(folder / "a.npz", less); });
  less = limits;
  less.ratio = 20;
  expect_error(ErrorCode::kData, {"x.npy", "compressed beyond belief", "numpy.savez"},
               [&] { read_npz(folder / "a.npz", less); });
}

TEST(Npz, RefusesABomb) {
  const TempFolder folder;
  write_zip(folder / "bomb.npz", {{"x.npy", zeros_npy(64 << 20)}});
  expect_error(ErrorCode::kData, {"bomb.npz:x.npy", "compressed beyond belief"},
               [&] { read_npz(folder / "bomb.npz"); });
}

TEST(Npz, SurvivesDamage) {
  const TempFolder folder;
  write_zip(folder / "good.npz",
            {{"x.npy", npy(small_header(), floats({1, 2}))}, {"y.npy", zeros_npy(40)}});
  const std::string path = folder / "a.npz";
  test::expect_robust(path, test::read_bytes(folder / "good.npz"), 3000, [&] { read_npz(path); });
}

}  // namespace
}  // namespace halfnote
