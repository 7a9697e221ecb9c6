// One row of one step of the recurrent cells, forward and backward, in math precision. `a` is what
// goes into the activations, one block of H numbers a gate (base/ops/recurrence.h has the order);
// vectors are H long.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/contraction/recurrent/activation.h"

namespace halfnote::cpu {

/// What the cells of one direction share.
template <class M>
struct Cell {
  const Recurrence* r = nullptr;
  int64_t direction = 0, hidden = 0;
  const M* peepholes = nullptr;  // of i, o and f; null: none

  void act(int64_t function, const M* x, M* y) const {
    activate(r->activation(direction, function), r->clip, x, hidden, y);
  }
  void slope(int64_t function, const M* x, const M* y, M* s) const {
    activation_slope(r->activation(direction, function), r->clip, x, y, hidden, s);
  }
  /// LSTM's h, which is not cut.
  void act_cell(const M* c, M* y) const { activate(r->activation(direction, 2), {}, c, hidden, y); }
  void slope_cell(const M* c, const M* y, M* s) const {
    activation_slope(r->activation(direction, 2), {}, c, y, hidden, s);
  }
};

/// a += x
template <class M>
void add_to(M* a, const M* x, int64_t n) {
  for (int64_t j = 0; j < n; ++j) a[j] += x[j];
}

/// Vectors that a row needs besides its operands.
inline constexpr int64_t kCellScratch = 9;

/// LSTM: completes the peephole part of `a`; `c` (the cell) becomes the new one, `h` the new state.
template <class M>
void lstm_forward(const Cell<M>& cell, M* a, M* c, M* h, M* scratch) {
  const int64_t n = cell.hidden;
  M *ai = a, *ao = a + n, *af = a + 2 * n, *an = a + 3 * n;
  M *i = scratch, *o = i + n, *f = o + n, *g = f + n;
  const M* p = cell.peepholes;
  if (p != nullptr) {
    for (int64_t j = 0; j < n; ++j) ai[j] += p[j] * c[j];
    for (int64_t j = 0; j < n; ++j) af[j] += p[2 * n + j] * c[j];
  }
  cell.act(0, ai, i);
  if (cell.r->coupled) {
    for (int64_t j = 0; j < n; ++j) f[j] = 1 - i[j];
  } else {
    cell.act(0, af, f);
  }
  cell.act(1, an, g);
  for (int64_t j = 0; j < n; ++j) c[j] = f[j] * c[j] + i[j] * g[j];
  if (p != nullptr) {
    for (int64_t j = 0; j < n; ++j) ao[j] += p[n + j] * c[j];
  }
  cell.act(0, ao, o);
  cell.act_cell(c, h);
  for (int64_t j = 0; j < n; ++j) h[j] *= o[j];
}

/// From dh and dc (of the new state and cell) to da; dc becomes that of the old cell, `c_old`.
template <class M>
void lstm_backward(const Cell<M>& cell, const M* a, const M* c, const M* c_old, const M* dh, M* dc,
                   M* da, M* scratch) {
  const int64_t n = cell.hidden;
  const M *ai = a, *ao = a + n, *af = a + 2 * n, *an = a + 3 * n;
  M *i = scratch, *o = i + n, *f = o + n, *g = f + n, *hc = g + n, *s = hc + n;
  M *dai = da, *dao = da + n, *daf = da + 2 * n, *dan = da + 3 * n;
  const M* p = cell.peepholes;
  cell.act(0, ai, i);
  cell.act(0, ao, o);
  cell.act(1, an, g);
  cell.act_cell(c, hc);
  cell.slope(0, ao, o, s);
  for (int64_t j = 0; j < n; ++j) dao[j] = dh[j] * hc[j] * s[j];
  cell.slope_cell(c, hc, s);
  for (int64_t j = 0; j < n; ++j) dc[j] += dh[j] * o[j] * s[j];
  if (p != nullptr) {
    for (int64_t j = 0; j < n; ++j) dc[j] += dao[j] * p[n + j];
  }
  cell.slope(0, ai, i, s);
  if (cell.r->coupled) {
    for (int64_t j = 0; j < n; ++j) f[j] = 1 - i[j];
    for (int64_t j = 0; j < n; ++j) dai[j] = dc[j] * (g[j] - c_old[j]) * s[j];
    std::fill_n(daf, n, M(0));
  } else {
    cell.act(0, af, f);
    for (int64_t j = 0; j < n; ++j) dai[j] = dc[j] * g[j] * s[j];
    cell.slope(0, af, f, s);
    for (int64_t j = 0; j < n; ++j) daf[j] = dc[j] * c_old[j] * s[j];
  }
  cell.slope(1, an, g, s);
  for (int64_t j = 0; j < n; ++j) dan[j] = dc[j] * i[j] * s[j];
  for (int64_t j = 0; j < n; ++j) dc[j] *= f[j];
  if (p != nullptr) {
    for (int64_t j = 0; j < n; ++j) dc[j] += dai[j] * p[j] + daf[j] * p[2 * n + j];
  }
}

/// GRU: h' = (1 − z)∘n + z∘h from the finished `a`, over `h`.
template <class M>
void gru_forward(const Cell<M>& cell, const M* a, M* h, M* scratch) {
  const int64_t n = cell.hidden;
  M *z = scratch, *g = z + n;
  cell.act(0, a, z);
  cell.act(1, a + 2 * n, g);
  for (int64_t j = 0; j < n; ++j) h[j] = (1 - z[j]) * g[j] + z[j] * h[j];
}

/// da of the gates z and n, and what goes straight into the old state: direct = dh∘z.
template <class M>
void gru_backward(const Cell<M>& cell, const M* a, const M* h_old, const M* dh, M* daz, M* dan,
                  M* direct, M* scratch) {
  const int64_t n = cell.hidden;
  M *z = scratch, *g = z + n, *s = g + n;
  cell.act(0, a, z);
  cell.act(1, a + 2 * n, g);
  cell.slope(0, a, z, s);
  for (int64_t j = 0; j < n; ++j) daz[j] = dh[j] * (h_old[j] - g[j]) * s[j];
  cell.slope(1, a + 2 * n, g, s);
  for (int64_t j = 0; j < n; ++j) dan[j] = dh[j] * (1 - z[j]) * s[j];
  for (int64_t j = 0; j < n; ++j) direct[j] = dh[j] * z[j];
}

}  // namespace halfnote::cpu
