// Writes kernels of this form (two inputs, one of them broadcast along rows; bf16):
//
//   template <int N>
//   void step_all(Some<bf16, N> x0, Some<bf16, N> x1, bf16* y0) {
//     const auto t0 = sum(x0, x1);
//     const auto t1 = each<bf16>([](Brief a) { return math::Gelu::value(a, …).value; }, t0);
//     put(y0, t1);
//   }
//
//   void chain_…(const Arguments a) {
//     for each group of 8 elements: load 8 of x0, 8 of x1; step_all<2>() 4 times; store 8 of y0
//     for each element that is left: step_all<1>()
//   }
//
// Where a step is a Dropout, four elements that follow each other share a counter of Philox: a
// group draws for all of its elements at once.
//
// Where a program ends in a sum over rows, a thread goes down its columns, a block of rows far, and
// leaves partial sums in f64, which chain.cu adds up in their order. Where it ends in sums along
// rows, some threads, a warp or a block go along each row, or a piece of it, and add up in f64.
//
// Every element of a group is loaded before the first one is stored, and no thread reads another's:
// an output may lie over an input that is read whole.
#include "kernels/cuda/elementwise/chain/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "base/system/hash.h"
#include "kernels/cpu/stateful/keep.h"

namespace halfnote::chain {

namespace {

using Op = PointwiseOp;

std::string_view memory_type(DType dtype) {
  return dtype == DType::kBool ? "truth" : short_name(dtype);
}
std::string_view number_type(DType dtype) {
  if (dtype == DType::kI64) return "i64";
  return dtype == DType::kBool ? "bool" : "float";
}
size_t bytes_of(DType dtype) { return size_of(dtype); }

/// Calls write(0) to write(count - 1), commas between them.
template <class Write>
std::string list(size_t count, const Write& write) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + write(i);
  return text;
}

/// The formula of kernels/math for an op of ONNX: mostly that of its name.
std::string_view formula_of(const PointwiseRow& row) {
  switch (row.code) {
    case Op::kAnd:
      return "BitAnd";
    case Op::kOr:
      return "BitOr";
    case Op::kXor:
      return "BitXor";
    default:
      return row.op;
  }
}

/// Numbers by their bits: whatever they are, none is rounded on its way through the text.
std::string parameters_of(const PointwiseNumbers& numbers) {
  return fmt::format("math::Parameters{{from_bits({:#010x}u), from_bits({:#010x}u)}}",
                     std::bit_cast<uint32_t>(numbers[0]), std::bit_cast<uint32_t>(numbers[1]));
}

/// Is an op with a result of 16 bits computed as kernels/cuda/elementwise/chain/brief.h has it?
bool is_brief(Op op) {
  switch (op) {
    case Op::kDiv:
    case Op::kErf:
    case Op::kErfGrad:
    case Op::kExp:
    case Op::kGelu:
    case Op::kGeluGrad:
    case Op::kMish:
    case Op::kMishGrad:
    case Op::kReciprocal:
    case Op::kSigmoid:
    case Op::kSoftplusGrad:
    case Op::kSoftsign:
    case Op::kSwish:
    case Op::kSwishGrad:
    case Op::kTanh:
      return true;
    default:
      return false;
  }
}

class Writer {
 public:
  explicit Writer(const Chain& chain)
      : chain_(chain), width_(width(chain)), sum_(sum_of(chain.program)) {}

  /// All but the name of the kernel, for which `$` stands.
  std::string write() {
    text_ = fmt::format("// {}\n// {}\n", to_text(chain_.program),
                        list(chain_.inputs.size(), [&](size_t i) { return describe(i); }));
    text_ += "namespace halfnote::HN_CUDA::generated::$_parts {\n\n";
    write_steps();
    write_kernel();
    text_ += "}  // namespace halfnote::HN_CUDA::generated::$_parts\n";
    return std::move(text_);
  }

 private:
  template <class... Values>
  void line(fmt::format_string<Values...> format, Values&&... values) {
    text_ += fmt::format(format, std::forward<Values>(values)...) + "\n";
  }

  bool walks(size_t i) const {
    return chain_.inputs[i].access == Access::kAlong || chain_.inputs[i].access == Access::kStay;
  }
  size_t walk_of(size_t i) const {
    size_t before = 0;
    for (size_t k = 0; k < i; ++k) before += walks(k) ? 1 : 0;
    return before;
  }
  size_t all_walks() const { return walk_of(chain_.inputs.size()); }

