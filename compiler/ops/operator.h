// The operator table: all the compiler knows of one op stands in its row.
//
// Rows are grouped in families, one file each (compiler/ops/<family>.cc). The importer, exporter,
// autodiff, precision passes and executor ask the row; none of them mentions an op by name.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// What the precision passes do with an op (docs/precision.md).
enum class PrecisionClass : uint8_t {
  kAllow,   // 16-bit operands, f32 accumulation: the seeds
  kFp32,    // math in f32
  kInfer,   // follows its neighbours
  kClear,   // only moves, selects or compares: takes whatever saves a cast
  kStruct,  // control flow
  kOpaque,  // never retyped
};
std::string_view class_name(PrecisionClass precision);

/// The first op-set in which a float type is legal for an op's float operands; 0 = never.
struct Legality {
  int f16 = 0;
  int bf16 = 0;
};

enum class Purity : uint8_t {
  kPure,    // same inputs, same outputs: may be folded, merged, removed
  kRandom,  // draws from a generator: never folded or merged
};

/// Units of the loss scale: how the power of S in the results follows from that of the operands.
enum class ScaleRule : uint8_t {
  kNone,  // operands must carry no scale: nonlinear in them
  kSame,  // all scaled operands carry the same power, the results too (Add, Concat, Cast, Reshape,
          // ReduceSum)
  kProduct,   // powers add (Mul, MatMul, Conv)
  kQuotient,  // power of operand 0 minus that of operand 1 (Div)
  kInverse,   // minus the power of operand 0 (Reciprocal)
  kFirst,   // linear in the operands of mask `linear_inputs` together (operand 0: dY of a gradient
            // op), which alone may be scaled: their common power
  kAbsorb,  // any operand may be scaled, results are not (AllFinite, Shape, comparisons with 0)
};

/// The context of one gradient rule. `inputs`/`outputs` are the forward node's, `grads` the
/// gradients of its outputs (invalid where none flows). The rule returns one gradient per input,
/// invalid where there is none. What the bodies of a node capture stands in `inputs` and `needed`
/// behind the node's own operands, and has its gradients in the result likewise.
struct GradientContext {
  Builder& b;
  NodeId node;
  std::vector<Expr> inputs;
  std::vector<Expr> outputs;
  std::vector<Expr> grads;
  std::vector<bool> needed;  // does anybody ask for the gradient of input i?

  Graph& graph() { return b.graph(); }
  const Attributes& attributes() { return b.graph().node(node).attributes; }
  /// Asks the forward node for an optional output that it leaves out (log_prob, saved statistics).
  Expr request_output(size_t index);
  /// Replaces the forward node by another form that stashes more; the first outputs take the place
  /// of the old ones.
  std::vector<Expr> replace_forward(std::string_view op, std::string_view domain,
                                    Attributes attributes, const std::vector<Expr>& inputs,
                                    int outputs);
  InferNode infer;

  /// A value of a region, and the gradient that flows into it.
  struct Seed {
    ValueId value, gradient;
  };
  /// Appends a backward pass to a region: the gradients of `wanted` (inputs of the region, or
  /// captures) as they follow from the seeds, invalid where there are none.
  std::function<std::vector<ValueId>(RegionId, const std::vector<Seed>&,
                                     const std::vector<ValueId>& wanted)>
      differentiate = nullptr;
};
using GradientRule = std::vector<Expr> (*)(GradientContext&);

/// Builds the body of an `ai.halfnote` op from standard ops: the function's inputs are given, its
/// outputs returned. `call` is the calling node's types and attributes.
struct BodyContext {
  Builder& b;
  const Attributes& attributes;
  std::vector<Expr> inputs;             // invalid where the call leaves an input out
  std::vector<ValueType> output_types;  // of the call's results
};
using BodyRule = std::vector<Expr> (*)(BodyContext&);

/// The context of one lowering: the rule makes other ops before `node` and gives what stands for
/// its results.
struct LowerContext {
  Builder& b;
  NodeId node;
  std::vector<Expr> inputs;  // invalid where the node leaves one out
  std::vector<bool> wanted;  // does anybody use result i?

  const Attributes& attributes() { return b.graph().node(node).attributes; }
  bool has_input(size_t index) const { return index < inputs.size() && inputs[index].valid(); }
  bool wants(size_t index) const { return index < wanted.size() && wanted[index]; }
};
/// Gives one expression per result (invalid for one that nobody wants), or none at all: then the
/// node stays.
using LowerRule = std::vector<Expr> (*)(LowerContext&);

/// A stream of random numbers: what is drawn is a function of it and of the element.
struct RandomStream {
  Expr seed, step;  // i64 scalars
  int64_t node;     // another for each node
};
/// The result of a random op, drawn from the stream.
using DrawRule = Expr (*)(LowerContext&, const RandomStream&);

/// Types of the results of an `ai.halfnote` op.
using InferRule = std::vector<ValueType> (*)(const Graph&, NodeId);

/// Floating-point operations of a contraction from the shapes of all operands and results (absent
/// ones are empty), by the usual count of two per multiply-add.
using FlopsRule = double (*)(const Attributes& attributes, std::span<const Shape> inputs,
                             std::span<const Shape> outputs);

