// Numbers of a program's steps, by which a device says where it found a fault. Behind the number of
// a step come those of the nodes in its bodies, so that one number is enough for an inner node.
//
//   0 MatMul    1 If    2 its Gather    3 its Add    4 Softmax
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "runtime/core/plan.h"

namespace halfnote {

class StepNumbers {
 public:
  explicit StepNumbers(const Program& program);

  int32_t of(size_t step) const { return first_[step]; }
  /// Of all steps and the nodes in them.
  int32_t count() const { return first_.back(); }
  /// The node that has this number, in the program that was given; nowhere for -1.
  Place place(const Program& program, int32_t number) const;

 private:
  std::vector<int32_t> first_;  // of each step, and behind the last one
};

}  // namespace halfnote
