// halfnote-cases [--precision fp32|bf16|fp16] [--device NAME] DIR…: runs case folders and holds
// them against the bars.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "case.h"
#include "passes/policy_file.h"

namespace {

namespace fs = std::filesystem;
using namespace halfnote;

/// A folder that holds cases stands for all of them, in order of their names.
std::vector<fs::path> expand(const std::vector<std::string>& arguments) {
  std::vector<fs::path> folders;
  for (const std::string& argument : arguments) {
    if (fs::exists(fs::path(argument) / "case.json")) {
      folders.emplace_back(argument);
      continue;
    }
    std::vector<fs::path> inner;
    if (fs::is_directory(argument)) {
      for (const auto& entry : fs::directory_iterator(argument)) {
        if (fs::exists(entry.path() / "case.json")) inner.push_back(entry.path());
      }
    }
    if (inner.empty()) {
      throw Error(ErrorCode::kUsage, "no case there")
          .at({argument, {}, {}})
          .expected("a folder with case.json", "none");
    }
    std::sort(inner.begin(), inner.end());
    folders.insert(folders.end(), inner.begin(), inner.end());
  }
  return folders;
}

int run_all(const std::vector<fs::path>& folders, DType precision, const std::string& kernels,
            const std::string& device) {
  int failed = 0;
  for (const fs::path& folder : folders) {
    const std::string name = folder.filename().empty() ? folder.parent_path().filename().string()
                                                       : folder.filename().string();
    try {
      const cases::CaseResult result = cases::run_case(folder, precision, kernels, device);
      failed += result.failures.empty() ? 0 : 1;
      std::cout << cases::describe(name, result) << std::endl;
    } catch (const std::exception& error) {
      ++failed;
      std::cout << name << "  FAIL: " << error.what() << std::endl;
    }
  }
  std::cout << folders.size() - static_cast<size_t>(failed) << " passed, " << failed << " failed"
            << std::endl;
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "runs case folders through the public API and holds them against the bars; what a case.json "
      "may hold stands in tests/cases/case.h",
      "halfnote-cases"};
  std::string precision = "fp32", device = "cpu", kernels;
  std::vector<std::string> arguments;
  app.add_option("--precision", precision, "fp32, bf16 or fp16 (default: fp32)");
  app.add_option("--device", device, "cpu, cuda, cuda:N or cuda-emulated (default: cpu)");
  app.add_option("--kernels", kernels, "only kernels whose name starts with this (reference)");
  app.add_option("DIR", arguments, "case folders, or folders of case folders")->required();
  app.footer(
      "A line says: loss, its relative error; grad, the worst tensor's |error| / (|gradient| +\n"
      "0.01 |all gradients|), L2 norms, bar in fp32 1e-4; cos, the cosine over all gradients;\n"
      "each optimizer's worst relative error of the loss over its steps; cpu, in fp32 on a\n"
      "device, the worst relative difference to the same run on the CPU, of a gradient in shares\n"
      "of its norm, or of 0.01 |all gradients| where that is more (bar 1e-5, or three times what\n"
      "PyTorch in f32 misses where that is more); 16-bit, the share of the contractions' FLOPs\n"
      "on 16-bit inputs.");
  CLI11_PARSE(app, argc, argv);
  try {
    return run_all(expand(arguments), parse_precision(precision), kernels, device);
  } catch (const Error& error) {
    std::cerr << "halfnote-cases: " << error.what() << "\n";
    return error.exit_code();
  }
}
