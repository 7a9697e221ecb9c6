// The threads of the parallel loops, ours and oneDNN's.
#pragma once

namespace halfnote::cpu {

/// Starts the threads of the calling thread's parallel loops; throws an Error (kMemory) where there
/// is no room for them. Without it OpenMP starts them when the first loop runs, and ends the
/// process where it cannot.
void start_threads(int threads);

}  // namespace halfnote::cpu
