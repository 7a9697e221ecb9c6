// halfnote-bench-chains [ROWS COLUMNS]: what ends or stands in chains of elementwise operators, in
// the chain and as nodes of their own: dropouts, sums over rows (the gradients of biases), along
// rows, and of all elements (a loss).
//
// Both graphs run by turns in one process on one thread; a time is the processor time of the
// fastest of several runs, so that other load on the machine says little. A line for each chain and
// type: microseconds and bytes of the arena apart and fused, and their ratios.
#include <fmt/format.h>

#include "bench/by_turns.h"
#include "compiler/ir/text.h"

namespace {

using namespace halfnote;
using bench::inputs_of;
using bench::Side;

constexpr int kTurns = 40;

struct Sizes {
  int64_t rows = 1024, columns = 3072;
};

/// `{t}` is a matrix, `{r}` a row, `{w}` a row of f32, `{c}` a column of f32, `{u}` one element,
/// `{n}` the number of a dropout.
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
    {"square, sum along rows", "{c} s",
     "{t} q = Mul (x, x)\n"
     "{c} s = ai.halfnote.ReduceSum <axes: ints = [1], keepdims: int = 0, out_dtype: int = 1> "
     "(q)\n"},
    {"product stored, sum along rows", "{t} y, {c} s",
     "{t} y = Mul (x, z)\n"
     "{c} s = ai.halfnote.ReduceSum <axes: ints = [1], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
    {"gelu's gradient, sum along rows", "{t} y, {c} s",
     "{t} y = ai.halfnote.GeluGrad (x, z)\n"
     "{c} s = ai.halfnote.ReduceSum <axes: ints = [1], keepdims: int = 0, out_dtype: int = 1> "
     "(y)\n"},
    {"squared difference, mean of all", "{t} d, {u} l",
     "{t} d = Sub (x, z)\n{t} q = Mul (d, d)\n{u} l = ReduceMean <keepdims: int = 0> (q)\n"},
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
  text = replaced(text, "{c}", fmt::format("float[{}]", s.rows));
  text = replaced(text, "{u}", type);
  return parse_model(replaced(text, "{n}", fused ? "3" : "16777217"), "chains");
}

void compare(const ChainText& chain, const Sizes& s, DType dtype) {
  const Model model = model_of(chain, s, dtype, true);
  const std::vector<Tensor> inputs = inputs_of(model.graph, 2);
  Side apart(model_of(chain, s, dtype, false), "absorb-sums"), fused(model);
  for (int turn = 0; turn < kTurns; ++turn) {
    apart.turn(inputs);
    fused.turn(inputs);
  }
  fmt::print("{:36} {:>4}  {:8.0f} {:8.0f} µs {:5.2f}  {:6.1f} {:6.1f} MiB\n", chain.title,
             short_name(dtype), apart.best * 1e6, fused.best * 1e6, apart.best / fused.best,
             apart.mebibytes(), fused.mebibytes());
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
