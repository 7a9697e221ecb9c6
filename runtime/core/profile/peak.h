// What this machine reaches at best: the yardstick of a profile.
#pragma once

#include <string>

namespace halfnote {

struct MachinePeak {
  int threads = 1;
  double f32_flops = 0;   // a second, in a product of two 1536×1536 matrices
  double bf16_flops = 0;  // the same of bf16 matrices
  double bytes = 0;       // a second, read and written, of a = b + s·c over 96 MiB
};

/// Measures on the idle machine, which takes about half a second: the best of several tries each.
MachinePeak measure_peak(int threads);

/// `f32 512, bf16 1040 GFLOP/s; memory 39 GB/s (2 threads)`.
std::string to_string(const MachinePeak& peak);

}  // namespace halfnote
