// The compile pipeline. Order is meaning: each row says what it needs, what it gives, and why it
// stands here.
#include "passes/manager.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr Stage kImp = Stage::kImported;
constexpr Stage kCan = Stage::kCanonical;
constexpr Stage kDif = Stage::kDifferentiated;
constexpr Stage kPre = Stage::kPrecisionAssigned;
constexpr Stage kPad = Stage::kPadded;
constexpr Scope kAll = Scope::kEveryGraph;
constexpr Scope kTrain = Scope::kTrainingSteps;

// name, graph pass, model pass, scope, needs, gives, enters subgraphs, reason
constexpr PassRow kRows[] = {
    {"adopt-training", nullptr, adopt_training, kAll, kImp, kImp, false,
     "a backward pass that came with the model is kept: no autodiff"},
    {"bind-gradients", nullptr, bind_gradients, kAll, kImp, kImp, false,
     "Gradient names values, and passes rename them"},
    {"inline-functions", nullptr, inline_functions, kAll, kImp, kImp, true,
     "operators of the model's own functions are unknown to every later pass"},
    {"name-modules", nullptr, name_modules, kAll, kImp, kImp, true,
     "rules, reports and messages name nodes by their modules"},
    {"repair-types", nullptr, repair_types, kAll, kImp, kImp, true,
     "exports under autocast may contradict themselves in types, and all that follows reads types"},
    {"lift-opset", nullptr, lift_opset, kAll, kImp, kImp, true,
     "all other passes speak op-set 23 only"},
    {"bind-dims", bind_dims, nullptr, kAll, kImp, kImp, true,
     "dims the user fixed (--dim) are numbers from here on"},
    {"choose-trainable", nullptr, choose_trainable, kAll, kImp, kImp, true,
     "weights must not be folded as if they were constants"},
    {"tie-weights", nullptr, tie_weights, kAll, kImp, kImp, false,
     "weights that the exporter split in two (--tie) are one parameter, while both are whole"},
    {"find-folded", nullptr, find_folded, kAll, kImp, kImp, false,
     "parameters that the exporter computed with are not those of the model: said while it is "
     "seen"},
    {"infer-shapes", infer_shapes, nullptr, kAll, kImp, kImp, true, "every later pass reads types"},
    {"undo-autocast", nullptr, undo_autocast, kAll, kImp, kImp, true,
     "what runs in 16 bits is for our policy to decide, and master weights are f32"},
    {"check-nodes", check_nodes, nullptr, kAll, kImp, kImp, true,
     "what is wrong in a model is told in its own nodes, and later passes rely on it"},
    {"fold-operands", fold_constants, nullptr, kAll, kImp, kImp, false,
     "lowerings read sizes that exporters compute"},
    {"flatten-control", flatten_control, nullptr, kAll, kImp, kImp, true,
     "what control flow does is known: plain nodes have gradients, kernels and 16-bit forms"},
    {"lower-ops", lower_ops, nullptr, kAll, kImp, kImp, true,
     "composite ops become simple ones: one gradient rule and one kernel for each of these"},
    {"expand-gradients", expand_gradients, nullptr, kAll, kImp, kImp, false,
     "a Gradient in the graph is differentiated once its forward nodes have rules"},
    {"equal-dims", equal_dims, nullptr, kAll, kImp, kImp, true,
     "a symbol that must be a number is one: shapes fold, and operands are padded alike"},
    {"fold-constants", fold_constants, nullptr, kAll, kImp, kImp, false,
     "the shape arithmetic of exporters disappears"},
    {"canonicalize", canonicalize, nullptr, kAll, kImp, kImp, true,
     "one form for each thing, so that rules need to know one"},
    {"eliminate-common", eliminate_common, nullptr, kAll, kImp, kImp, false,
     "exporters repeat themselves"},
    {"find-splits", find_splits, nullptr, kAll, kImp, kImp, false,
     "Q, K and V that are taken one by one from a tensor would have a sum of padded gradients"},
    {"regroup-dims", regroup_dims, nullptr, kAll, kImp, kImp, false,
     "heads are dims of their own, whatever they were joined with on the way"},
    {"sweep-views", eliminate_dead, nullptr, kAll, kImp, kImp, true,
     "what the two replaced still reads the values whose readers the next one counts"},
    {"swap-batches", swap_batches, nullptr, kAll, kImp, kImp, false,
     "a layer that wants the sequence first computes the same with the batch first"},
    {"simplify-moves", canonicalize, nullptr, kAll, kImp, kImp, true,
     "transposes and views that the above left behind"},
    {"scale-queries", scale_queries, nullptr, kAll, kImp, kImp, true,
     "a learned number for each head would stand between the scores and their softmax"},
    {"find-norms", find_norms, nullptr, kAll, kImp, kImp, true,
     "a spelled-out normalization is one node, with a kernel, a gradient and a 16-bit form"},
    {"find-logs", find_logs, nullptr, kAll, kImp, kImp, true,
     "the logarithm of a probability that f32 has rounded to 0 would be infinite"},
    {"find-gelus", find_gelus, nullptr, kAll, kImp, kImp, true,
     "a spelled-out Gelu in 16 bits would lose what is left of 1 + erf below 0"},
    {"eliminate-dead", eliminate_dead, nullptr, kAll, kImp, kCan, true,
     "what nobody reads need not be differentiated"},
    {"mend-constants", mend_constants, nullptr, kAll, kCan, kCan, false,
     "bounds that bound nothing would not fit 16 bits and keep their nodes in f32"},
    {"attach-loss", nullptr, attach_loss, kAll, kCan, kCan, true,
     "makes the training, evaluation and inference graphs"},
    {"force-training", nullptr, force_training, kAll, kCan, kCan, false,
     "batch statistics and dropout, with state of their own"},
    {"differentiate", nullptr, differentiate, kAll, kCan, kCan, true,
     "the backward pass; a Scan saves for it what it carries"},
    {"append-optimizer", nullptr, append_optimizer, kAll, kCan, kCan, false,
     "gradients become new weights"},
    {"split-accumulation", nullptr, split_accumulation, kAll, kCan, kCan, false,
     "micro-batches: accumulate, then apply"},
    {"fold-gradients", fold_constants, nullptr, kTrain, kCan, kCan, false,
     "rules write general forms; what is constant in them goes"},
    {"simplify-gradients", canonicalize, nullptr, kAll, kCan, kCan, true,
     "likewise: identities, transposes of transposes"},
    {"merge-gradients", eliminate_common, nullptr, kTrain, kCan, kCan, false,
     "rules ask for the same value twice"},
    {"absorb-gradients", absorb_gradients, nullptr, kAll, kCan, kCan, false,
     "the gradient of a weight that the model transposes is one product, which may write f32"},
    {"sweep-gradients", eliminate_dead, nullptr, kAll, kCan, kDif, true,
     "gradients that nobody asked for, forward nodes that gave way"},
    {"assign-precision", nullptr, assign_precision, kAll, kDif, kDif, true,
     "decides the type each node computes in, with the reason"},
    {"insert-casts", insert_casts, nullptr, kAll, kDif, kDif, true,
     "rewrites the graph to the decisions: one cast per value and type"},
    {"scale-loss", nullptr, scale_loss, kAll, kDif, kDif, false,
     "loss scale, unscale, finite check, transactional update"},
    {"clean-casts", clean_casts, nullptr, kAll, kDif, kDif, true,
     "casts that are provably exact, or that we made and can do without"},
    {"sweep-casts", eliminate_dead, nullptr, kAll, kDif, kPre, true, "what the casts replaced"},
    {"pad-to-8", pad_to_8, nullptr, kAll, kPre, kPre, false,
     "16-bit contractions run at full speed on multiples of 8"},
    {"clean-padding", clean_padding, nullptr, kAll, kPre, kPre, false,
     "Slice then Pad cancels through ops that keep padding inert"},
    {"sweep-padding", eliminate_dead, nullptr, kAll, kPre, kPad, true, "what padding replaced"},
    {"initialize-states", nullptr, initialize_states, kAll, kPad, kPad, false,
     "the first values of moments, scaler and counters, as ONNX states them"},
};

}  // namespace

std::span<const PassRow> compile_pipeline() { return kRows; }

}  // namespace halfnote
