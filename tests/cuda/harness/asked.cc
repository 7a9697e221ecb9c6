#include "tests/cuda/harness/asked.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace halfnote::test {

namespace {

Session session_of(const std::filesystem::path& folder, DType precision) {
  std::ifstream file(folder / "case.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {json.at("loss_output").get<std::string>()};
  SessionOptions on_device;
  on_device.device = "cuda-emulated";
  return Session(compile_file(folder / "model.onnx", options).model, on_device);
}

}  // namespace

libraries::ConvProblem legal_convolution() {
  libraries::ConvProblem problem;
  cpu::ConvPlan& p = problem.plan;
  p.batch = 4;
  p.channels = 8;
  p.filters = 16;
  p.groups = 2;
  p.spatial = 2;
  p.in = {1, 9, 7};
  p.out = {1, 5, 4};
  p.kernel = {1, 3, 3};
  p.stride = {1, 2, 2};
  p.pad_begin = p.pad_end = {0, 1, 1};
  problem.operands = problem.result = DType::kBF16;
  return problem;
}

CapturedStep::CapturedStep(const std::filesystem::path& folder, DType precision)
    : session_(session_of(folder, precision)) {}

void CapturedStep::capture() {
  std::vector<Shape> shapes;
  for (const auto& [name, type] : session_.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *type.shape) shapes.back().push_back(dim.known() ? dim.value : 4);
  }
  session_.prepare(shapes);
}

}  // namespace halfnote::test