  std::string describe(size_t i) const {
    constexpr std::string_view kNames[] = {"whole", "single", "along", "stay"};
    return fmt::format("x{}: {}, {}", i, short_name(chain_.inputs[i].dtype),
                       kNames[static_cast<size_t>(chain_.inputs[i].access)]);
  }

  DType type_of(int operand) const {
    return operand >= 0 ? chain_.inputs[static_cast<size_t>(operand)].dtype
                        : chain_.program.steps[static_cast<size_t>(~operand)].dtype;
  }
  bool draws(size_t step) const { return chain_.program.steps[step].op == Op::kDropout; }

  /// write(step), a comma behind each, for the steps that draw.
  template <class Write>
  std::string for_draws(const Write& write) const {
    std::string text;
    for (size_t s = 0; s < chain_.program.steps.size(); ++s) {
      if (draws(s)) text += write(s) + ", ";
    }
    return text;
  }

  bool is_sum(size_t output) const { return sum_ && sum_->output == output; }
  DType summed_type() const {
    const auto step = static_cast<size_t>(chain_.program.outputs[sum_->output]);
    return type_of(chain_.program.steps[step].operands[0]);
  }

  static std::string name_of(int operand) {
    return operand >= 0 ? fmt::format("x{}", operand) : fmt::format("t{}", ~operand);
  }

  /// bool to float and back, of a value in registers.
  static std::string converted(DType from, DType to) {
    if (from == to || (from != DType::kBool && to != DType::kBool)) return "a";
    return to == DType::kBool ? "a != 0.0f" : "a ? 1.0f : 0.0f";
  }

  /// What a step computes from the numbers `a`, `b` and `c` of its operands.
  std::string formula_of_step(size_t number) const {
    const PointwiseStep& step = chain_.program.steps[number];
    const PointwiseRow& row = pointwise_row(step.op);
    switch (step.op) {
      case Op::kCast:
        return converted(type_of(step.operands[0]), step.dtype);
      case Op::kIdentity:
        return "a";
      case Op::kNot:
        return "!a";
      case Op::kWhere:
        return "a ? b : c";
      case Op::kDropout:
        return fmt::format("math::DropoutRule{{{:#x}ull, from_bits({:#010x}u)}}.value(a, b)",
                           cpu::keep_threshold(step.parameters[0]),
                           std::bit_cast<uint32_t>(cpu::keep_factor(step.parameters[0])));
      default:
        break;
    }
    const std::string parameters = parameters_of(step.parameters);
    std::string_view formula = formula_of(row);
    constexpr std::string_view kGradient = "Grad";
    if (formula.ends_with(kGradient)) {
      formula.remove_suffix(kGradient.size());
      return fmt::format("math::{}::gradient(a, b, {})", formula, parameters);
    }
    if (row.arity == 1) return fmt::format("math::{}::value(a, {})", formula, parameters);
    return fmt::format("math::{}::value(a, b)", formula);
  }

  /// The function of a step whose operands and result are of one type and that does two elements of
  /// 16 bits at once; none for others.
  std::string_view arithmetic_of(const PointwiseStep& step) const {
    for (size_t i = 0; i < 2; ++i) {
      if (type_of(step.operands[i]) != step.dtype) return "";
    }
    switch (step.op) {
      case Op::kAdd:
        return "sum";
      case Op::kSub:
        return "difference";
      case Op::kMul:
        return "product";
      default:
        return "";
    }
  }

  bool is_single(int operand) const {
    return operand >= 0 && chain_.inputs[static_cast<size_t>(operand)].access == Access::kSingle;
  }

