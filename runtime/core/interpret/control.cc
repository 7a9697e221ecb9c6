// If, Loop, Scan and SequenceMap: nodes that run regions.
#include <algorithm>

#include "base/error.h"
#include "compiler/ops/control/trips.h"
#include "runtime/core/interpret/interpreter.h"
#include "runtime/core/interpret/pieces.h"

namespace halfnote {
namespace {

constexpr int64_t kMaxTrips = 1'000'000;  // a loop of a file must not run for ever

bool truth(const Tensor& condition) {
  if (condition.size() == 1 && condition.dtype() == DType::kBool)
    return condition.at_as_int(0) != 0;
  throw Error(ErrorCode::kData, "bad condition")
      .expected("one bool",
                std::string(short_name(condition.dtype())) + to_string(condition.shape()));
}

std::vector<Datum> run_if(Interpreter& run, NodeId node) {
  const bool yes = truth(run.tensor(node, 0));
  return run.run_region(run.region(node, yes ? "then_branch" : "else_branch"), {});
}

/// What was collected of one scan output, along `axis`; without a trip it is empty, and its dims
/// come from the type.
Datum collect(const Interpreter& run, RegionId body, size_t output, const std::vector<Datum>& trips,
              int64_t axis) {
  if (trips.empty()) {
    const ValueType& type = run.graph().value(run.graph().outputs(body)[output]).type;
    Shape shape;
    for (const Dim& dim : type.shape.value_or(SymbolicShape{}))
      shape.push_back(dim.known() ? dim.value : 0);
    shape.insert(shape.begin(), 0);
    return Tensor(type.dtype == DType::kUndefined ? DType::kF32 : type.dtype, shape);
  }
  std::vector<Tensor> pieces;
  for (const Datum& trip : trips) {
    if (!trip.is_tensor()) {
      throw Error(ErrorCode::kUnsupported, "a scan output that is a container");
    }
    pieces.push_back(trip.tensor);
  }
  const auto rank = static_cast<int64_t>(pieces[0].shape().size()) + 1;
  return stack_along(pieces, normalize_axis(axis, rank));
}

std::vector<Datum> run_loop(Interpreter& run, NodeId node) {
  const RegionId body = run.region(node, "body");
  const size_t carried = run.graph().inputs(body).size() - 2;
  const int64_t trips =
      run.input(node, 0).present() ? run.tensor(node, 0).at_as_int(0) : kMaxTrips + 1;
  bool go_on = !run.input(node, 1).present() || truth(run.tensor(node, 1));
  const Shape trip_shape = shape_of_trip(run.graph(), run.graph().inputs(body)[0]);
  const Shape go_shape = shape_of_trip(run.graph(), run.graph().inputs(body)[1]);
  std::vector<Datum> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(run.input(node, 2 + i));
  const size_t scans = run.graph().outputs(body).size() - 1 - carried;
  std::vector<std::vector<Datum>> collected(scans);
  for (int64_t i = 0; i < trips && go_on; ++i) {
    if (i == kMaxTrips) {
      throw Error(ErrorCode::kUnsupported, "a loop runs too long")
          .expected("at most " + std::to_string(kMaxTrips) + " trips", "more");
    }
    std::vector<Datum> inputs = {Tensor::scalar<int64_t>(i).reshaped(trip_shape),
                                 Tensor::scalar<bool>(go_on).reshaped(go_shape)};
    inputs.insert(inputs.end(), state.begin(), state.end());
    std::vector<Datum> results = run.run_region(body, std::move(inputs));
    go_on = truth(results[0].tensor);
    for (size_t k = 0; k < carried; ++k) state[k] = std::move(results[1 + k]);
    for (size_t k = 0; k < scans; ++k) collected[k].push_back(std::move(results[1 + carried + k]));
  }
  for (size_t k = 0; k < scans; ++k) {
    state.push_back(collect(run, body, 1 + carried + k, collected[k], 0));
  }
  return state;
}

/// One axis or direction of each scan operand; `fallback` where the attribute is absent.
std::vector<int64_t> per_operand(const Attributes& attributes, const char* name, size_t count) {
  std::vector<int64_t> values = attributes.get_ints(name, std::vector<int64_t>(count, 0));
  if (values.size() == count) return values;
  throw Error(ErrorCode::kModel, std::string("wrong length of \"") + name + "\"")
      .expected(std::to_string(count), std::to_string(values.size()));
}

/// The scan operands of a Scan node, with their axes and directions.
struct ScanInputs {
  std::vector<Tensor> tensors;
  std::vector<int64_t> axes, directions;
  int64_t length = 0;

