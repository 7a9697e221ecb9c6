// What is known of each channel, as it lies in memory between the kernel that finds it and the one
// that needs it: number by number, those of neighbouring channels side by side, so that a thread
// reads those of its channels with 16-byte loads, all on their way together.
#pragma once

#include <cstring>

#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// Lines of `M`s, the members of a Line.
template <class Line, class M>
class LineTable {
  static constexpr int kMembers = sizeof(Line) / sizeof(M);
  static_assert(sizeof(Line) == kMembers * sizeof(M));

 public:
  LineTable() = default;
  LineTable(std::byte* at, int64_t lines) : numbers_(reinterpret_cast<M*>(at)), lines_(lines) {}
  static size_t bytes(int64_t lines) { return static_cast<size_t>(lines) * sizeof(Line); }

  __device__ void write(int64_t at, const Line& line) const {
    M members[kMembers];
    memcpy(members, &line, sizeof(line));
    HN_UNROLL
    for (int m = 0; m < kMembers; ++m) numbers_[m * lines_ + at] = members[m];
  }
  /// The lines from `at` on. Where there are several, V divides `at` and the number of all.
  template <int V>
  __device__ void read(int64_t at, Line (&to)[V]) const {
    constexpr int kTogether = V % (16 / sizeof(M)) == 0 ? 16 / sizeof(M) : 1;
    M members[V][kMembers];
    HN_UNROLL
    for (int m = 0; m < kMembers; ++m) {
      HN_UNROLL
      for (int v = 0; v < V; v += kTogether) {
        const auto some = load_packed<kTogether>(numbers_ + m * lines_ + at + v);
        HN_UNROLL
        for (int i = 0; i < kTogether; ++i) members[v + i][m] = some.of[i];
      }
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) memcpy(&to[v], members[v], sizeof(Line));
  }

 private:
  M* numbers_ = nullptr;
  int64_t lines_ = 0;
};

}  // namespace halfnote::HN_CUDA