  std::string expression_of(size_t number) const {
    const PointwiseStep& step = chain_.program.steps[number];
    const auto operand = [&](size_t i) { return name_of(step.operands[i]); };
    const size_t arity = step.op == Op::kDropout ? 2 : pointwise_row(step.op).arity;
    if (arity == 2) {
      if (const std::string_view name = arithmetic_of(step); !name.empty())
        return fmt::format("{}({}, {})", name, operand(0), operand(1));
    }
    const std::string_view type = memory_type(step.dtype);
    const bool brief = is_16bit_float(step.dtype) && is_brief(step.op);
    if (brief && step.op == Op::kDiv && is_single(step.operands[1])) {
      return fmt::format(
          "each<{}>([by = SameDivisor({}.template get<0>())](Brief a) {{ return "
          "by.quotient(a).value; }}, {})",
          type, operand(1), operand(0));
    }
    std::string arguments, names;
    for (size_t i = 0; i < arity; ++i) {
      const char name = "abc"[i];
      const bool word = step.op == Op::kDropout && i == 1;
      arguments += fmt::format("{}{} {}", i == 0 ? "" : ", ",
                               word    ? "uint32_t"
                               : brief ? "Brief"
                                       : number_type(type_of(step.operands[i])),
                               name);
      names += ", " + (word ? fmt::format("w{}", number) : operand(i));
    }
    const std::string formula = formula_of_step(number);
    return fmt::format("each<{}>([]({}) {{ return {}; }}{})", type, arguments,
                       brief ? "(" + formula + ").value" : formula, names);
  }

  /// Some elements through all steps.
  void write_steps() {
    const std::string inputs = list(chain_.inputs.size(), [&](size_t i) {
      return fmt::format("[[maybe_unused]] Some<{}, N> x{}", memory_type(chain_.inputs[i].dtype),
                         i);
    });
    const std::string outputs = list(chain_.outputs.size(), [&](size_t k) {
      return is_sum(k) ? fmt::format("Some<{}, N>& y{}", memory_type(summed_type()), k)
                       : fmt::format("{}* y{}", memory_type(chain_.outputs[k]), k);
    });
    const std::string words =
        for_draws([](size_t s) { return fmt::format("Some<word, N> w{}", s); });
    line("template <int N>");
    line("__device__ __forceinline__ void step_all({}, {}{}) {{", inputs, words, outputs);
    for (size_t i = 0; i < chain_.program.steps.size(); ++i) {
      if (halfnote::is_sum(chain_.program.steps[i].op)) continue;
      line("  [[maybe_unused]] const auto t{} = {};", i, expression_of(i));
    }
    for (size_t k = 0; k < chain_.program.outputs.size(); ++k) {
      const auto from = static_cast<size_t>(chain_.program.outputs[k]);
      if (is_sum(k)) {
        line("  y{} = {};", k, name_of(chain_.program.steps[from].operands[0]));
      } else {
        line("  put(y{}, t{});", k, from);
      }
    }
    text_ += "}\n\n";
  }

  /// Inputs, outputs and dropouts, whatever the elements.
  void write_operands() {
    // Sums have as many blocks as four a multiprocessor of an H100 make: all run at once.
    line(
        "extern \"C\" __global__ void __launch_bounds__(kThreads{}) $(\n    const "
        "__grid_constant__ Arguments a) {{",
        sum_ ? ", 4" : "");
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      const Input& input = chain_.inputs[i];
      line("  const auto* const in{} = static_cast<const {}*>(a.in[{}]);", i,
           memory_type(input.dtype), i);
      if (input.access == Access::kSingle) line("  const auto x{} = same(*in{});", i, i);
    }
    for (size_t s = 0; s < chain_.program.steps.size(); ++s) {
      const PointwiseStep& step = chain_.program.steps[s];
      if (draws(s))
        line("  const Drawing draw{}{{*in{}, *in{}, {}u}};", s, step.operands[1], step.operands[2],
             static_cast<uint32_t>(step.parameters[1]));
    }
    for (size_t k = 0; k < chain_.outputs.size(); ++k) {
      if (is_sum(k) && !sum_->along_rows) continue;
      line("  auto* const out{} = static_cast<{}*>(a.out[{}]);", k, memory_type(chain_.outputs[k]),
           k);
    }
  }

  void write_kernel() {
    write_operands();
    if (sum_) return sum_->along_rows ? write_row_sums() : write_sums();
    line("  const int64_t in_groups = a.groups * {}, items = a.groups + a.count - in_groups;",
         width_);
    line("  const int64_t threads = int64_t{{gridDim.x}} * kThreads;");
    line("  int64_t item = int64_t{{blockIdx.x}} * kThreads + threadIdx.x;");
    line("  for (; item < items; item += threads) {{");
    line("    if (item < a.groups) {{");
    line("      const int64_t at = item * {};", width_);
    write_group();
    line("    }} else {{");
    line("      const int64_t at = in_groups + (item - a.groups);");
    write_element();
    line("    }}");
    line("  }}");
    line("}}\n");
  }

