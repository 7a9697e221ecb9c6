// The inner loops for any CPU of the architecture, and the choice among them.
#include "kernels/cpu/best_loops.h"
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
    baseline::add_run,
    baseline::find_extreme<baseline::Largest>,
    baseline::find_extreme<baseline::Smallest>,
    baseline::best_places,
    baseline::take_better,
    baseline::running_sums,
};

const PoolLoops& pool_loops() { return *best_loops<kAvx512Pool, kAvx2Pool>(&kBaselinePool); }

const ResizeLoops& resize_loops() {
  return *best_loops<kAvx512Resize, kAvx2Resize>(&kBaselineResize);
}

const ReduceLoops& reduce_loops() {
  return *best_loops<kAvx512Reduce, kAvx2Reduce>(&kBaselineReduce);
}

}  // namespace halfnote::cpu::fast
