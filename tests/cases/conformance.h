// ONNX's own backend tests: a folder with a model, inputs and outputs (or a single `light_*.onnx`
// file), imported, brought to canonical form, evaluated on the CPU and compared with ONNX's
// tolerances.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halfnote::cases {

/// One test: where it is, and how closely results must agree.
struct ConformanceCase {
  std::string kind, name;  // `node`, `test_abs`
  std::filesystem::path model;
  std::vector<std::filesystem::path> data_sets;  // folders with input_*.pb and output_*.pb …
  std::filesystem::path expected;  // … or, of a light model, the file of its only output
  double relative = 1e-3, absolute = 1e-7;
};

/// The cases of a case folder, of a folder of cases, or of ONNX's whole `data` folder, by kind and
/// name. Throws Error(kUsage) where there are none.
std::vector<ConformanceCase> find_conformance_cases(const std::filesystem::path& folder);

enum class Verdict { kPass, kRefused, kWrong };

struct Outcome {
  Verdict verdict = Verdict::kPass;
  std::string op;       // that was refused; empty where it is not one op
  std::string reason;   // of a refusal, without names of nodes; or what differs
  bool planned = true;  // ran as a Program; else node by node
};

/// Runs one case. Whatever is thrown becomes an outcome.
Outcome run_conformance(const ConformanceCase& test);

}  // namespace halfnote::cases