  /// A thread goes down a group of columns, or one column, in a block of rows: its partial sums.
  void write_sums() {
    line("  const int64_t step = a.groups > 0 ? {} : 1, lines = a.columns / step;", width_);
    line("  const int64_t threads = int64_t{{gridDim.x}} * kThreads;");
    line("  int64_t item = int64_t{{blockIdx.x}} * kThreads + threadIdx.x;");
    line("  for (; item < lines * a.blocks; item += threads) {{");
    line("    const int64_t block = item / lines, column = item % lines * step;");
    line("    const int64_t end = (block + 1) * a.block_rows;");
    line("    const int64_t last = end < a.rows ? end : a.rows;");
    line("    double* const to = a.partials + block * a.columns + column;");
    line("    double sums[{}] = {{}};", width_);
    line("    if (a.groups > 0) {{");
    line("      for (int64_t row = block * a.block_rows; row < last; ++row) {{");
    line("      const int64_t at = row * a.columns + column;");
    write_group();
    line("      }}");
    line("#pragma unroll");
    line("      for (int i = 0; i < {}; ++i) to[i] = sums[i];", width_);
    line("    }} else {{");
    line("      for (int64_t row = block * a.block_rows; row < last; ++row) {{");
    line("      const int64_t at = row * a.columns + column;");
    write_element();
    line("      }}");
    line("      *to = sums[0];");
    line("    }}");
    line("  }}");
    line("}}\n");
  }

  /// The threads of a row go along a piece of it, group by group, and add up what they have.
  void write_row_sums() {
    line("  const int64_t pieces = a.rows * a.blocks, teams = kThreads >> a.row_bits;");
    line(
        "  for (int64_t first = blockIdx.x * teams; first < pieces; first += gridDim.x * teams) "
        "{{");
    line("    const int64_t item = first + (threadIdx.x >> a.row_bits);");
    line("    double sum = 0;");
    line("    if (item < pieces) {{");
    line("      const RowShare<{}> share(a, item);", width_);
    line("      for (int64_t g = 0; a.groups > 0 && g < share.groups; ++g) {{");
    line("      const int64_t at = share.group(g);");
    write_group();
    line("      }}");
    line("      for (int64_t i = a.groups > 0 ? share.grouped : 0; i < share.count; ++i) {{");
    line("      const int64_t at = share.at(i);");
    write_element();
    line("      }}");
    line("    }}");
    line("    sum = sum_of_row(sum, a.row_bits);");
    line("    if (RowShare<{}>::lane_of(a) != 0 || item >= pieces) continue;", width_);
    line("    if (a.blocks > 1) {{");
    line("      a.partials[item % a.blocks * a.rows + item / a.blocks] = sum;");
    line("    }} else {{");
    line("      assign(out{}[item], static_cast<float>(sum{}));", sum_->output,
         sum_->is_mean ? " / static_cast<double>(a.columns)" : "");
    line("    }}");
    line("  }}");
    line("}}\n");
  }

  /// What elements are added to, `index` being that of the first.
  void write_additions(std::string_view indent, std::string_view index, int count) {
    if (!sum_) return;
    for (int i = 0; i < count; ++i) {
      const std::string to = sum_->along_rows ? "sum" : fmt::format("sums[{} + {}]", index, i);
      line("{}{} += static_cast<double>(summed.template get<{}>());", indent, to, i);
    }
  }

  void write_element() {
    write_offsets("      ", "at", "offset");
    write_summed("      ", 1);
    line("      step_all<1>({}, {}{});",
         list(chain_.inputs.size(), [&](size_t i) { return element(i); }),
         for_draws([](size_t s) { return fmt::format("one(word{{draw{}.word(at)}})", s); }),
         list(chain_.outputs.size(), [&](size_t k) {
           return is_sum(k) ? std::string("summed") : fmt::format("out{} + at", k);
         }));
    write_additions("      ", "0", 1);
  }

  /// Elements that are summed.
  void write_summed(std::string_view indent, int count) {
    if (sum_) line("{}Some<{}, {}> summed;", indent, memory_type(summed_type()), count);
  }

  void write_offsets(std::string_view indent, std::string_view at, std::string_view name) {
    if (all_walks() == 0) return;
    line("{}int64_t {}[{}];", indent, name, all_walks());
    line("{}a.walk.offsets({}, {});", indent, at, name);
  }

