#include "random_graph.h"

#include <algorithm>
#include <vector>

#include "compiler/ir/builder.h"
#include "passes/canonical/infer_shapes.h"

namespace halfnote::test {
namespace {

class Generator {
 public:
  explicit Generator(uint64_t seed)
      : state_(seed * 0x9e3779b97f4a7c15u + 1), b_(graph_, graph_.end(), infer_node) {}

  Graph run() {
    for (int i = 0; i < 2; ++i) add(graph_.add_input(graph_.main(), i == 0 ? "x" : "z", type()));
    for (int i = 0; i < 2; ++i) add(weight());
    const int nodes = 4 + pick(9);
    for (int i = 0; i < nodes; ++i) grow();
    const int outputs = 1 + pick(3);
    std::vector<ValueId> made;
    for (const Expr& value : values_) {
      if (graph_.value(value.id).kind == ValueKind::kResult) made.push_back(value.id);
    }
    std::vector<ValueId> chosen;
    for (int i = 0; i < outputs && !made.empty(); ++i) {
      // Mostly the last ones, so that most nodes live.
      const size_t back = static_cast<size_t>(pick(3));
      const ValueId output = made[made.size() - 1 - std::min(back, made.size() - 1)];
      if (std::find(chosen.begin(), chosen.end(), output) == chosen.end()) chosen.push_back(output);
    }
    graph_.set_outputs(graph_.main(), chosen);
    graph_.name = "random";
    return std::move(graph_);
  }

 private:
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return state_ ^= state_ << 17;
  }
  int pick(int limit) { return static_cast<int>(next() >> 33) % limit; }

  static ValueType type() { return ValueType::tensor(DType::kF32, {Dim(kRows), Dim(kColumns)}); }

  void add(ValueId value) { values_.push_back(b_.value(value)); }

  Tensor numbers(Shape shape) {
    Tensor tensor(DType::kF32, std::move(shape));
    for (float& x : tensor.mutable_data<float>()) x = static_cast<float>(pick(17) - 8) / 8.0f;
    return tensor;
  }

  ValueId weight() {
    const ValueId w =
        graph_.add_initializer(graph_.unique_name("w"), numbers({kColumns, kColumns}));
    graph_.value(w).trainable = true;
    return w;
  }

  Expr any() { return values_[static_cast<size_t>(pick(static_cast<int>(values_.size())))]; }

  /// A value that was there before, as a matrix of the common shape.
  Expr matrix() {
    for (int tries = 0; tries < 8; ++tries) {
      const Expr value = any();
      if (value.type() == type()) return value;
    }
    return values_.front();
  }

  void grow() {
    static constexpr void (Generator::*kSteps[])() = {
        &Generator::unary,   &Generator::unary,         &Generator::binary, &Generator::binary,
        &Generator::product, &Generator::with_constant, &Generator::reduce, &Generator::turn,
        &Generator::fold,    &Generator::exporter,      &Generator::repeat, &Generator::neutral};
    (this->*kSteps[pick(static_cast<int>(std::size(kSteps)))])();
  }

  void unary() {
    static constexpr std::string_view kOps[] = {"Relu", "Neg",     "Abs",
                                                "Tanh", "Sigmoid", "Softplus"};
    values_.push_back(b_.op(kOps[pick(6)], {any()}));
  }

  void binary() {
    static constexpr std::string_view kOps[] = {"Add", "Sub", "Mul", "Max"};
    values_.push_back(b_.op(kOps[pick(4)], {matrix(), matrix()}));
  }

  /// With a shared weight.
  void product() { values_.push_back(b_.op("MatMul", {matrix(), values_[2 + size_t(pick(2))]})); }

  /// A broadcast constant, sometimes equal to an earlier one; constants among each other fold.
  void with_constant() {
    static const Shape kShapes[] = {{}, {kColumns}, {kRows, 1}, {1, kColumns}};
    const Expr c = pick(3) == 0 ? b_.constant(Tensor::full(DType::kF32, {kColumns}, 0.5))
                                : b_.constant(numbers(kShapes[pick(4)]));
    const Expr d = pick(2) == 0 ? b_.op("Neg", {c}) : c;
    values_.push_back(pick(2) == 0 ? matrix() * d : matrix() + d);
  }

  void reduce() {
    static constexpr std::string_view kOps[] = {"ReduceSum", "ReduceMean", "ReduceMax"};
    const Expr axes = b_.ints({pick(2)});
    const Expr r = b_.op(kOps[pick(3)], {matrix(), axes}, {{"keepdims", int64_t{1}}});
    values_.push_back(matrix() - r);
  }

  /// Transposes that cancel, or nearly.
  void turn() {
    const Expr t = b_.transpose(matrix(), {1, 0});
    values_.push_back(b_.transpose(pick(2) == 0 ? t : b_.op("Abs", {t}), {1, 0}));
  }

  void fold() {
    const Expr flat = b_.reshape(matrix(), b_.ints({-1}));
    values_.push_back(b_.reshape(flat, b_.ints({kRows, kColumns})));
  }

  /// Reshape(x, Concat(Gather(Shape(x), 0), -1)).
  void exporter() {
    const Expr x = matrix();
    const Expr shape = b_.op("Shape", {x});
    const Expr rows = b_.op("Gather", {shape, b_.ints({0})}, {{"axis", int64_t{0}}});
    const Expr goal = b_.op("Concat", {rows, b_.ints({-1})}, {{"axis", int64_t{0}}});
    values_.push_back(b_.reshape(x, goal));
  }

  /// The same twice.
  void repeat() {
    const Expr x = matrix();
    values_.push_back(b_.op("Tanh", {x}) + b_.op("Tanh", {x}));
  }

  void neutral() {
    const Expr x = matrix();
    switch (pick(4)) {
      case 0:
        return values_.push_back(x * 1.0);
      case 1:
        return values_.push_back(x - 0.0);
      case 2:
        return values_.push_back(x + 0.0);
      default:
        return values_.push_back(b_.op("Identity", {x}));
    }
  }

  static constexpr int64_t kRows = 6, kColumns = 5;

  Graph graph_;
  uint64_t state_;
  Builder b_;
  std::vector<Expr> values_;
};

}  // namespace

Model random_model(uint64_t seed) {
  Model model;
  model.graph = Generator(seed).run();
  model.opsets[""] = kOpsetVersion;
  model.source = "random " + std::to_string(seed);
  return model;
}

}  // namespace halfnote::test
