// halfnote-bench-chains [ROWS COLUMNS]: what ends or stands in chains of elementwise operators, in
// the chain and as nodes of their own: dropouts, and sums over rows (the gradients of biases).
//
// Both graphs run by turns in one process on one thread; a time is the processor time of the
// fastest of several runs, so that other load on the machine says little. A line for each chain and
// type: microseconds and bytes of the arena apart and fused, and their ratios.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "compiler/ir/text.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/manager.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/executor.h"

namespace {

using namespace halfnote;

constexpr int kTurns = 40;

struct Sizes {
  int64_t rows = 1024, columns = 3072;
};

/// `{t}` is a matrix, `{r}` a row, `{w}` a row of f32, `{n}` the number of a dropout.
struct ChainText {
  const char* title;
  const char* results;
  const char* nodes;
};

constexpr ChainText kChains[] = {
    {"bias, gelu, dropout", "{t} y",
     "{t} a = Add (x, bias)\n{t} e = Gelu (a)\n"
     "{t} y = ai.halfnote.Dropout <ratio: float = 0.1, node: int = {n}> (e, seed, step)\n"},
    {"dropout, residual", "{t} y",
     "{t} d = ai.halfnote.Dropout <ratio: float = 0.1, node: int = {n}> (x, seed, step)\n"
     "{t} y = Add (d, z)\n"},
    {"dropout's gradient, sum", "{t} y, {w} b",
     "{t} y = ai.halfnote.Dropout <ratio: float = 0.1, node: int = {n}> (x, seed, step)\n"
     "{w} b = ai.halfnote.ReduceSum <axes: ints = [0], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
    {"relu's gradient, sum", "{t} y, {w} b",
     "{t} y = ai.halfnote.ReluGrad (x, z)\n"
     "{w} b = ai.halfnote.ReduceSum <axes: ints = [0], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
    {"gelu's gradient, sum", "{t} y, {w} b",
     "{t} y = ai.halfnote.GeluGrad (x, z)\n"
     "{w} b = ai.halfnote.ReduceSum <axes: ints = [0], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
    {"dropout's and gelu's gradient, sum", "{t} y, {w} b",
     "{t} d = ai.halfnote.Dropout <ratio: float = 0.1, node: int = {n}> (x, seed, step)\n"
     "{t} y = ai.halfnote.GeluGrad (d, z)\n"
     "{w} b = ai.halfnote.ReduceSum <axes: ints = [0], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
};

std::string replaced(std::string text, std::string_view what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size()))
    text.replace(at, what.size(), by);
  return text;
}

/// Apart, the dropout has a number that no program holds.
Model model_of(const ChainText& chain, const Sizes& s, DType dtype, bool fused) {
  const std::string type = dtype == DType::kF32 ? "float" : "bfloat16";
  std::string text = fmt::format(
      "<ir_version: 10, opset_import: [\"\" : 23, \"ai.halfnote\" : 1]>\n"
      "main ({{t}} x, {{t}} z, {{r}} bias, int64 seed, int64 step) => ({}) {{\n{}}}\n",
      chain.results, chain.nodes);
  text = replaced(text, "{t}", fmt::format("{}[{},{}]", type, s.rows, s.columns));
  text = replaced(text, "{r}", fmt::format("{}[{}]", type, s.columns));
  text = replaced(text, "{w}", fmt::format("float[{}]", s.columns));
  return parse_model(replaced(text, "{n}", fused ? "3" : "16777217"), "chains");
}

struct Side {
  StateStore store;
  std::unique_ptr<Executor> executor;
  double best = 1e9;

  Side(Model model, bool fused) {
    std::vector<PassRow> rows;
    for (const PassRow& row : device_pipeline()) {
      if (fused || row.name != "absorb-sums") rows.push_back(row);
    }
    CompileOptions options;
    std::vector<Remark> remarks;
    PassContext context{options,
                        infer_node,
                        [](const Graph& g, NodeId n, const std::vector<Tensor>& inputs) {
                          return evaluate_node(g, n, inputs);
                        },
                        remarks,
                        {}};
    run_pipeline(model, context, rows);
    executor = std::make_unique<Executor>(plan(model.graph, store, {}), store);
  }

  void turn(const std::vector<Tensor>& inputs) {
    const std::clock_t begin = std::clock();
    executor->run(inputs);
    best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
};

std::vector<Tensor> inputs_of(const Graph& graph) {
  std::vector<Tensor> inputs;
  for (const ValueId input : graph.inputs()) {
    Tensor numbers(DType::kF32, concrete(*graph.value(input).type.shape));
    uint32_t state = input.index + 1;
    for (float& number : numbers.mutable_data<float>()) {
      state = state * 1664525u + 1013904223u;
      number = static_cast<float>(state >> 8) / static_cast<float>(1 << 22) - 2;
    }
    inputs.push_back(numbers.cast_to(graph.value(input).type.dtype));
  }
  return inputs;
}

void compare(const ChainText& chain, const Sizes& s, DType dtype) {
  const Model model = model_of(chain, s, dtype, true);
  const std::vector<Tensor> inputs = inputs_of(model.graph);
  Side apart(model_of(chain, s, dtype, false), false), fused(model, true);
  for (int turn = 0; turn < kTurns; ++turn) {
    apart.turn(inputs);
    fused.turn(inputs);
  }
  const auto bytes = [](const Side& side) {
    return static_cast<double>(side.executor->program().arena_bytes) / (1 << 20);
  };
  fmt::print("{:36} {:>4}  {:8.0f} {:8.0f} µs {:5.2f}  {:6.1f} {:6.1f} MiB\n", chain.title,
             short_name(dtype), apart.best * 1e6, fused.best * 1e6, apart.best / fused.best,
             bytes(apart), bytes(fused));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  if (argc >= 3) s = {std::atoll(argv[1]), std::atoll(argv[2])};
  for (const ChainText& chain : kChains) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) compare(chain, s, dtype);
  }
}