  /// Input i at the element `at`, or where its walk stands.
  std::string element(size_t i) const {
    switch (chain_.inputs[i].access) {
      case Access::kWhole:
        return fmt::format("one(in{}[at])", i);
      case Access::kSingle:
        return fmt::format("one(*in{})", i);
      default:
        return fmt::format("one(in{}[offset[{}]])", i, walk_of(i));
    }
  }

  void write_group() {
    if (chain_.even) write_offsets("      ", "at", "offset");
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      const Access access = chain_.inputs[i].access;
      if (access == Access::kWhole)
        line("      const auto p{} = load<{}>(in{} + at);", i, width_, i);
      if (!chain_.even) continue;
      if (access == Access::kAlong)
        line("      const auto p{} = load<{}>(in{} + offset[{}]);", i, width_, i, walk_of(i));
      if (access == Access::kStay)
        line("      const auto x{} = same(in{}[offset[{}]]);", i, i, walk_of(i));
    }
    for (size_t k = 0; k < chain_.outputs.size(); ++k) {
      if (!is_sum(k)) line("      Pack<{}, {}> q{};", memory_type(chain_.outputs[k]), width_, k);
    }
    for (size_t s = 0; s < chain_.program.steps.size(); ++s) {
      if (!draws(s)) continue;
      line("      const math::PhiloxCounter d{}[] = {{{}}};", s,
           list(static_cast<size_t>(width_ / 4),
                [&](size_t k) { return fmt::format("draw{}.group(at / 4 + {})", s, k); }));
    }
    line("#pragma unroll");
    line("      for (int k = 0; k < {}; k += 2) {{", width_);
    if (!chain_.even) {
      write_offsets("        ", "at + k", "offset");
      write_offsets("        ", "at + k + 1", "next_offset");
    }
    write_summed("        ", 2);
    line("        step_all<2>({}, {}{});",
         list(chain_.inputs.size(), [&](size_t i) { return two_of_group(i); }),
         for_draws([](size_t s) {
           return fmt::format(
               "two(word{{d{0}[k / 4].word[k % 4]}}, word{{d{0}[k / 4].word[k % 4 + 1]}})", s);
         }),
         list(chain_.outputs.size(), [&](size_t k) {
           return is_sum(k) ? std::string("summed") : fmt::format("q{}.at + k", k);
         }));
    write_additions("        ", "k", 2);
    line("      }}");
    for (size_t k = 0; k < chain_.outputs.size(); ++k) {
      if (!is_sum(k)) line("      store(out{} + at, q{});", k, k);
    }
  }

  /// Input i at elements k and k + 1 of a group.
  std::string two_of_group(size_t i) const {
    const Access access = chain_.inputs[i].access;
    if (access == Access::kSingle || (access == Access::kStay && chain_.even))
      return fmt::format("x{}", i);
    if (access == Access::kWhole || chain_.even) return fmt::format("some<2>(p{}.at + k)", i);
    return fmt::format("two(in{0}[offset[{1}]], in{0}[next_offset[{1}]])", i, walk_of(i));
  }

  const Chain& chain_;
  const int width_;
  const std::optional<PointwiseSum> sum_;
  std::string text_;
};

}  // namespace

int width(const Chain& chain) {
  size_t smallest = 0;
  const auto note = [&](DType dtype) {
    if (dtype == DType::kBool || dtype == DType::kI64) return;
    smallest = smallest == 0 ? bytes_of(dtype) : std::min(smallest, bytes_of(dtype));
  };
  for (const Input& input : chain.inputs) note(input.dtype);
  for (const DType dtype : chain.outputs) note(dtype);
  return static_cast<int>(16 / std::max<size_t>(smallest, 1));
}

Source source_of(const Chain& chain) {
  Source source;
  const std::string text = Writer(chain).write();
  source.name = "chain_" + content_hash(text).substr(0, 16);
  source.text = "#include \"kernels/cuda/elementwise/chain/element.h\"\n\n";
  size_t at = 0;
  for (size_t found = text.find('$'); found != std::string::npos; found = text.find('$', at)) {
    source.text += text.substr(at, found - at) + source.name;
    at = found + 1;
  }
  source.text += text.substr(at);
  return source;
}

}  // namespace halfnote::chain
