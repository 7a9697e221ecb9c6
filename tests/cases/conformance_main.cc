// halfnote-conformance [--list] [--only TEXT] [--floor N] [--write-docs FILE] DIR…: runs ONNX's own
// backend tests, a line a case: pass, refused (with the reason) or WRONG. Ends with 1 when a result
// is wrong, or when fewer cases pass than --floor says.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <iostream>

#include "base/error.h"
#include "base/file.h"
#include "conformance.h"
#include "conformance_report.h"

namespace {

using namespace halfnote;
using cases::ConformanceCase;
using cases::Outcome;
using cases::Verdict;

struct Arguments {
  bool list = false, verbose = false;
  std::string only, docs;
  int64_t floor = 0;
  std::vector<std::string> folders;
};

std::vector<ConformanceCase> find_all(const Arguments& arguments) {
  std::vector<ConformanceCase> found;
  for (const std::string& folder : arguments.folders) {
    for (ConformanceCase& test : cases::find_conformance_cases(folder)) {
      if (test.name.find(arguments.only) != std::string::npos) found.push_back(std::move(test));
    }
  }
  return found;
}

void print(const ConformanceCase& test, const Outcome& outcome) {
  const std::string op = outcome.op.empty() ? "" : outcome.op + ": ";
  switch (outcome.verdict) {
    case Verdict::kPass:
      fmt::print("{}/{}  pass{}\n", test.kind, test.name, outcome.planned ? "" : " (node by node)");
      break;
    case Verdict::kRefused:
      fmt::print("{}/{}  refused: {}{}\n", test.kind, test.name, op, outcome.reason);
      break;
    case Verdict::kWrong:
      fmt::print("{}/{}  WRONG: {}{}\n", test.kind, test.name, op, outcome.reason);
      break;
  }
  std::fflush(stdout);
}

int run_all(const Arguments& arguments) {
  const std::vector<ConformanceCase> found = find_all(arguments);
  if (arguments.list) {
    for (const ConformanceCase& test : found) fmt::print("{}/{}\n", test.kind, test.name);
    return 0;
  }
  cases::ConformanceReport report;
  for (const ConformanceCase& test : found) {
    const Outcome outcome = cases::run_conformance(test);
    if (arguments.verbose || outcome.verdict != Verdict::kPass) print(test, outcome);
    report.add(test, outcome);
  }
  fmt::print("{}", report.summary());
  if (!arguments.docs.empty()) write_file_atomic(arguments.docs, report.document());
  if (report.count(Verdict::kWrong) > 0) return 1;
  if (report.count(Verdict::kPass) >= arguments.floor) return 0;
  fmt::print("fewer passes than --floor {}\n", arguments.floor);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"runs ONNX's own backend tests on the CPU", "halfnote-conformance"};
  Arguments arguments;
  app.add_flag("--list", arguments.list, "print the names of the cases, run nothing");
  app.add_flag("--verbose", arguments.verbose, "print the cases that pass, too");
  app.add_option("--only", arguments.only, "only cases whose name contains this");
  app.add_option("--floor", arguments.floor, "fail when fewer cases pass");
  app.add_option("--write-docs", arguments.docs, "write the list of what is not covered");
  app.add_option("DIR", arguments.folders, "case folders, or folders of them")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    return run_all(arguments);
  } catch (const Error& error) {
    std::cerr << "halfnote-conformance: " << error.what() << "\n";
    return error.exit_code();
  }
}
