// What a GPU has to do in a step of the small fixtures, from the plan alone: kernels by row, and
// the bytes that they move (bench/rates.h: the floor of bench/floor.cc without the rates).
// floors.txt holds it, so that no pass and no row is lost unseen. After a change that is meant:
//
//   HALFNOTE_UPDATE_GOLDEN=1 build/release/bin/halfnote_cuda_test --gtest_filter='PlanFloor.*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "bench/rates.h"
#include "passes/compile.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFloorModels[] = {"bert", "gpt2", "vit", "resnet50_narrow", "cifar_cnn"};

/// The sum, then lines of `model calls bytes op kernel`.
std::string floor_of(const std::string& name) {
  const fs::path folder = fs::path(test::source_folder()) / "tests/fixtures/models" / name;
  std::ifstream about(folder / "case.json");
  CompileOptions options;
  options.policy.dtype = DType::kBF16;
  options.train.loss_outputs = {nlohmann::json::parse(about).at("loss_output")};
  SessionOptions on;
  on.device = "cuda-emulated";
  on.plan_only = true;
  on.keep_types = true;
  Session session(compile_file(folder / "model.onnx", options).model, on);
  std::vector<Shape> shapes;
  for (const auto& [input, type] : session.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *type.shape) shapes.back().push_back(dim.known() ? dim.value : 4);
  }
  session.prepare(shapes);
  struct Row {
    int64_t calls = 0, bytes = 0;
  };
  std::map<std::string, Row> rows;
  Row sum;
  for (const ProgramStep& step : session.program("step")->steps) {
    for (Row* row : {&sum, &rows[step.op + " " + std::string(kernel_name(step))]}) {
      ++row->calls;
      row->bytes += static_cast<int64_t>(moved_bytes(step));
    }
  }
  std::ostringstream text;
  text << name << ": " << sum.calls << " kernels, " << sum.bytes << " bytes\n";
  for (const auto& [what, row] : rows)
    text << name << " " << row.calls << " " << row.bytes << " " << what << "\n";
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The lines of either that the other lacks: `- was`, `+ is`.
std::string difference(const std::string& was, const std::string& is) {
  const std::vector<std::string> before = lines_of(was), after = lines_of(is);
  std::string text;
  for (const std::string& line : before) {
    if (std::ranges::find(after, line) == after.end()) text += "- " + line + "\n";
  }
  for (const std::string& line : after) {
    if (std::ranges::find(before, line) == before.end()) text += "+ " + line + "\n";
  }
  return text;
}

TEST(PlanFloor, KernelsAndBytesOfTheFixtures) {
  const fs::path table = fs::path(test::source_folder()) / "tests/cuda/floor/floors.txt";
  std::string is;
  for (const char* name : kFloorModels) is += (is.empty() ? "" : "\n") + floor_of(name);
  if (std::getenv("HALFNOTE_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(table) << is;
    return;
  }
  std::ifstream file(table);
  const std::string was((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(was == is)
      << "calls, bytes, op and kernel of the captured steps in bf16 are not those of " << table
      << ":\n"
      << difference(was, is)
      << "if that is meant: HALFNOTE_UPDATE_GOLDEN=1 halfnote_cuda_test "
         "--gtest_filter='PlanFloor.*', and look at the difference";
}

}  // namespace
}  // namespace halfnote