/// Dims of two operands that are the same number: `dim` of input `input`, and `other_dim` of input
/// `other` times `times`. Dims that broadcasting allows to be 1 are none.
struct EqualDims {
  size_t input = 0, dim = 0, other = 0, other_dim = 0;
  int64_t times = 1;
};
/// Names operands and dims that are there.
using EqualDimsRule = std::vector<EqualDims> (*)(const Graph&, NodeId);

struct OperatorRow {
  std::string_view domain;
  std::string_view name;
  PrecisionClass precision = PrecisionClass::kFp32;
  /// That of a node, where its attributes decide.
  PrecisionClass (*precision_here)(const Node& node) = nullptr;
  Legality legality;
  /// Operand slots that keep f32 (or their own type) whatever the node runs in; bit i =
  /// input/output i.
  uint32_t fp32_inputs = 0;
  uint32_t fp32_outputs = 0;
  /// Takes 16-bit operands and may write an f32 result, chosen by attribute `out_dtype`.
  bool has_out_dtype = false;
  /// The results that `out_dtype` speaks of; bit i = output i.
  uint32_t wide_outputs = 1;
  /// A kernel does f32 math on 16-bit tensors and ONNX has a legal form for it (normalizations with
  /// split types): when the neighbours are 16-bit the node may take them as they are although its
  /// class is fp32.
  bool fp32_math_inside = false;
  /// Small errors of its operand become large ones (Log near 1 and 0): what it reads is rounded to
  /// 16 bits only where a 16-bit node reads it too, never to save bytes.
  bool magnifies = false;
  /// Operand slots that hold places or counts as floats; bit i = input i. What only computes on
  /// them and moves them on the way here stays f32: rounded, they are other places.
  uint32_t place_inputs = 0;
  Purity purity = Purity::kPure;
  ScaleRule scale = ScaleRule::kNone;
  /// Of ScaleRule::kFirst: bit i = input i. More than operand 0 where a node has several results,
  /// each with a gradient.
  uint32_t linear_inputs = 1;
  /// The optional bool input by which an optimizer keeps its old state (false); -1 for all other
  /// ops.
  int commit_input = -1;
  GradientRule gradient = nullptr;
  std::string_view no_gradient;  // why, if `gradient` is null
  /// The same for this node, where it tells more; may give an empty text.
  std::string (*no_gradient_here)(const Graph& graph, NodeId node) = nullptr;
  /// The op whose integer result this op takes back to floats (fake quantization): where it made
  /// operand 0, its own operand 0 stands behind the operands of the gradient rule, which hands the
  /// gradient straight through to it.
  std::string_view undoes;
  /// Limits operand 0 to the range between operands 1 and 2. An op that undoes another sees through
  /// it where these are constants, and hands no gradient to what is outside.
  bool saturates = false;
  /// The size of a result follows from values: no step can be planned with it.
  bool sized_by_values = false;
  /// Operand slots that state the size of a result (shapes, counts, limits, axes); bit i = input i.
  /// What they hold must be constant, or follow from shapes.
  uint32_t size_inputs = 0;
  /// Operand slots that must be known when a step is planned though they need not state a size
  /// (where a Slice begins, the axis of a CumSum); bit i = input i.
  uint32_t plan_inputs = 0;
  /// Writes the op in others before differentiation, so that it needs neither gradient nor kernel.
  LowerRule lower = nullptr;
  /// Writes a random op as a function of a stream, which a training step has: other numbers in
  /// every step and node, and the same again where the step is run again.
  DrawRule draw = nullptr;
  /// ONNX's ops are inferred by their schema; a rule of theirs adds the dims that it leaves open.
  InferRule infer = nullptr;
  EqualDimsRule equal_dims = nullptr;
  BodyRule body = nullptr;    // ai.halfnote only
  FlopsRule flops = nullptr;  // contractions only
  std::string_view note;      // one line for `halfnote ops`
};

/// Why a row that is lowered states no gradient of its own.
inline constexpr std::string_view kLowered = "lowered to other ops before differentiation";
/// The key in a node's metadata that names the op of class fp32 of which it is a part: f32 as that.
inline constexpr std::string_view kLoweredFromKey = "halfnote.lowered_from";

/// The key in a node's metadata that tells the number of an operand that was one of `place_inputs`
/// of the op of which the node is a part.
inline constexpr std::string_view kReadsPlacesKey = "halfnote.reads_places";

/// All rows, ONNX's and ours, ordered by domain and name.
std::span<const OperatorRow> operator_rows();
/// The row of an op; null for an op that halfnote does not know.
const OperatorRow* find_operator(std::string_view domain, std::string_view name);
inline const OperatorRow* find_operator(const Node& node) {
  return find_operator(node.domain, node.op);
}

/// The class of a node: its row's, or what its attributes make of that.
PrecisionClass class_of(const OperatorRow& row, const Node& node);
/// The class by which a node was decided: a normalization of class fp32 with its math inside counts
/// as infer where it runs in 16 bit, and so does what a framework's lists let follow its operands.
PrecisionClass applied_class(const OperatorRow& row, const Node& node);

/// Why a node has no gradient.
std::string why_no_gradient(const Graph& graph, NodeId node);

}  // namespace halfnote
