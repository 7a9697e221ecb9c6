#include "tests/cuda/chain/table.h"

#include <algorithm>

#include "base/error.h"
#include "base/ops/pointwise.h"

namespace halfnote::test {

namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// Collects steps that all are outputs.
class Steps {
 public:
  /// `call` is what stands behind the type: `Add(x0, x1)`.
  std::string add(DType dtype, const std::string& call) {
    const std::string name = "t" + std::to_string(count_++);
    text_ += name + ":" + std::string(short_name(dtype)) + " = " + call + "; ";
    outputs_ += (outputs_.empty() ? "out " : ", ") + name;
    return name;
  }
  std::string text() const { return text_ + outputs_; }

 private:
  int count_ = 0;
  std::string text_, outputs_;
};

/// The numbers behind the op's name; `second`: an op that knows two forms in its other one.
std::string numbers_of(const PointwiseRow& row, bool second) {
  if (row.parameters[0].name.empty()) return "";
  if (!row.parameters[0].word_for_one.empty()) return second ? "[1, 0]" : "[0, 0]";
  return row.parameters[1].name.empty() ? "[0.3, 0]" : "[0.3, 0.4]";
}

bool is_gradient(const PointwiseRow& row) { return row.domain == "ai.halfnote"; }

/// All ops of floats with this many operands that are gradients, or are none.
std::string every_op(DType dtype, int arity, bool gradients) {
  Steps steps;
  for (const PointwiseRow& row : pointwise_rows()) {
    if (row.types != PointwiseTypes::kFloats || row.arity != arity) continue;
    if (is_gradient(row) != gradients) continue;
    const bool two_forms = !row.parameters[0].word_for_one.empty();
    for (const bool second : {false, true}) {
      if (second && !two_forms) continue;
      steps.add(dtype,
                std::string(row.op) + numbers_of(row, second) + (arity == 1 ? "(x0)" : "(x0, x1)"));
    }
  }
  return steps.text();
}

/// Comparisons, what is done with their results, and selections.
std::string logic(DType dtype) {
  Steps steps;
  std::vector<std::string> truths;
  for (const PointwiseRow& row : pointwise_rows()) {
    if (row.types == PointwiseTypes::kCompare)
      truths.push_back(steps.add(DType::kBool, std::string(row.op) + "(x0, x1)"));
  }
  for (const PointwiseRow& row : pointwise_rows()) {
    if (row.types != PointwiseTypes::kBools) continue;
    const std::string operands =
        row.arity == 1 ? truths[0] : truths[1] + ", " + truths[truths.size() - 1];
    steps.add(DType::kBool, std::string(row.op) + "(" + operands + ")");
  }
  steps.add(DType::kBool, "Equal(" + truths[1] + ", x2)");
  steps.add(dtype, "Where(" + truths[1] + ", x1, x0)");
  steps.add(dtype, "Where(x2, x0, x1)");
  return steps.text();
}

class Table {
 public:
  std::vector<ChainCase> cases;

