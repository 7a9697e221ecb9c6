// Strided copies: most of the movement family is one or several of them.
#pragma once

#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

/// A copy over `runs`, whose two tensors are the source and the target.
struct CopyJob {
  Runs runs;
  size_t input = 0, output = 0;
  int64_t from = 0, to = 0;  // the first element of each
};

/// Plans a copy of `dims` elements with the given strides.
CopyJob plan_copy(const Shape& dims, const Shape& from_strides, const Shape& to_strides);

/// A kernel that does all jobs in turn; the elements have the type of output 0.
Prepared make_copies(const KernelCall& call, std::vector<CopyJob> jobs);

/// Makes a kernel that carries out the jobs; every device has its own.
using CopyMaker = Prepared (*)(const KernelCall& call, std::vector<CopyJob> jobs);
/// Plans a call of any op that is strided copies, and leaves the work to `make`.
Prepared prepare_copies(const KernelCall& call, CopyMaker make);
/// The rows of these ops.
std::vector<KernelRow> copy_rows(std::string_view name, Prepared (*prepare)(const KernelCall&));

/// The part of the input of a constant Pad that shows in the output, if the call is one; else the
/// reason why not.
std::string plan_constant_pad(const KernelCall& call, CopyJob& job);

/// Carries out one job on elements of type T.
template <class T>
void run_copy(const CopyJob& job, const T* from, T* to, int threads) {
  const int64_t step_from = job.runs.step(0), step_to = job.runs.step(1);
  parallel_blocks(job.runs.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    walk_runs<2>(job.runs, begin, end, [&](int64_t, const auto& offsets, int64_t length) {
      const T* source = from + job.from + offsets[0];
      T* target = to + job.to + offsets[1];
      if (step_from == 1 && step_to == 1) {
        std::copy_n(source, length, target);
        return;
      }
      for (int64_t i = 0; i < length; ++i) target[i * step_to] = source[i * step_from];
    });
  });
}

}  // namespace halfnote::cpu
