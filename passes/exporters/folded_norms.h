// BatchNormalization that an exporter folded into the layer before it.
#pragma once

#include <string>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Did PyTorch's newer exporter fold a BatchNormalization into the weights of this node? The file
/// says so: by the rule that wrote the node, or by the class of its module. The node's module is
/// that of the BatchNormalization then, and the weights keep the names of their own.
bool is_folded_norm(const Node& node);

/// Does the operand's name say that a BatchNormalization is in it: `onnx::Conv_12` of PyTorch's
/// older exporter, `…_fused_bn`, or a bias called after its weight (`conv.weight_bias`)?
bool names_folded_norm(const Graph& graph, NodeId node, size_t slot);

/// `4 nodes (a.1/Conv_65, …) hold a BatchNormalization that the exporter folded into the weights`;
/// empty where there is none.
std::string folded_norms_text(const Graph& graph);

/// What to do about it: another export, and a setting.
inline constexpr const char* kFoldedNormWayOut =
    "export with optimize=False (PyTorch, dynamo=True), or with do_constant_folding=False and "
    "training=TrainingMode.TRAINING (dynamo=False), and compile with --force-training";

}  // namespace halfnote
