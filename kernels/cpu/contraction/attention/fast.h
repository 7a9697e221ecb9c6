// What the blockwise kernels share: which calls they take, and how they read and multiply operands
// of E, float or BFloat16 (where the CPU multiplies pairs of it; else 16-bit operands are converted
// to float).
#pragma once

#include <string>

#include "kernels/cpu/contraction/attention/ahead.h"
#include "kernels/cpu/contraction/attention/pack.h"
#include "kernels/cpu/contraction/attention/scores.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu::attention {

/// The reason why a call is not for the blockwise kernels; else empty.
std::string fast_refusal(const AttentionPlan& plan);

/// A matrix of every batch (rows, columns) that products read as E.
template <class E>
struct Source {
  enum class Use {
    kPacked,      // once, into panels
    kMultiplied,  // by row for every tile, of bf16 in pairs: rows lie close, of an even size
  };

  size_t input = 0;
  DType dtype = DType::kUndefined;
  RowLayout layout;
  Use use = Use::kPacked;
  size_t room = 0;  // of a copy, in elements from the start of a slot

  int64_t rows() const { return layout.rows; }
  int64_t columns() const { return layout.size; }
  int64_t close_ld() const {
    return use == Use::kMultiplied && sizeof(E) == 2 ? round_up(columns(), 2) : columns();
  }
  bool is_direct() const {
    if (dtype != dtype_of<E>()) return false;
    return use == Use::kPacked || layout.step() == close_ld();
  }
  /// From one row to the next of what read() gives.
  int64_t ld() const { return is_direct() ? layout.step() : close_ld(); }

  void fetch(const KernelBuffers& buffers, int64_t batch, Ahead& ahead) const {
    ahead.add(buffers.inputs[input], dtype, layout, batch);
  }

  const E* read(const KernelBuffers& buffers, int64_t batch, std::byte* slot) const {
    const int64_t first = layout.at(batch, 0);
    if (is_direct()) return buffers.in<E>(input) + first;
    E* to = reinterpret_cast<E*>(slot + room);
    for (int64_t row = 0; row < rows(); ++row) {
      E* line = to + row * ld();
      if constexpr (sizeof(E) == sizeof(float)) {
        load_reals(buffers.inputs[input], dtype, layout.at(batch, row), columns(), line);
      } else {
        std::copy_n(buffers.in<E>(input) + layout.at(batch, row), columns(), line);
        std::fill(line + columns(), line + ld(), E{});
      }
    }
    return to;
  }
};

template <class E>
Source<E> source_of(const KernelCall& call, size_t input, const RowLayout& layout,
                    typename Source<E>::Use use, WorkspacePlan& slot) {
  Source<E> source{input, call.inputs[input].dtype, layout, use};
  if (!source.is_direct()) source.room = slot.add_elements<E>(source.rows() * source.ld());
  return source;
}

/// C = A·B or C + A·B of a packed B.
template <class E>
void multiply(const E* a, int64_t lda, const E* b, int64_t width, int64_t rows, int64_t k, float* c,
              int64_t ldc, bool add) {
  if constexpr (sizeof(E) == sizeof(float)) {
    tile_math().product(a, lda, b, width, rows, k, c, ldc, add);
  } else {
    tile_math().pair_product(a, lda, reinterpret_cast<const uint32_t*>(b), width, rows,
                             round_up(k, 2), c, ldc, add);
  }
}

/// Panels of packed operands: for each panel of keys, B (terms, keys) with the columns of the
/// source as terms, or B (keys, columns) with the keys as terms, itself in panels of columns.
template <class E>
class KeyPanels {
 public:
  enum class Terms { kColumns, kKeys };

  KeyPanels() = default;
  KeyPanels(Terms terms, int64_t keys, int64_t columns, WorkspacePlan& slot)
      : terms_(terms), keys_(keys), columns_(columns) {
    room_ = slot.add_elements<E>((keys + kPanel - 1) / kPanel * stride());
  }

  /// Packs all of a source, which is stored by keys, or by columns if `transposed`, in rows that
  /// lie `ld` apart.
  void pack(const E* from, int64_t ld, bool transposed, std::byte* slot) const {
    for (int64_t first = 0; first < keys_; first += kPanel) {
      const int64_t keys = std::min(kPanel, keys_ - first);
      E* to = reinterpret_cast<E*>(slot + room_) + first / kPanel * stride();
      if (terms_ == Terms::kColumns) {
        if (transposed) {
          pack_rows(from + first, ld, columns_, keys, panel_width(keys), to);
        } else {
          pack_columns(from + first * ld, ld, columns_, keys, panel_width(keys), to);
        }
        continue;
      }
      for (int64_t c = 0; c < columns_; c += kPanel, to += kPanel * kPanel) {
        const int64_t count = std::min(kPanel, columns_ - c), width = panel_width(count);
        if (transposed) {
          pack_columns(from + c * ld + first, ld, keys, count, width, to);
        } else {
          pack_rows(from + first * ld + c, ld, keys, count, width, to);
        }
      }
    }
  }

  const E* panel(const std::byte* slot, int64_t key) const {
    return reinterpret_cast<const E*>(slot + room_) + key / kPanel * stride();
  }

  /// C (rows, columns) (+)= A (rows, keys)·B for the panel of keys from `key` on.
  void multiply_keys(const E* a, const std::byte* slot, int64_t key, int64_t rows, float* c,
                     int64_t ldc, bool add) const {
    const E* b = panel(slot, key);
    const int64_t keys = std::min(kPanel, keys_ - key);
    for (int64_t column = 0; column < columns_; column += kPanel, b += kPanel * kPanel)
      multiply(a, kPanel, b, panel_width(columns_ - column), rows, keys, c + column, ldc, add);
  }

 private:
  int64_t stride() const {
    return terms_ == Terms::kColumns ? round_up(columns_, 2) * kPanel
                                     : kPanel * round_up(columns_, kPanel);
  }

  Terms terms_ = Terms::kColumns;
  int64_t keys_ = 0, columns_ = 0;
  size_t room_ = 0;
};

/// Runs `body(task, next, slot)` for all tasks, each on one of `slots` parts of the workspace of
/// `bytes` each; `next` is the task that follows there, or `tasks`. Which part it is depends on the
/// number of threads, what is computed does not.
template <class Body>
void for_tasks(int64_t tasks, int slots, size_t bytes, const KernelBuffers& buffers,
               const Body& body) {
  parallel_blocks(slots, 1, slots, [&](int64_t slot, int64_t) {
    // Neighbours on one thread: heads that lie side by side share pages.
    const int64_t end = tasks * (slot + 1) / slots;
    for (int64_t task = tasks * slot / slots; task < end; ++task)
      body(task, task + 1 < end ? task + 1 : tasks,
           buffers.workspace + static_cast<size_t>(slot) * bytes);
  });
}

Prepared prepare_fast(const KernelCall& call);           // fast_forward.cc
Prepared prepare_fast_gradient(const KernelCall& call);  // fast_gradient.cc

}  // namespace halfnote::cpu::attention
