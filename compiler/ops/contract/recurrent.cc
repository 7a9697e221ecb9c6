// The operands of RNN, GRU and LSTM: one hidden size, one batch and as many directions as the
// attributes say.
#include "base/ops/recurrence.h"

#include "compiler/ops/contract/operands.h"

namespace halfnote::contract {
namespace {

constexpr size_t kB = 3, kLengths = 4, kState = 5, kCell = 6, kPeepholes = 7;

/// `factor` times a dim.
Dim times(int64_t factor, const Dim& dim) {
  return dim.known() ? Dim(checked_mul(factor, dim.value)) : Dim();
}

}  // namespace

void check_recurrent(const Operands& o) {
  const SymbolicShape *x = o.shape(0), *r = o.shape(2);
  if (x == nullptr || r == nullptr || x->size() != 3) return;  // inference wants rank 3 of X
  if (r->size() != 3) refuse(o, 2, "recurrence weight", "rank 3", to_string(*r));
  const Dim hidden = (*r)[2];
  const Recurrence recurrence = recurrence_of(*recurrent_op(o.node.op), o.node.attributes,
                                              hidden.known() ? hidden.value : -1);
  const Dim directions(recurrence.directions());
  const Dim rows = times(recurrence.gates(), hidden);
  const Dim time = (*x)[recurrence.batch_first ? 1 : 0];
  const Dim batch = (*x)[recurrence.batch_first ? 0 : 1];
  const SymbolicShape state = recurrence.batch_first ? SymbolicShape{batch, directions, hidden}
                                                     : SymbolicShape{directions, batch, hidden};
  check_shape(o, 1, "weight", {directions, rows, (*x)[2]});
  check_shape(o, 2, "recurrence weight", {directions, rows, hidden});
  check_shape(o, kB, "bias", {directions, times(2, rows)});
  check_shape(o, kLengths, "sequence_lens", {batch});
  check_shape(o, kState, "initial state", state);
  if (recurrence.op == RecurrentOp::kLstm) {
    check_shape(o, kCell, "initial cell", state);
    check_shape(o, kPeepholes, "peephole weight", {directions, times(3, hidden)});
  }
  if (!time.known()) return;
  check_range(o, kLengths, "a length", 0, time.value, ", the time of \"" + o.name(0) + "\"");
}

}  // namespace halfnote::contract
