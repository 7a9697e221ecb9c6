#include "conformance_report.h"

#include <fmt/format.h>

#include <algorithm>

namespace halfnote::cases {
namespace {

constexpr size_t kWidth = 100;

/// Words separated by spaces, in lines of the document's width.
std::string wrap(const std::vector<std::string>& words) {
  std::string text;
  size_t column = 0;
  for (const std::string& word : words) {
    if (column > 0 && column + 1 + word.size() > kWidth) {
      text += "\n";
      column = 0;
    }
    text += (column > 0 ? " " : "") + word;
    column += word.size() + (column > 0 ? 1 : 0);
  }
  return text + "\n";
}

}  // namespace

void ConformanceReport::add(const ConformanceCase& test, const Outcome& outcome) {
  Counts& counts = counts_[test.kind];
  if (outcome.verdict == Verdict::kPass) {
    ++counts.pass;
    counts.node_by_node += outcome.planned ? 0 : 1;
    return;
  }
  ++(outcome.verdict == Verdict::kWrong ? counts.wrong : counts.refused);
  const std::string op = outcome.op.empty() ? "" : outcome.op + ": ";
  refusals_[op + outcome.reason].push_back(test.name);
}

int64_t ConformanceReport::count(Verdict verdict) const {
  int64_t sum = 0;
  for (const auto& [kind, counts] : counts_) {
    sum += verdict == Verdict::kPass      ? counts.pass
           : verdict == Verdict::kRefused ? counts.refused
                                          : counts.wrong;
  }
  return sum;
}

std::string ConformanceReport::summary() const {
  std::string text;
  for (const auto& [kind, counts] : counts_) {
    text += fmt::format("{:<20} {:>5} pass ({} node by node), {} refused, {} wrong\n", kind,
                        counts.pass, counts.node_by_node, counts.refused, counts.wrong);
  }
  return text;
}

std::string ConformanceReport::document() const {
  std::string text =
      "# ONNX's own tests\n\n"
      "`halfnote-conformance` imports each model of ONNX's backend tests (those in the source\n"
      "distribution of onnx 1.22.0), brings it to canonical form, evaluates it on the CPU and\n"
      "compares with ONNX's tolerances. This page is generated: "
      "`scripts/update_conformance.sh`.\n\n"
      "| tests | pass | of these node by node | refused | wrong |\n|---|---|---|---|---|\n";
  for (const auto& [kind, c] : counts_) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", kind, c.pass, c.node_by_node, c.refused,
                        c.wrong);
  }
  text +=
      "\nA model whose shapes depend on data (axes and sizes that are inputs, too), or that has\n"
      "sequences, strings or control flow, is evaluated node by node; all others run as the "
      "Program\n"
      "that training uses. Of the tests of DFT two expect 1.9e-7 where the exact result is 0: "
      "there\n"
      "the absolute tolerance is 1e-6 instead of 1e-7.\n\n"
      "## What is not covered, and why\n";
  for (const auto& [reason, names] : refusals_) {
    text += fmt::format("\n### {} ({})\n\n", reason, names.size());
    text += wrap(names);
  }
  return text;
}

}  // namespace halfnote::cases
