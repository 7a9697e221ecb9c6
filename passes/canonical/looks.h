// How much of the weights is read for the sake of a warning.
//
// Weights may be larger than memory: nothing in a compilation has to read them, the system copies
// them into the artifact. A look at their values is worth little reading: kMostLooked bytes a pass
// in all, tensor by tensor in the order of the graph. What does not fit any more is judged by its
// ends or by samples, and a warning that rests on samples says so.
#pragma once

#include "base/system/mapped_files.h"
#include "base/tensor.h"

namespace halfnote {

class Looks {
 public:
  static constexpr size_t kMostLooked = size_t{64} << 20;
  static constexpr size_t kEnd = size_t{16} << 10;  // bytes at each end of a tensor

  /// May all of the tensor be read? Its bytes then count.
  bool allow(const Tensor& tensor) {
    if (tensor.byte_size() > left_) return false;
    left_ -= tensor.byte_size();
    return true;
  }

  /// The tensor was read: large ones need not stay in memory.
  static void release(const Tensor& tensor) {
    if (tensor.byte_size() < kReleased) return;
    release_mapped({tensor.bytes(), tensor.byte_size()});
  }

 private:
  static constexpr size_t kReleased = size_t{1} << 20;
  size_t left_ = kMostLooked;
};

}  // namespace halfnote
