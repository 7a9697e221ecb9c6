// Every pass, one line each; its file says what it does, its golden file under tests/passes/golden/
// shows it.
#pragma once

#include "passes/pass.h"

namespace halfnote {

// foreign/: training graphs by others -> our training model
bool adopt_training(Model& model, PassContext& context);
bool bind_gradients(Model& model, PassContext& context);
bool expand_gradients(Graph& graph, PassContext& context);

// exporters/: what exporters do to names, types and weights, and what they get wrong
bool name_modules(Model& model, PassContext& context);
bool repair_types(Model& model, PassContext& context);
bool find_folded(Model& model, PassContext& context);
bool check_nodes(Graph& graph, PassContext& context);

// canonical/: any ONNX model -> op-set 23, typed, folded, without dead or repeated nodes
bool inline_functions(Model& model, PassContext& context);
bool lift_opset(Model& model, PassContext& context);
bool bind_dims(Graph& graph, PassContext& context);
bool choose_trainable(Model& model, PassContext& context);
bool tie_weights(Model& model, PassContext& context);
bool infer_shapes(Graph& graph, PassContext& context);
bool undo_autocast(Model& model, PassContext& context);
bool flatten_control(Graph& graph, PassContext& context);
bool take_branches(Graph& graph, PassContext& context);
bool lower_ops(Graph& graph, PassContext& context);
bool fold_constants(Graph& graph, PassContext& context);
bool equal_dims(Graph& graph, PassContext& context);
bool canonicalize(Graph& graph, PassContext& context);
bool find_splits(Graph& graph, PassContext& context);
bool regroup_dims(Graph& graph, PassContext& context);
bool swap_batches(Graph& graph, PassContext& context);
bool scale_queries(Graph& graph, PassContext& context);
bool find_norms(Graph& graph, PassContext& context);
bool find_logs(Graph& graph, PassContext& context);
bool find_gelus(Graph& graph, PassContext& context);
bool eliminate_common(Graph& graph, PassContext& context);
bool eliminate_dead(Graph& graph, PassContext& context);

// train/: forward graph -> training step
bool attach_loss(Model& model, PassContext& context);
bool force_training(Model& model, PassContext& context);
bool differentiate(Model& model, PassContext& context);
bool append_optimizer(Model& model, PassContext& context);
bool split_accumulation(Model& model, PassContext& context);
bool absorb_gradients(Graph& graph, PassContext& context);  // device/products/absorb_transposes.cc
bool initialize_states(Model& model, PassContext& context);

// precision/
bool mend_constants(Graph& graph, PassContext& context);
bool assign_precision(Model& model, PassContext& context);
bool insert_casts(Graph& graph, PassContext& context);
bool scale_loss(Model& model, PassContext& context);
bool clean_casts(Graph& graph, PassContext& context);

// padding/
bool pad_to_8(Graph& graph, PassContext& context);
bool clean_padding(Graph& graph, PassContext& context);

// device/: emission, and passes of device_pipeline(); no part of the compile pipeline
bool absorb_transposes(Graph& graph, PassContext& context);
bool emulate_16bit(Graph& graph, PassContext& context);
bool update_early(Graph& graph, PassContext& context);

}  // namespace halfnote
