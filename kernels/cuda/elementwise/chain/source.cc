// Writes kernels of this form (two inputs, one of them broadcast along rows; bf16):
//
//   void step_all(float x0, float x1, bf16& y0) {
//     const float t0 = rounded<bf16>(math::Add::value(x0, x1));
//     const float t1 = rounded<bf16>(math::Gelu::value(t0, P(0x3f800000u, 0x00000000u)));
//     assign(y0, t1);
//   }
//
//   void chain_…(const Arguments a) {
//     for each group of 8 elements: load 8 of x0, 8 of x1; step_all() 8 times; store 8 of y0
//     for each element that is left: the same, one by one
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

  static std::string name_of(int operand) {
    return operand >= 0 ? fmt::format("x{}", operand) : fmt::format("t{}", ~operand);
  }

  /// bool to float and back, of a value in registers.
  static std::string converted(const std::string& value, DType from, DType to) {
    if (from == to || (from != DType::kBool && to != DType::kBool)) return value;
    return to == DType::kBool ? value + " != 0.0f" : value + " ? 1.0f : 0.0f";
  }

  std::string expression_of(size_t number) const {
    const PointwiseStep& step = chain_.program.steps[number];
    const PointwiseRow& row = pointwise_row(step.op);
    const auto operand = [&](size_t i) { return name_of(step.operands[i]); };
    switch (step.op) {
      case Op::kCast:
        return converted(operand(0), type_of(step.operands[0]), step.dtype);
      case Op::kIdentity:
        return operand(0);
      case Op::kNot:
        return "!" + operand(0);
      case Op::kWhere:
        return fmt::format("{} ? {} : {}", operand(0), operand(1), operand(2));
      case Op::kDiv:
        if (is_16bit_float(step.dtype)) {
          return fmt::format("short_quotient({}, {})", operand(0), operand(1));
        }
        break;
      case Op::kDropout:
        return fmt::format("math::DropoutRule{{{:#x}ull, from_bits({:#010x}u)}}.value({}, w{})",
                           cpu::keep_threshold(step.parameters[0]),
                           std::bit_cast<uint32_t>(cpu::keep_factor(step.parameters[0])),
                           operand(0), number);
      default:
        break;
    }
    const std::string parameters = parameters_of(step.parameters);
    std::string_view formula = formula_of(row);
    constexpr std::string_view kGradient = "Grad";
    if (formula.ends_with(kGradient)) {
      formula.remove_suffix(kGradient.size());
      return fmt::format("math::{}::gradient({}, {}, {})", formula, operand(0), operand(1),
                         parameters);
    }
    if (row.arity == 1)
      return fmt::format("math::{}::value({}, {})", formula, operand(0), parameters);
    return fmt::format("math::{}::value({}, {})", formula, operand(0), operand(1));
  }

  /// One element through all steps.
  void write_steps() {
    const std::string inputs = list(chain_.inputs.size(), [&](size_t i) {
      return fmt::format("[[maybe_unused]] {} x{}", number_type(chain_.inputs[i].dtype), i);
    });
    const std::string outputs = list(chain_.outputs.size(), [&](size_t k) {
      return fmt::format("{}& y{}", is_sum(k) ? "double" : memory_type(chain_.outputs[k]), k);
    });
    const std::string words = for_draws([](size_t s) { return fmt::format("uint32_t w{}", s); });
    line("__device__ __forceinline__ void step_all({}, {}{}) {{", inputs, words, outputs);
    for (size_t i = 0; i < chain_.program.steps.size(); ++i) {
      const PointwiseStep& step = chain_.program.steps[i];
      if (halfnote::is_sum(step.op)) continue;
      line("  [[maybe_unused]] const {} t{} = rounded<{}>({});", number_type(step.dtype), i,
           memory_type(step.dtype), expression_of(i));
    }
    for (size_t k = 0; k < chain_.program.outputs.size(); ++k) {
      const auto from = static_cast<size_t>(chain_.program.outputs[k]);
      if (is_sum(k)) {
        line("  y{} += static_cast<double>({});", k,
             name_of(chain_.program.steps[from].operands[0]));
      } else {
        line("  assign(y{}, t{});", k, from);
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
      if (input.access == Access::kSingle) line("  const auto x{} = number(*in{});", i, i);
    }
    for (size_t s = 0; s < chain_.program.steps.size(); ++s) {
      const PointwiseStep& step = chain_.program.steps[s];
      if (draws(s))
        line("  const Drawing draw{}{{x{}, x{}, {}u}};", s, step.operands[1], step.operands[2],
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

  /// What an element is added to.
  std::string total(std::string_view index) const {
    return sum_->along_rows ? "sum" : fmt::format("sums[{}]", index);
  }

  void write_element() {
    write_offsets("      ", "at");
    line("      step_all({}, {}{});",
         list(chain_.inputs.size(), [&](size_t i) { return element(i); }),
         for_draws([](size_t s) { return fmt::format("draw{}.word(at)", s); }),
         list(chain_.outputs.size(),
              [&](size_t k) { return is_sum(k) ? total("0") : fmt::format("out{}[at]", k); }));
  }

  void write_offsets(std::string_view indent, std::string_view at) {
    if (all_walks() == 0) return;
    line("{}int64_t offset[{}];", indent, all_walks());
    line("{}a.walk.offsets({}, offset);", indent, at);
  }

  /// Input i at the element `at`, or where its walk stands.
  std::string element(size_t i) const {
    switch (chain_.inputs[i].access) {
      case Access::kWhole:
        return fmt::format("number(in{}[at])", i);
      case Access::kSingle:
        return fmt::format("x{}", i);
      default:
        return fmt::format("number(in{}[offset[{}]])", i, walk_of(i));
    }
  }

  void write_group() {
    if (chain_.even) write_offsets("      ", "at");
    for (size_t i = 0; i < chain_.inputs.size(); ++i) {
      const Access access = chain_.inputs[i].access;
      if (access == Access::kWhole)
        line("      const auto p{} = load<{}>(in{} + at);", i, width_, i);
      if (!chain_.even) continue;
      if (access == Access::kAlong)
        line("      const auto p{} = load<{}>(in{} + offset[{}]);", i, width_, i, walk_of(i));
      if (access == Access::kStay)
        line("      const auto x{} = number(in{}[offset[{}]]);", i, i, walk_of(i));
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
    line("      for (int k = 0; k < {}; ++k) {{", width_);
    if (!chain_.even) write_offsets("        ", "at + k");
    line("        step_all({}, {}{});",
         list(chain_.inputs.size(), [&](size_t i) { return group_element(i); }),
         for_draws([](size_t s) { return fmt::format("d{}[k / 4].word[k % 4]", s); }),
         list(chain_.outputs.size(),
              [&](size_t k) { return is_sum(k) ? total("k") : fmt::format("q{}.at[k]", k); }));
    line("      }}");
    for (size_t k = 0; k < chain_.outputs.size(); ++k) {
      if (!is_sum(k)) line("      store(out{} + at, q{});", k, k);
    }
  }

  /// Input i at element i of a group.
  std::string group_element(size_t i) const {
    switch (chain_.inputs[i].access) {
      case Access::kWhole:
        return fmt::format("number(p{}.at[k])", i);
      case Access::kSingle:
        return fmt::format("x{}", i);
      case Access::kAlong:
        if (chain_.even) return fmt::format("number(p{}.at[k])", i);
        break;
      case Access::kStay:
        if (chain_.even) return fmt::format("x{}", i);
        break;
    }
    return element(i);
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
