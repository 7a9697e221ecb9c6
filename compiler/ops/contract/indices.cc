// Indices, axes and lengths: each points into a size. What stands in the model is held against it
// here, number by number; what is computed is checked as it is read.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "compiler/ops/contract/operands.h"

namespace halfnote::contract {
namespace {

/// One index into axis `axis` of `x`; negative ones count from the end.
void check_index(const Operands& o, size_t operand, int64_t index, const SymbolicShape& x,
                 size_t axis) {
  const Dim& dim = x[axis];
  if (!dim.known() || (index >= -dim.value && index < dim.value)) return;
  const std::string range =
      dim.value == 0 ? "none" : std::to_string(-dim.value) + " to " + std::to_string(dim.value - 1);
  throw out_of_range(o, operand, "an index")
      .expected(range + " for axis " + std::to_string(axis) + " of " + to_string(x),
                std::to_string(index));
}

void check_indices(const Operands& o, size_t operand, const SymbolicShape& x, size_t axis) {
  const Tensor* indices = o.constant(operand);
  if (indices == nullptr || !x[axis].known()) return;
  for (int64_t i = 0; i < indices->size(); ++i) {
    check_index(o, operand, indices->at_as_int(i), x, axis);
  }
}

size_t axis_of(const Operands& o, const SymbolicShape& x, int64_t fallback) {
  return static_cast<size_t>(
      normalize_axis(o.node.attributes.get_int("axis", fallback), static_cast<int64_t>(x.size())));
}

/// GatherElements and ScatterElements: an index for an element of a box that lies in `x`, but for
/// the axis.
void check_box(const Operands& o, const SymbolicShape& x, const SymbolicShape& indices) {
  if (indices.size() != x.size()) {
    refuse(o, 1, "indices", "rank " + std::to_string(x.size()) + ", as " + to_string(x) + " has",
           to_string(indices));
  }
  if (x.empty()) return;
  const size_t axis = axis_of(o, x, 0);
  for (size_t d = 0; d < x.size(); ++d) {
    const bool known = x[d].known() && indices[d].known();
    if (d == axis || !known || indices[d].value <= x[d].value) continue;
    refuse(o, 1, "indices",
           "no dim but " + std::to_string(axis) + " larger than that of " + to_string(x),
           to_string(indices));
  }
  check_indices(o, 1, x, axis);
}

/// GatherND and ScatterND: the last dim of the indices holds a place in `x`, behind `lead` dims.
void check_places(const Operands& o, const SymbolicShape& x, size_t lead, size_t width) {
  const Tensor* indices = o.constant(1);
  if (indices == nullptr || width == 0) return;
  for (int64_t i = 0; i < indices->size(); ++i) {
    check_index(o, 1, indices->at_as_int(i), x, lead + static_cast<size_t>(i) % width);
  }
}

}  // namespace

void check_gather(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || x->empty()) return;
  check_indices(o, 1, *x, axis_of(o, *x, 0));
}

void check_gather_elements(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *indices = o.shape(1);
  if (x != nullptr && indices != nullptr) check_box(o, *x, *indices);
}

void check_scatter_elements(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *indices = o.shape(1);
  if (x == nullptr || indices == nullptr) return;
  check_box(o, *x, *indices);
  check_shape(o, 2, "updates", *indices);
}

void check_gather_nd(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *indices = o.shape(1);
  if (x == nullptr || indices == nullptr || x->empty() || indices->empty()) return;
  const int64_t batch_dims = o.node.attributes.get_int("batch_dims", 0);
  const auto rank = static_cast<int64_t>(std::min(x->size(), indices->size()));
  if (batch_dims < 0 || batch_dims >= rank) {
    throw Error(ErrorCode::kModel, "attribute \"batch_dims\" is out of range")
        .expected("0 to " + std::to_string(rank - 1) + ", less than the ranks of " + to_string(*x) +
                      " and " + to_string(*indices),
                  std::to_string(batch_dims));
  }
  const auto lead = static_cast<size_t>(batch_dims);
  for (size_t d = 0; d < lead; ++d) {
    if (fits((*indices)[d], (*x)[d])) continue;
    refuse(o, 1, "indices", "the first " + std::to_string(lead) + " dims of " + to_string(*x),
           to_string(*indices));
  }
  if (!indices->back().known()) return;
  const auto width = static_cast<size_t>(indices->back().value);
  if (width <= x->size() - lead) check_places(o, *x, lead, width);  // inference refuses others
}

