// Finding the cases in ONNX's folders: KIND/test_NAME/{model.onnx,test_data_set_*}, and
// light/light_NAME.onnx, whose tolerances stand in real/test_NAME/data.json.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "conformance.h"

namespace halfnote::cases {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// Expected values that were themselves computed in f32, and carry its noise where the exact result
/// is 0: 1.9e-7, where ONNX's tolerance is 1e-7.
constexpr std::string_view kNoisy[] = {"test_dft_inverse", "test_dft_inverse_opset19"};
constexpr double kNoise = 1e-6;

void read_tolerances(const fs::path& file, ConformanceCase& test) {
  if (!fs::exists(file)) return;
  const nlohmann::json json = nlohmann::json::parse(read_text(file, size_t{1} << 20));
  test.relative = json.value("rtol", test.relative);
  test.absolute = json.value("atol", test.absolute);
}

ConformanceCase read_folder(const fs::path& folder) {
  ConformanceCase test;
  test.kind = folder.parent_path().filename().string();
  test.name = folder.filename().string();
  test.model = folder / "model.onnx";
  for (const fs::path& entry : entries(folder)) {
    if (entry.filename().string().starts_with("test_data_set")) test.data_sets.push_back(entry);
  }
  read_tolerances(folder / "data.json", test);
  const bool noisy = std::find(std::begin(kNoisy), std::end(kNoisy), test.name) != std::end(kNoisy);
  if (noisy) test.absolute = kNoise;
  return test;
}

ConformanceCase read_light(const fs::path& model) {
  ConformanceCase test;
  test.kind = "light";
  test.name = model.stem().string();
  test.model = model;
  test.expected = model.parent_path() / (test.name + "_output_0.pb");
  const fs::path data = model.parent_path().parent_path() / "real";
  read_tolerances(data / ("test_" + test.name.substr(6)) / "data.json", test);
  return test;
}

bool is_case(const fs::path& path) { return fs::exists(path / "model.onnx"); }
bool is_light(const fs::path& path) {
  return path.extension() == ".onnx" && path.filename().string().starts_with("light_");
}

void collect(const fs::path& path, int depth, std::vector<ConformanceCase>& cases) {
  if (is_case(path)) {
    cases.push_back(read_folder(path));
  } else if (is_light(path)) {
    cases.push_back(read_light(path));
  } else if (fs::is_directory(path) && depth > 0) {
    for (const fs::path& entry : entries(path)) collect(entry, depth - 1, cases);
  }
}

}  // namespace

std::vector<ConformanceCase> find_conformance_cases(const fs::path& folder) {
  std::vector<ConformanceCase> cases;
  collect(fs::weakly_canonical(folder), 2, cases);
  if (!cases.empty()) return cases;
  throw Error(ErrorCode::kUsage, "no case there")
      .at({folder.string(), {}, {}})
      .expected("folders with model.onnx, or light_*.onnx", "none")
      .hint("scripts/setup.sh unpacks ONNX's tests");
}

}  // namespace halfnote::cases
