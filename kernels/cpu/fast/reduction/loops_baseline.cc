// The inner loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/reduction/loops.h"

namespace halfnote::cpu::fast {

namespace baseline {
namespace {
#include "kernels/cpu/fast/reduction/pool_loops.inc"
//
#include "kernels/cpu/fast/reduction/resize_loops.inc"
//
#include "kernels/cpu/fast/reduction/reduce_loops.inc"
}  // namespace
}  // namespace baseline

const PoolLoops kBaselinePool = {
    "baseline",       baseline::split, baseline::merge,         baseline::maximum, baseline::sum,
    baseline::divide, baseline::keys,  baseline::first_maximum, baseline::spread,
};

const ResizeLoops kBaselineResize = {baseline::weigh, baseline::turn};

const ReduceLoops kBaselineReduce = {
    baseline::accumulate<baseline::Sum, baseline::Sum>,
    baseline::accumulate<baseline::SumOfSizes, baseline::Sum>,
    baseline::accumulate<baseline::SumOfSquares, baseline::Sum>,
    baseline::accumulate<baseline::Product, baseline::Product>,
    baseline::find_extreme<baseline::Largest>,
    baseline::find_extreme<baseline::Smallest>,
    baseline::best_places,
    baseline::take_better,
    baseline::running_sums,
};

namespace {

template <class Loops>
const Loops& best_of(const Loops& baseline, [[maybe_unused]] const Loops& avx2,
                     [[maybe_unused]] const Loops& avx512) {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return avx512;
  if (vector_isa() == VectorIsa::kAvx2) return avx2;
#endif
  return baseline;
}

#if !defined(__x86_64__)
constexpr const PoolLoops &kAvx2Pool = kBaselinePool, &kAvx512Pool = kBaselinePool;
constexpr const ResizeLoops &kAvx2Resize = kBaselineResize, &kAvx512Resize = kBaselineResize;
constexpr const ReduceLoops &kAvx2Reduce = kBaselineReduce, &kAvx512Reduce = kBaselineReduce;
#endif

}  // namespace

const PoolLoops& pool_loops() { return best_of(kBaselinePool, kAvx2Pool, kAvx512Pool); }

const ResizeLoops& resize_loops() { return best_of(kBaselineResize, kAvx2Resize, kAvx512Resize); }

const ReduceLoops& reduce_loops() { return best_of(kBaselineReduce, kAvx2Reduce, kAvx512Reduce); }

}  // namespace halfnote::cpu::fast