  void add(std::string title, const std::string& program,
           std::vector<std::pair<DType, Shape>> inputs, Shape shape, bool all_ops = false) {
    ChainCase made;
    made.title = std::move(title);
    made.attributes.set("program", program);
    std::vector<DType> types;
    for (const auto& input : inputs) types.push_back(input.first);
    const std::string_view outputs = std::string_view(program).substr(program.find("out "));
    const auto count = static_cast<size_t>(std::ranges::count(outputs, 't') - 1);  // that of `out`
    made.outputs = pointwise_types(program, types, count);
    made.inputs = std::move(inputs);
    made.shape = std::move(shape);
    made.all_ops = all_ops;
    cases.push_back(std::move(made));
  }
};

struct Broadcast {
  const char* title;
  Shape x, y, result;
};
const Broadcast kBroadcasts[] = {
    {"a row, odd", {5, 3, 65}, {65}, {5, 3, 65}},
    {"a row", {6, 4, 64}, {64}, {6, 4, 64}},
    {"a row, many elements", {67, 1024}, {1024}, {67, 1024}},
    {"a column, odd", {5, 3, 65}, {5, 1, 1}, {5, 3, 65}},
    {"a column", {6, 4, 64}, {6, 1, 1}, {6, 4, 64}},
    {"a scalar", {3, 701}, {}, {3, 701}},
    {"both", {4, 1, 16}, {3, 1}, {4, 3, 16}},
    {"both, nothing", {4, 1, 0}, {3, 1}, {4, 3, 0}},
};

void add_all_ops(Table& table, DType t) {
  const std::string type(short_name(t));
  for (const Shape& shape : {Shape{0}, {1}, {7}, {3, 5, 129}, {65537}}) {
    table.add("functions of " + type, every_op(t, 1, false), {{t, shape}}, shape, true);
    table.add("gradients of " + type, every_op(t, 2, true), {{t, shape}, {t, shape}}, shape, true);
  }
  const Shape small = {3, 5, 129};
  table.add("two operands of " + type, every_op(t, 2, false), {{t, small}, {t, small}}, small,
            true);
  table.add("logic of " + type, logic(t), {{t, small}, {t, small}, {DType::kBool, small}}, small,
            true);
}

/// Rows for some threads, a warp or a block each, and in pieces; that begin where an access of 16
/// bytes may and elsewhere; of one element, and of nothing.
void add_row_sums(Table& table, DType t) {
  const std::string type(short_name(t));
  const DType word = DType::kI64;
  for (const auto& [shape, dims] : {std::pair<Shape, int>{{6, 40, 64}, 1},
                                    {{43, 3, 43}, 2},
                                    {{65, 8}, 1},
                                    {{7, 1}, 1},
                                    {{24}, 1},
                                    {{4, 3, 680}, 1},
                                    {{3, 2100}, 1},
                                    {{5, 8192}, 1},
                                    {{2, 9001}, 1},
                                    {{70001}, 1},
                                    {{5, 0}, 1},
                                    {{0, 8}, 1}}) {
    const auto brackets = "[-" + std::to_string(dims) + ", " + std::to_string(dims) + "]";
    table.add("sums along rows of " + type,
              "t0:" + type + " = Dropout[0.3, 5](x0, x2, x3); t1:" + type +
                  " = ReluGrad(t0, x1); t2:f32 = ReduceSum" + brackets + "(t1); out t2, t1",
              {{t, shape}, {t, shape}, {word, {}}, {word, {}}}, shape);
    table.cases.back().summed_dims = -dims;
    table.cases.back().sum = 0;
    table.add(
        "means along rows alone of " + type,
        "t0:" + type + " = Add(x0, x1); t1:" + type + " = ReduceMean" + brackets + "(t0); out t1",
        {{t, shape}, {t, {shape.back()}}}, shape);
    table.cases.back().summed_dims = -dims;
  }
  table.add("a scaled row of " + type + " and its sum",
            "t0:" + type + " = Mul(x0, x1); t1:f32 = ReduceSum[-1, 1](t0); out t0, t1",
            {{t, {9, 160}}, {t, {9, 1}}}, {9, 160});
  table.cases.back().summed_dims = -1;
}

void add_chains(Table& table, DType t) {
  const std::string type(short_name(t));
  for (const Broadcast& b : kBroadcasts) {
    table.add("bias and activation of " + type + " with " + b.title,
              "t0:" + type + " = Add(x0, x1); t1:" + type + " = Gelu[1, 0](t0); out t1",
              {{t, b.x}, {t, b.y}}, b.result);
  }
  // A residual: a 16-bit branch, masked and scaled in f32.
  for (const Shape& shape : {Shape{6, 4, 64}, Shape{2, 3, 129}}) {
    const Shape row = {shape[2]}, column = {shape[0], 1, 1};
    table.add("a chain of several types beside " + type,
              "t0:f32 = Cast(x0); t1:f32 = Mul(t0, x1); t2:f32 = Where(x2, t1, x3); t3:" + type +
                  " = Cast(t2); t4:f32 = Sub(t2, t0); out t3, t4, t2",
              {{t, shape}, {DType::kF32, row}, {DType::kBool, column}, {DType::kF32, {}}}, shape);
  }
  // A residual branch forward, and the gradient of an activation under a dropout of its own.
  const DType word = DType::kI64;
  for (const Shape& shape : {Shape{6, 4, 64}, Shape{2, 3, 129}, Shape{65537}, Shape{3}, Shape{0}}) {
    table.add("dropouts of " + type,
              "t0:" + type + " = Add(x0, x1); t1:" + type +
                  " = Dropout[0.3, 5](t0, x2, x3); t2:" + type + " = Add(t1, x4); t3:" + type +
                  " = Dropout[0.7, 16777216](x4, x2, x3); t4:" + type +
                  " = ReluGrad(t3, t0); out t2, t4",
              {{t, shape}, {t, {shape.back()}}, {word, {}}, {word, {1}}, {t, shape}}, shape);
  }
  // The gradient of a bias, summed from what is stored besides or from what is not.
  for (const auto& [shape, dims] : {std::pair<Shape, int>{{6, 40, 64}, 2},
                                    {{43, 3, 43}, 1},
                                    {{65, 8}, 1},
                                    {{1, 24}, 1},
                                    {{0, 8}, 1},
                                    {{8, 0}, 1}}) {
    const std::string sum = "ReduceSum[0, " + std::to_string(dims) + "]";
    table.add("sums of " + type,
              "t0:" + type + " = Dropout[0.3, 5](x0, x2, x3); t1:" + type +
                  " = ReluGrad(t0, x1); t2:f32 = " + sum + "(t1); out t1, t2",
              {{t, shape}, {t, shape}, {word, {}}, {word, {}}}, shape);
    table.cases.back().summed_dims = dims;
    table.add("sums alone of " + type,
              "t0:" + type + " = Add(x0, x1); t1:" + type + " = " + sum + "(t0); out t1",
              {{t, shape}, {t, {shape.back()}}}, shape);
    table.cases.back().summed_dims = dims;
  }
  add_row_sums(table, t);
  table.add("casts of " + type,
            "t0:bool = Cast(x0); t1:" + type +
                " = Cast(t0); t2:f32 = Cast(x0); t3:f16 = Cast(t2); "
                "t4:bf16 = Cast(t3); t5:bool = Not(t0); t6:" +
                type + " = Cast(t5); out t0, t1, t2, t3, t4, t5, t6",
            {{t, {3, 43}}}, {3, 43});
}

}  // namespace

