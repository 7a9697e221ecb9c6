// The inner loops for AVX-512. Everything that is included from elsewhere stands before the change
// of target.
#include "kernels/cpu/fast/reduction/loops.h"

#if defined(__x86_64__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

namespace halfnote::cpu::fast {

namespace avx512 {
namespace {
#include "kernels/cpu/fast/reduction/pool_loops.inc"
//
#include "kernels/cpu/fast/reduction/resize_loops.inc"
//
#include "kernels/cpu/fast/reduction/reduce_loops.inc"
}  // namespace
}  // namespace avx512

const PoolLoops kAvx512Pool = {
    "avx512",       avx512::split, avx512::merge,         avx512::maximum, avx512::sum,
    avx512::divide, avx512::keys,  avx512::first_maximum, avx512::spread,
};

const ResizeLoops kAvx512Resize = {avx512::weigh, avx512::turn};

const ReduceLoops kAvx512Reduce = {
    avx512::accumulate<avx512::Sum, avx512::Sum>,
    avx512::accumulate<avx512::SumOfSizes, avx512::Sum>,
    avx512::accumulate<avx512::SumOfSquares, avx512::Sum>,
    avx512::accumulate<avx512::Product, avx512::Product>,
    avx512::add_run,
    avx512::find_extreme<avx512::Largest>,
    avx512::find_extreme<avx512::Smallest>,
    avx512::best_places,
    avx512::take_better,
    avx512::running_sums,
};

}  // namespace halfnote::cpu::fast

#pragma GCC pop_options

#endif  // __x86_64__
