// The keys under which halfnote keeps in an ONNX file what ONNX has no field for. They stand in
// `metadata_props`, so any other tool reads the file as before.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halfnote {

// Of a node.
inline constexpr std::string_view kRoleKey = "halfnote.role";  // absent: forward
inline constexpr std::string_view kPrecisionKey = "halfnote.precision";
inline constexpr std::string_view kReasonKey = "halfnote.reason";
inline constexpr std::string_view kOriginKey = "halfnote.origin";

// Of a value.
inline constexpr std::string_view kScalePowerKey = "halfnote.scale_power";

/// Of the model: its op-set before it was lifted to 23, in which the trained model is written.
inline constexpr std::string_view kOpsetKey = "halfnote.opset";

/// Of the model: the input that an attached loss compares with, and the name of the loss
/// (`join_names`).
inline constexpr std::string_view kTargetKey = "halfnote.target";

// Of the model, lists of initializers that its exporter declared, written by `join_names`.
inline constexpr std::string_view kParametersKey = "halfnote.parameters";  // to be trained
inline constexpr std::string_view kBuffersKey = "halfnote.buffers";        // buffers, constants
inline constexpr std::string_view kConstantsKey =
    "halfnote.constants";  // computed in the forward function, of no parameter
inline constexpr std::string_view kFrozenKey =
    "halfnote.frozen";  // parameters that the settings leave alone
/// An initializer that the exporter computed from parameters, their names with commas, …
inline constexpr std::string_view kFoldedKey = "halfnote.folded";
/// … those of which nothing is left; empty, but there, where the file says that all are.
inline constexpr std::string_view kLostKey = "halfnote.lost_parameters";

/// Of the model, its trained form too: how many Dropouts trained which its graph no longer has.
inline constexpr std::string_view kDropoutsKey = "halfnote.dropouts";

// Of a graph; lists of names are written by `join_names`.
inline constexpr std::string_view kTrainableKey = "halfnote.trainable";  // names of initializers
inline constexpr std::string_view kStatesKey =
    "halfnote.states";  // of `graph`: kind, name, next name, …
// Of the algorithm of a training step.
inline constexpr std::string_view kStepKey = "halfnote.step";  // name of the step
inline constexpr std::string_view kKindsKey =
    "halfnote.state_kinds";  // one kind for each update binding
inline constexpr std::string_view kInputsKey = "halfnote.inputs";    // all inputs, in order
inline constexpr std::string_view kOutputsKey = "halfnote.outputs";  // how many outputs are results
/// Values of the algorithm whose name also stands in the inference graph carry this prefix in the
/// file only.
inline constexpr std::string_view kPrefixKey = "halfnote.prefix";

/// One name a line; backslash and newline in names are escaped.
std::string join_names(std::span<const std::string> names);
std::vector<std::string> split_names(std::string_view text);

}  // namespace halfnote
