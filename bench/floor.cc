// halfnote-bench-floor ARTIFACT DEVICE GFLOPS GBPS [ROWS]: the least time of a training step on a
// machine that reaches so much, kernel by kernel: contractions at GFLOPS (in 16 bits; a quarter of
// that in f32) or the time to move their operands, all else at GBPS.
//
// It plans the step and runs nothing: with `cuda-emulated` it says what a GPU would have to do.
#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <map>

#include "base/error.h"
#include "bench/rates.h"
#include "compiler/onnx/import.h"
#include "runtime/train/session.h"

namespace {

using namespace halfnote;

struct Row {
  std::string text;
  int64_t calls = 0;
  double seconds = 0, bytes = 0, flops = 0;
};

double parse_number(std::string_view text) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc() && end == text.data() + text.size() && number > 0) return number;
  throw Error(ErrorCode::kUsage, "bad number")
      .expected("more than 0", "\"" + std::string(text) + "\"");
}

std::vector<Shape> shapes_of(const Session& session) {
  std::vector<Shape> shapes;
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) {
      if (!dim.known())
        throw Error(ErrorCode::kUsage, "input \"" + name + "\" has the symbolic dim " + dim.symbol)
            .expected("a model whose dims are numbers", "a symbol");
      shape.push_back(dim.value);
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

void print(const Program& program, const Rates& rates, size_t most) {
  std::map<std::string, Row> rows;
  Row total{.text = "the step"};
  for (const ProgramStep& step : program.steps) {
    const std::string text =
        fmt::format("{} {} {}", step.op, kernel_name(step), operands_text(step));
    Row& row = rows[text];
    row.text = text;
    for (Row* one : {&row, &total}) {
      ++one->calls;
      one->seconds += rates.seconds(step);
      one->bytes += moved_bytes(step);
      one->flops += step.flops;
    }
  }
  std::vector<Row> sorted = {total};
  for (auto& [text, row] : rows) sorted.push_back(row);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  std::cout << "      ms  share calls        GB    TFLOP\n";
  for (size_t i = 0; i < std::min(most + 1, sorted.size()); ++i) {
    const Row& row = sorted[i];
    std::cout << fmt::format("{:8.3f} {:5.1f}% {:5} {:9.3f} {:8.3f}  {}\n", 1e3 * row.seconds,
                             100 * row.seconds / total.seconds, row.calls, row.bytes / 1e9,
                             row.flops / 1e12, row.text);
  }
}

void run(int argc, char** argv) {
  SessionOptions options;
  options.device = argv[2];
  options.plan_only = true;
  options.keep_types = true;
  const Rates rates = {1e9 * parse_number(argv[3]), 1e9 * parse_number(argv[4])};
  Session session(import_model(argv[1], {}), options);
  session.prepare(shapes_of(session));
  const size_t rows = argc > 5 ? static_cast<size_t>(parse_number(argv[5])) : 40;
  print(*session.program("step"), rates, rows);
  std::cout << fmt::format("arena {:.3f} GB, state {:.3f} GB\n",
                           static_cast<double>(session.memory().arena) / 1e9,
                           static_cast<double>(session.memory().state) / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 6) {
    std::cerr << "usage: halfnote-bench-floor ARTIFACT DEVICE GFLOPS GBPS [ROWS]\n";
    return static_cast<int>(ErrorCode::kUsage);
  }
  try {
    run(argc, argv);
  } catch (const Error& error) {
    std::cerr << "halfnote-bench-floor: " << error.what() << "\n";
    return static_cast<int>(error.code());
  }
}
