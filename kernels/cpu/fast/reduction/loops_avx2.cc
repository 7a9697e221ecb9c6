// The inner loops for AVX2. Everything that is included from elsewhere stands before the change
// of target.
#include "kernels/cpu/fast/reduction/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx2")

namespace halfnote::cpu::fast {

namespace avx2 {
namespace {
#include "kernels/cpu/fast/reduction/pool_loops.inc"
//
#include "kernels/cpu/fast/reduction/resize_loops.inc"
//
#include "kernels/cpu/fast/reduction/reduce_loops.inc"
}  // namespace
}  // namespace avx2

const PoolLoops kAvx2Pool = {
    "avx2",       avx2::split, avx2::merge,         avx2::maximum, avx2::sum,
    avx2::divide, avx2::keys,  avx2::first_maximum, avx2::spread,
};

const ResizeLoops kAvx2Resize = {avx2::weigh, avx2::turn};

const ReduceLoops kAvx2Reduce = {
    avx2::accumulate<avx2::Sum, avx2::Sum>,
    avx2::accumulate<avx2::SumOfSizes, avx2::Sum>,
    avx2::accumulate<avx2::SumOfSquares, avx2::Sum>,
    avx2::accumulate<avx2::Product, avx2::Product>,
    avx2::add_run,
    avx2::find_extreme<avx2::Largest>,
    avx2::find_extreme<avx2::Smallest>,
    avx2::best_places,
    avx2::take_better,
    avx2::running_sums,
};

}  // namespace halfnote::cpu::fast

#pragma GCC pop_options

#endif  // __x86_64__