void check_scatter_nd(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *indices = o.shape(1);
  if (x == nullptr || indices == nullptr) return;
  if (indices->empty()) refuse(o, 1, "indices", "rank 1 or more", to_string(*indices));
  if (!indices->back().known()) return;
  const auto width = static_cast<size_t>(indices->back().value);
  if (width > x->size()) {
    refuse(o, 1, "indices",
           "at most " + std::to_string(x->size()) + " numbers a place of " + to_string(*x),
           to_string(*indices));
  }
  SymbolicShape updates(indices->begin(), indices->end() - 1);
  updates.insert(updates.end(), x->begin() + static_cast<int64_t>(width), x->end());
  check_shape(o, 2, "updates", updates);
  check_places(o, *x, 0, width);
}

void check_max_unpool(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr) return;
  check_shape(o, 1, "indices", *x);
  const auto& y = o.graph.value(o.graph.output(o.id)).type;
  // With a size of its own the result is cut or padded: the indices are not those of it.
  if (o.operand(2).valid() || !y.has_concrete_shape()) return;
  check_range(o, 1, "an index", 0, element_count(concrete(*y.shape)) - 1,
              ", the elements of " + to_string(*y.shape));
}

void check_cum_sum(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  check_one_element(o, 1, "axis");
  if (x == nullptr) return;
  const auto rank = static_cast<int64_t>(x->size());
  check_range(o, 1, "the axis", -rank, rank - 1,
              ", an axis of an operand of rank " + std::to_string(x->size()));
}

void check_reverse_sequence(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  const int64_t batch = o.node.attributes.get_int("batch_axis", 1);
  const int64_t time = o.node.attributes.get_int("time_axis", 0);
  if (batch == time || std::min(batch, time) < 0 || std::max(batch, time) > 1) {
    throw Error(ErrorCode::kModel, "attributes \"batch_axis\" and \"time_axis\" do not fit")
        .expected("0 and 1, or 1 and 0", std::to_string(batch) + " and " + std::to_string(time));
  }
  if (x == nullptr || x->size() < 2) return;
  check_shape(o, 1, "sequence_lens", {(*x)[static_cast<size_t>(batch)]});
  const Dim& steps = (*x)[static_cast<size_t>(time)];
  if (!steps.known()) return;
  check_range(o, 1, "a length", 0, steps.value,
              ", the size of axis " + std::to_string(time) + " of " + to_string(*x));
}

void check_roi_align(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *rois = o.shape(1);
  if (rois != nullptr && rois->size() == 2) check_shape(o, 2, "batch_indices", {(*rois)[0]});
  if (x == nullptr || x->empty() || !(*x)[0].known()) return;
  check_range(o, 2, "an index", 0, (*x)[0].value - 1, ", the batch of " + to_string(*x));
}

/// Class weights are a vector, one number a class.
void check_class_weights(const Operands& o, const Dim& classes) {
  const SymbolicShape* shape = o.shape(2);
  if (shape == nullptr || (shape->size() == 1 && fits(shape->front(), classes))) return;
  const std::string wanted = to_string(SymbolicShape{classes});
  std::string hint = "the scores \"" + o.name(0) + "\" are " + to_string(*o.shape(0)) +
                     ", their axis 1 counts the classes: give one weight for each";
  if (may_be_one_element(*shape)) {
    hint += ", or none where all weigh the same";
  } else if (std::ranges::find(*shape, classes) != shape->end()) {
    hint = "store it as a vector, or put a Reshape to " + wanted + " between it and the loss";
  }
  throw Error(ErrorCode::kModel, "the class weights \"" + o.name(2) + "\" do not fit the scores")
      .expected("shape " + wanted, to_string(*shape))
      .hint(std::move(hint));
}

void check_labels(const Operands& o) {
  const SymbolicShape* x = o.shape(0);
  if (x == nullptr || x->size() < 2) return;
  SymbolicShape labels = *x;
  labels.erase(labels.begin() + 1);
  const Dim& classes = (*x)[1];
  check_shape(o, 1, "labels", labels);
  check_class_weights(o, classes);
  const Tensor* constant = o.constant(1);
  if (constant == nullptr || !classes.known()) return;
  const bool ignores = o.node.attributes.has("ignore_index");
  const int64_t ignored = o.node.attributes.get_int("ignore_index", -1);
  for (int64_t i = 0; i < constant->size(); ++i) {
    const int64_t label = constant->at_as_int(i);
    if ((label >= 0 && label < classes.value) || (ignores && label == ignored)) continue;
    throw out_of_range(o, 1, "a label")
        .expected("0 to " + std::to_string(classes.value - 1) +
                      (ignores ? " or " + std::to_string(ignored) : ""),
                  std::to_string(label));
  }
}

}  // namespace halfnote::contract
