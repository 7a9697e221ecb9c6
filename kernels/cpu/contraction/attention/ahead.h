// What the next batch reads and this one writes, brought into the cache while this one is computed:
// rows of a head lie far apart where linear layers made them, and the processor's own prefetching
// does not follow. Only a hint.
#pragma once

#include <array>

#include "kernels/cpu/contraction/attention/plan.h"

namespace halfnote::cpu::attention {

class Ahead {
 public:
  /// Some lines are brought in at each of `calls` calls of some(), about as many each time.
  explicit Ahead(int64_t calls) : calls_(std::max<int64_t>(calls, 1)) {}

  /// The rows of a batch at `base`.
  void add(const std::byte* base, DType dtype, const RowLayout& layout, int64_t batch) {
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    spans_[count_++] = {base + layout.at(batch, 0) * bytes, layout.step() * bytes,
                        layout.size * bytes, layout.rows};
    rows_ += layout.rows;
  }

  void some() {
    constexpr int64_t kLine = 64;
    const int64_t share = (rows_ + calls_ - 1) / calls_;
    for (int64_t i = 0; i < share && span_ < count_; ++i) {
      Span& span = spans_[span_];
      for (int64_t at = 0; at < span.bytes; at += kLine) __builtin_prefetch(span.from + at);
      span.from += span.step;
      if (--span.rows == 0) ++span_;
    }
  }

 private:
  struct Span {
    const std::byte* from = nullptr;
    int64_t step = 0, bytes = 0, rows = 0;
  };

  int64_t calls_, rows_ = 0;
  std::array<Span, 8> spans_;
  size_t count_ = 0, span_ = 0;
};

}  // namespace halfnote::cpu::attention
