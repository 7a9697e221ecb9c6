// Golden files: many small models in one text file, each with what a pass makes of it.
//
//   # what the file shows
//   ### the property that a case shows
//   options: precision=bf16 loss=cross_entropy      (any of the keys in golden_file.cc)
//   before: infer-shapes canonicalize               (rows of the pipeline; `all`: those before)
//   show: step                                      (print this graph only; default: the model)
//   run: no, REASON                                 (do not execute both sides)
//   main (float[N,2] x) => (y) { y = Relu (x) }
//   ---
//   the printed result, or `unchanged`, or `error: KIND part of the message`
#pragma once

#include <string>
#include <vector>

#include "passes/options.h"

namespace halfnote::test {

struct GoldenCase {
  std::string title;
  int line = 0;
  std::string options_text, before_text, show, no_run;
  CompileOptions options;
  std::vector<std::string> before;
  std::string text, expected;
};

struct GoldenFile {
  std::string path, head;
  std::vector<GoldenCase> cases;
};

/// Reads a file; throws Error(kUsage) with its line for anything out of form.
GoldenFile read_golden(const std::string& path);
/// Writes it back in the same form.
void write_golden(const GoldenFile& file);

}  // namespace halfnote::test
