// The attributes' side of the contracts, as tables: which words an attribute may be, how small a
// number, and up to which rank an axis may point.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "base/error.h"
#include "compiler/ops/contract/contract.h"

namespace halfnote::contract {
namespace {

struct Words {
  const char* op;
  const char* attribute;
  std::span<const char* const> allowed;
};

constexpr const char* kAutoPad[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
constexpr const char* kDirections[] = {"forward", "reverse", "bidirectional"};
constexpr const char* kGelu[] = {"none", "tanh"};
constexpr const char* kPadModes[] = {"constant", "reflect", "edge", "wrap"};
constexpr const char* kReductions[] = {"none", "add", "mul", "max", "min"};
constexpr const char* kLossReductions[] = {"none", "sum", "mean"};
constexpr const char* kResizeModes[] = {"nearest", "linear", "cubic"};
constexpr const char* kPolicies[] = {"stretch", "not_larger", "not_smaller"};
constexpr const char* kNearest[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
constexpr const char* kCoordinates[] = {"half_pixel",         "half_pixel_symmetric",
                                        "pytorch_half_pixel", "align_corners",
                                        "asymmetric",         "tf_crop_and_resize"};
constexpr const char* kGridModes[] = {"linear", "nearest", "cubic"};
constexpr const char* kGridPadding[] = {"zeros", "border", "reflection"};
constexpr const char* kDepth[] = {"DCR", "CRD"};
constexpr const char* kRoiModes[] = {"avg", "max"};
constexpr const char* kRoiCoordinates[] = {"half_pixel", "output_half_pixel"};
constexpr const char* kShifts[] = {"LEFT", "RIGHT"};

constexpr Words kWords[] = {
    {"Conv", "auto_pad", kAutoPad},
    {"ConvTranspose", "auto_pad", kAutoPad},
    {"MaxPool", "auto_pad", kAutoPad},
    {"AveragePool", "auto_pad", kAutoPad},
    {"LpPool", "auto_pad", kAutoPad},
    {"LSTM", "direction", kDirections},
    {"GRU", "direction", kDirections},
    {"RNN", "direction", kDirections},
    {"Gelu", "approximate", kGelu},
    {"Pad", "mode", kPadModes},
    {"ScatterElements", "reduction", kReductions},
    {"ScatterND", "reduction", kReductions},
    {"SoftmaxCrossEntropyLoss", "reduction", kLossReductions},
    {"NegativeLogLikelihoodLoss", "reduction", kLossReductions},
    {"Resize", "mode", kResizeModes},
    {"Resize", "keep_aspect_ratio_policy", kPolicies},
    {"Resize", "nearest_mode", kNearest},
    {"Resize", "coordinate_transformation_mode", kCoordinates},
    {"GridSample", "mode", kGridModes},
    {"GridSample", "padding_mode", kGridPadding},
    {"DepthToSpace", "mode", kDepth},
    {"RoiAlign", "mode", kRoiModes},
    {"RoiAlign", "coordinate_transformation_mode", kRoiCoordinates},
    {"BitShift", "direction", kShifts},
};

struct Least {
  const char* op;
  const char* attribute;
  int64_t least;
};

constexpr Least kLeast[] = {
    {"Conv", "group", 1},
    {"ConvTranspose", "group", 1},
    {"LpPool", "p", 1},
    {"LRN", "size", 1},
    {"LSTM", "hidden_size", 1},
    {"GRU", "hidden_size", 1},
    {"RNN", "hidden_size", 1},
    {"GroupNormalization", "num_groups", 1},
    {"GlobalLpPool", "p", 1},
    {"DepthToSpace", "blocksize", 1},
    {"SpaceToDepth", "blocksize", 1},
    {"RoiAlign", "output_height", 1},
    {"RoiAlign", "output_width", 1},
    {"QuantizeLinear", "block_size", 0},
    {"DequantizeLinear", "block_size", 0},
};

constexpr const char* kWithEpsilon[] = {"BatchNormalization", "LayerNormalization",
                                        "GroupNormalization", "InstanceNormalization",
                                        "RMSNormalization",   "MeanVarianceNormalization"};

struct Axis {
  const char* op;
  int64_t past = 0;                // how many axes behind the operand's last one may be named
  const char* attribute = "axis";  // or "axes", a list
};

// Their axes are those of operand 0.
constexpr Axis kAxes[] = {
    {"Softmax"},
    {"LogSoftmax"},
    {"Hardmax"},
    {"Concat"},
    {"Split"},
    {"Gather"},
    {"GatherElements"},
    {"ScatterElements"},
    {"ArgMax"},
    {"ArgMin"},
    {"Flatten", 1},
    {"LayerNormalization"},
    {"TopK"},
    {"RMSNormalization"},
    {"LpNormalization"},
    {"Compress"},
    {"MeanVarianceNormalization", 0, "axes"},
};

std::string listed(std::span<const char* const> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  }
  return text;
}

void check_words(const Node& node) {
  for (const Words& row : kWords) {
    if (node.op != row.op || !node.attributes.has(row.attribute)) continue;
    const std::string word = node.attributes.get_string(row.attribute, "");
    const auto is_word = [&](const char* allowed) { return word == allowed; };
    if (std::any_of(row.allowed.begin(), row.allowed.end(), is_word)) continue;
    const std::string_view near = closest(word, row.allowed);
    throw Error(ErrorCode::kModel,
                std::string("unknown value of attribute \"") + row.attribute + "\"")
        .expected(listed(row.allowed), "\"" + word + "\"")
        .hint(near.empty() ? std::string() : "did you mean \"" + std::string(near) + "\"?");
  }
}

void check_numbers(const Node& node) {
  for (const Least& row : kLeast) {
    if (node.op != row.op || !node.attributes.has(row.attribute)) continue;
    const int64_t number = node.attributes.get_int(row.attribute, row.least);
    if (number >= row.least) continue;
    throw Error(ErrorCode::kModel,
                std::string("attribute \"") + row.attribute + "\" is out of range")
        .expected("at least " + std::to_string(row.least), std::to_string(number));
  }
  for (const char* op : kWithEpsilon) {
    if (node.op != op) continue;
    const float epsilon = node.attributes.get_float("epsilon", 1e-5f);
    if (std::isfinite(epsilon) && epsilon >= 0) continue;
    throw Error(ErrorCode::kModel, "attribute \"epsilon\" is out of range")
        .expected("a number of 0 or more", std::to_string(epsilon))
        .hint("it keeps a variance of 0 from a division by 0; 1e-5 is usual");
  }
}

void check_axis(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto row = std::find_if(std::begin(kAxes), std::end(kAxes),
                                [&](const Axis& axis) { return node.op == axis.op; });
  if (row == std::end(kAxes) || !node.attributes.has(row->attribute)) return;
  const ValueId operand = graph.input(id, 0);
  const int64_t rank = operand.valid() ? graph.value(operand).type.rank() : -1;
  const bool several = std::string_view(row->attribute) == "axes";
  for (const int64_t axis : several ? node.attributes.get_ints("axes")
                                    : std::vector{node.attributes.get_int("axis", 0)}) {
    if (rank < 0 || (axis >= -rank && axis < rank + row->past)) continue;
    // ONNX lets a scalar have the axes 0 and -1, but not in a list.
    if (rank == 0 && !several && (axis == 0 || axis == -1)) continue;
    throw Error(ErrorCode::kModel,
                std::string("attribute \"") + row->attribute + "\" is out of range")
        .expected("an axis of an operand of rank " + std::to_string(rank) + ": " +
                      std::to_string(-rank) + " to " + std::to_string(rank - 1 + row->past),
                  std::to_string(axis));
  }
}

/// A number that stands for a type.
void check_cast(const Node& node) {
  if (node.op != "Cast") return;
  const int64_t to = node.attributes.get_int("to", 0);
  if (to > 0 && to <= static_cast<int64_t>(DType::kI2)) return;
  throw Error(ErrorCode::kModel, "attribute \"to\" names no element type")
      .expected("an ONNX data type, 1 to " + std::to_string(static_cast<int64_t>(DType::kI2)),
                std::to_string(to));
}

/// One direction an input or output, 0 or 1; as many axes.
void check_scan(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != "Scan") return;
  const int64_t inputs = node.attributes.get_int("num_scan_inputs", 0);
  const auto operands = static_cast<int64_t>(graph.inputs(id).size());
  const int64_t outputs = static_cast<int64_t>(graph.outputs(id).size()) - (operands - inputs);
  const auto check = [&](const char* name, int64_t count, bool is_flag) {
    if (!node.attributes.has(name)) return;
    const std::vector<int64_t> numbers = node.attributes.get_ints(name);
    const auto allowed = [&](int64_t number) { return !is_flag || number == 0 || number == 1; };
    if (static_cast<int64_t>(numbers.size()) == count &&
        std::all_of(numbers.begin(), numbers.end(), allowed)) {
      return;
    }
    throw Error(ErrorCode::kModel, std::string("attribute \"") + name + "\" does not fit")
        .expected(std::to_string(count) + (is_flag ? " times 0 or 1" : " axes"),
                  to_string(std::span<const int64_t>(numbers)));
  };
  check("scan_input_directions", inputs, true);
  check("scan_output_directions", outputs, true);
  check("scan_input_axes", inputs, false);
  check("scan_output_axes", outputs, false);
}

/// LpNormalization knows two norms.
void check_norm(const Node& node) {
  if (node.op != "LpNormalization") return;
  const int64_t p = node.attributes.get_int("p", 2);
  if (p == 1 || p == 2) return;
  throw Error(ErrorCode::kModel, "attribute \"p\" is out of range")
      .expected("1 or 2", std::to_string(p));
}

}  // namespace

void check_attributes(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  check_words(node);
  check_numbers(node);
  check_axis(graph, id);
  check_cast(node);
  check_norm(node);
  check_scan(graph, id);
}

}  // namespace halfnote::contract