KernelCall ChainCase::call() const {
  KernelCall made;
  made.domain = "ai.halfnote";
  made.op = "Pointwise";
  made.attributes = &attributes;
  for (const auto& [dtype, dims] : inputs) made.inputs.push_back({dtype, dims, {}, nullptr});
  for (const DType dtype : outputs) made.outputs.push_back({dtype, shape, {}, nullptr});
  Shape& kept = made.outputs[sum ? *sum : made.outputs.size() - 1].shape;
  if (summed_dims > 0) kept.erase(kept.begin(), kept.begin() + summed_dims);
  if (summed_dims < 0) kept.erase(kept.end() + summed_dims, kept.end());
  return made;
}

std::vector<ChainCase> chain_cases() {
  Table table;
  for (const DType t : kTypes) {
    add_all_ops(table, t);
    add_chains(table, t);
  }
  for (const char* ratio : {"0", "1"}) {
    table.add(std::string("a dropout with ratio ") + ratio,
              std::string("t0:f32 = Dropout[") + ratio + ", 0](x0, x1, x2); out t0",
              {{DType::kF32, {}}, {DType::kI64, {}}, {DType::kI64, {}}}, {});
  }
  const DType b = DType::kBool;
  table.add("nothing but bool", "t0:bool = And(x0, x1); t1:bool = Xor(t0, x0); out t1, t0",
            {{b, {3, 77}}, {b, {77}}}, {3, 77});
  table.add("numbers that no text has",
            "t0:f32 = ThresholdedRelu[inf, 0](x0); t1:f32 = LeakyRelu[0.1, 0](x0); t2:f32 = "
            "LeakyRelu[-inf, 0](x0); t3:f32 = HardSigmoid[nan, 1e-45](x0); out t0, t1, t2, t3",
            {{DType::kF32, {99}}}, {99});
  return std::move(table.cases);
}

std::vector<ChainText> chain_texts(const std::vector<ChainCase>& cases) {
  std::vector<ChainText> texts;
  for (const ChainCase& one : cases) {
    chain::Plan plan;
    const std::string why = chain::plan_chain(one.call(), plan);
    if (!why.empty()) throw Error(ErrorCode::kInternal, one.title + ": " + why);
    chain::Source source = chain::source_of(plan.chain);
    const auto same = [&](const ChainText& text) { return text.source.name == source.name; };
    if (std::ranges::none_of(texts, same)) texts.push_back({&one, std::move(source)});
  }
  return texts;
}

}  // namespace halfnote::test
