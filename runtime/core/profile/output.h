// A profile for people (text), for programs (JSON) and for Perfetto (a trace).
#pragma once

#include <string>

#include "runtime/core/profile/table.h"

namespace halfnote {

/// Tables of every program: totals, kernels, shapes, and where only the reference took a step, why
/// the faster kernels refused. `rows`: the longest so many of each list; 0: all.
std::string profile_text(const Profiler& profiler, const MachinePeak& peak, size_t rows = 25);

/// The same as JSON, all rows, times in milliseconds of one run. Of another device than the CPU no
/// peak is measured: it is 0.
std::string profile_json(const Profiler& profiler, const MachinePeak& peak);

/// In Chrome's trace event format: one event a step, with shapes, bytes, FLOPs and kernel; opens in
/// ui.perfetto.dev and chrome://tracing. It has the first runs of each program that are counted.
std::string profile_trace(const Profiler& profiler);

}  // namespace halfnote