  ScanInputs(Interpreter& run, NodeId node, size_t first, size_t count)
      : axes(per_operand(run.attributes(node), "scan_input_axes", count)),
        directions(per_operand(run.attributes(node), "scan_input_directions", count)) {
    for (size_t k = 0; k < count; ++k) {
      tensors.push_back(run.tensor(node, first + k));
      const Shape& shape = tensors[k].shape();
      axes[k] = normalize_axis(axes[k], static_cast<int64_t>(shape.size()));
      const int64_t here = shape[static_cast<size_t>(axes[k])];
      if (k > 0 && here != length) {
        throw Error(ErrorCode::kData, "scan inputs of different lengths")
            .expected(std::to_string(length), std::to_string(here));
      }
      length = here;
    }
  }
  Tensor at(size_t k, int64_t trip) const {
    return take_along(tensors[k], axes[k], directions[k] != 0 ? length - 1 - trip : trip);
  }
};

std::vector<Datum> run_scan(Interpreter& run, NodeId node) {
  const RegionId body = run.region(node, "body");
  const Attributes& attributes = run.attributes(node);
  const auto count = static_cast<size_t>(attributes.get_int("num_scan_inputs", 0));
  const size_t operands = run.graph().inputs(body).size();
  if (count < 1 || count > operands || run.graph().inputs(node).size() != operands) {
    throw Error(ErrorCode::kModel, "wrong number of scan inputs")
        .expected("1 to " + std::to_string(operands), std::to_string(count));
  }
  const size_t carried = operands - count;
  const size_t scans = run.graph().outputs(body).size() - carried;
  const ScanInputs inputs(run, node, carried, count);
  std::vector<Datum> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(run.input(node, i));
  std::vector<std::vector<Datum>> collected(scans);
  for (int64_t trip = 0; trip < inputs.length; ++trip) {
    std::vector<Datum> values = state;
    for (size_t k = 0; k < count; ++k) values.emplace_back(inputs.at(k, trip));
    std::vector<Datum> results = run.run_region(body, std::move(values));
    for (size_t k = 0; k < carried; ++k) state[k] = std::move(results[k]);
    for (size_t k = 0; k < scans; ++k) collected[k].push_back(std::move(results[carried + k]));
  }
  const std::vector<int64_t> axes = per_operand(attributes, "scan_output_axes", scans);
  const std::vector<int64_t> turned = per_operand(attributes, "scan_output_directions", scans);
  for (size_t k = 0; k < scans; ++k) {
    if (turned[k] != 0) std::reverse(collected[k].begin(), collected[k].end());
    state.push_back(collect(run, body, carried + k, collected[k], axes[k]));
  }
  return state;
}

std::vector<Datum> run_sequence_map(Interpreter& run, NodeId node) {
  const RegionId body = run.region(node, "body");
  const size_t operands = run.graph().inputs(node).size();
  const size_t length = run.input(node, 0).elements.size();
  std::vector<std::vector<Datum>> collected(run.graph().outputs(body).size());
  for (size_t i = 0; i < length; ++i) {
    std::vector<Datum> values;
    for (size_t k = 0; k < operands; ++k) {
      const Datum& operand = run.input(node, k);
      if (operand.is_sequence() && operand.elements.size() != length) {
        throw Error(ErrorCode::kData, "sequences of different lengths")
            .expected(std::to_string(length), std::to_string(operand.elements.size()));
      }
      values.push_back(operand.is_sequence() ? operand.elements[i] : operand);
    }
    std::vector<Datum> results = run.run_region(body, std::move(values));
    for (size_t k = 0; k < results.size(); ++k) collected[k].push_back(std::move(results[k]));
  }
  std::vector<Datum> sequences;
  for (auto& elements : collected) sequences.push_back(Datum::sequence(std::move(elements)));
  return sequences;
}

constexpr std::pair<std::string_view, RunNode> kControlOps[] = {
    {"If", run_if},
    {"Loop", run_loop},
    {"Scan", run_scan},
    {"SequenceMap", run_sequence_map},
};

}  // namespace

RunNode find_control_op(std::string_view op) {
  for (const auto& [name, run] : kControlOps) {
    if (name == op) return run;
  }
  return nullptr;
}

}  // namespace halfnote
