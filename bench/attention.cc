// halfnote-bench-attention [BATCH HEADS SIZE [RATIO [LENGTH]]]: attention forward and backward as
// GPT-2 has them, on the kernels that a step gets, with and without fuse-attention; with a dropout
// of RATIO on the probabilities, if it is above 0.
//
// Both graphs run by turns in one process on one thread; a time is the processor time of the
// fastest of several runs, so that other load on the machine says little. A line for each type,
// mask and length: milliseconds and bytes of the arena without and with the pass, and their ratios.
#include <fmt/format.h>

#include <cmath>

#include "bench/by_turns.h"
#include "compiler/ir/text.h"

namespace {

using namespace halfnote;
using bench::inputs_of;
using bench::Side;

constexpr int kTurns = 5;

struct Sizes {
  int64_t batch = 2, heads = 12, size = 64, length = 0;
  bool causal = false;
  double ratio = 0;
  DType dtype = DType::kBF16;
};

std::string mask_text(const Sizes& s) {
  std::string bits;
  for (int64_t i = 0; i < s.length * s.length; ++i)
    bits += fmt::format("{}{}", i == 0 ? "" : ", ", i % s.length <= i / s.length ? 1 : 0);
  return fmt::format(",\n bool[1,1,{0},{0}] before = {{{1}}}", s.length, bits);
}

/// Scores in the type of the operands, Softmax and its gradient in f32, as a compiled model has it.
std::string model_text(const Sizes& s) {
  const bool wide = s.dtype == DType::kF32;
  const std::string type = wide ? "float" : s.dtype == DType::kF16 ? "float16" : "bfloat16";
  const std::string x = fmt::format("{}[{},{},{},{}]", type, s.batch, s.heads, s.length, s.size);
  const std::string dims = fmt::format("[{},{},{},{}]", s.batch, s.heads, s.length, s.length);
  const std::string narrow = type + dims, full = "float" + dims;
  const auto code = static_cast<int>(s.dtype);
  const std::string back = "  # role=backward\n";
  std::string text = fmt::format(
      "<ir_version: 10, opset_import: [\"\" : 23, \"ai.halfnote\" : 1]>\n"
      "main ({0} q, {0} k, {0} v, {0} dy, int64 seed, int64 step) => ({0} y, {0} dq, {0} dk, {0} "
      "dv) <\n"
      " {1} root = {{{2}}}, {1} zero = {{0.0}}, float low = {{-3e38}}{3}\n> {{\n",
      x, type, fmt::format("{:.1f}", std::sqrt(static_cast<double>(s.size))),
      s.causal ? mask_text(s) : "");
  text += fmt::format("{0} s = ai.halfnote.MatMul <transB: int = 1> (q, k)\n", narrow);
  text += fmt::format("{0} d = Div (s, root)\n", narrow);
  text += fmt::format("{0} w = Cast <to: int = 1> (d)\n", full);
  if (s.causal) text += fmt::format("{0} m = Where (before, w, low)\n", full);
  text += fmt::format("{0} p = Softmax ({1})\n", full, s.causal ? "m" : "w");
  const bool drops = s.ratio > 0;
  const std::string drop =
      fmt::format("ai.halfnote.Dropout <node: int = 1, ratio: float = {:.6f}>", s.ratio);
  text += fmt::format("{0} b = Cast <to: int = {1}> (p)\n", narrow, code);
  if (drops) text += fmt::format("{0} bd = {1} (b, seed, step)\n", narrow, drop);
  const char* weights = drops ? "bd" : "b";
  text += fmt::format("{0} y = MatMul ({1}, v)\n", x, weights);
  text += fmt::format("{0} dp = ai.halfnote.MatMul <out_dtype: int = 1, transB: int = 1> (dy, v)",
                      full) +
          back;
  text += fmt::format("{0} dv = ai.halfnote.MatMul <transA: int = 1> ({1}, dy)", x, weights) + back;
  if (drops) text += fmt::format("{0} dpd = {1} (dp, seed, step)", full, drop) + back;
  text +=
      fmt::format("{0} ds = ai.halfnote.SoftmaxGrad ({1}, p)", full, drops ? "dpd" : "dp") + back;
  text += fmt::format("{0} c = Cast <to: int = {1}> (ds)", narrow, code) + back;
  if (s.causal) text += fmt::format("{0} n = Where (before, c, zero)", narrow) + back;
  text += fmt::format("{0} e = Div ({1}, root)", narrow, s.causal ? "n" : "c") + back;
  text += fmt::format("{0} dq = ai.halfnote.MatMul (e, k)", x) + back;
  text += fmt::format("{0} dk = ai.halfnote.MatMul <transA: int = 1> (e, q)", x) + back + "}\n";
  return text;
}

void compare(const Sizes& s) {
  const Model model = parse_model(model_text(s), "attention");
  const std::vector<Tensor> inputs = inputs_of(model.graph, 1);
  Side apart(model, "fuse-attention"), fused(model);
  for (int turn = 0; turn < kTurns; ++turn) {
    apart.turn(inputs);
    fused.turn(inputs);
  }
  fmt::print("{:>4} {:>6} {:>5}  {:9.2f} {:9.2f} ms {:6.2f}  {:9.1f} {:9.1f} MiB {:6.2f}\n",
             short_name(s.dtype), s.causal ? "causal" : "", s.length, apart.best * 1e3,
             fused.best * 1e3, apart.best / fused.best, apart.mebibytes(), fused.mebibytes(),
             apart.mebibytes() / fused.mebibytes());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  std::vector<int64_t> lengths = {16, 32, 64, 128, 256, 512, 1024};
  if (argc >= 5) s.ratio = std::atof(argv[4]);
  if (argc >= 6) lengths = {std::atoll(argv[5])};
  if (argc >= 4) {
    s.batch = std::atoll(argv[1]);
    s.heads = std::atoll(argv[2]);
    s.size = std::atoll(argv[3]);
  }
  for (const DType dtype : {DType::kBF16, DType::kF32, DType::kF16}) {
    for (const int64_t length : lengths) {
      for (const bool causal : {false, true}) {
        s.dtype = dtype;
        s.length = length;
        s.causal = causal;
        compare(s);
      }
    }
  }
}
