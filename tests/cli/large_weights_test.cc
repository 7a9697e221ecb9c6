// Weights larger than memory: they are not read by a compilation, only copied by the system. Each
// weight has 1 GiB; the file is sparse and takes a few pages.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/cli/support.h"
#include "tests/onnx/wire.h"
#include "tests/sanitizer.h"

namespace halfnote::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMatrixWidth = 16384;
constexpr uint64_t kMatrixBytes = uint64_t{4} * kMatrixWidth * kMatrixWidth;
constexpr int kMatrices = 4;
constexpr uint64_t kMostResident = uint64_t{300} << 20;

/// x · w0 · w1 · w2 · w3 · w0, the weights in weights.bin.
void write_model(const Workplace& place) {
  wire::Message graph;
  graph.text(wire::kGraphName, "large");
  std::string value = "x";
  for (int i = 0; i <= kMatrices; ++i) {
    const std::string result = i == kMatrices ? "y" : "h" + std::to_string(i);
    const std::string weight = "w" + std::to_string(i % kMatrices);
    graph.message(wire::kNode, wire::node("MatMul", {value, weight}, {result}));
    value = result;
  }
  for (int i = 0; i < kMatrices; ++i) {
    graph.message(
        wire::kInitializer,
        wire::external_tensor("w" + std::to_string(i), DType::kF32, {kMatrixWidth, kMatrixWidth},
                              {{"location", "weights.bin"},
                               {"offset", std::to_string(i * kMatrixBytes)},
                               {"length", std::to_string(kMatrixBytes)}}));
  }
  graph.message(wire::kInput, wire::value_info("x", DType::kF32, {"N", kMatrixWidth}));
  graph.message(wire::kOutput, wire::value_info("y", DType::kF32, {"N", kMatrixWidth}));
  place.write("large.onnx", wire::model(graph, 23, 10));
  place.write("weights.bin", "");
  std::filesystem::resize_file(place / "weights.bin", kMatrices * kMatrixBytes);
}

void put(const Workplace& place, int weight, int64_t row, int64_t column, float number) {
  std::fstream file(place / "weights.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(weight * kMatrixBytes) +
             4 * (row * kMatrixWidth + column));
  file.write(reinterpret_cast<const char*>(&number), sizeof number);
}

TEST(LargeWeights, AreNotReadForWarnings) {
  const Workplace place;
  write_model(place);
  put(place, 0, 0, 0, 1);  // a weight like no other
  put(place, 1, kMatrixWidth - 1, kMatrixWidth - 1, NAN);
  for (int weight : {2, 3}) {
    put(place, weight, 0, 0, 2);
    put(place, weight, kMatrixWidth - 1, kMatrixWidth - 1, 3);
  }
  const Outcome outcome =
      place.run(words("compile large.onnx -o a.onnx --loss mse --optimizer adamw"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  if (!under_address_sanitizer()) {
    EXPECT_LE(outcome.peak, kMostResident);
  }
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("w1: holds a NaN or Inf"),
                                 HasSubstr("w2: has the values of w3, as far as samples show"),
                                 Not(HasSubstr("w0: "))));
  struct stat status {};
  ASSERT_EQ(::stat((place / "a.onnx.data").c_str(), &status), 0);
  EXPECT_GE(static_cast<uint64_t>(status.st_size), kMatrices * kMatrixBytes);
}

}  // namespace
}  // namespace halfnote::cli_test
