// Flags of `halfnote compile` that would do nothing beside the others.
#pragma once

#include "passes/options.h"

namespace CLI {
class App;
}

namespace halfnote::cli {

/// Throws Error(kUsage) for a flag that stands on the command line although the settings in force
/// (`options`, policy file and all) leave it nothing to do: it names the flag and what it belongs
/// to. Keys of policy files are not judged: a file may hold settings for several uses.
void refuse_idle_flags(const CLI::App& verb, const CompileOptions& options);

}  // namespace halfnote::cli
