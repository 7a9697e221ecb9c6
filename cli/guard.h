// The end of the program: what a verb threw becomes a message and an exit code
// (docs/exit-codes.md).
#pragma once

#include <functional>

#include "base/error.h"

namespace halfnote::cli {

/// Prints the error on stderr, as text or as one line of JSON; gives its exit code.
int report(const Error& error, bool as_json);

/// Is standard output a pipe that nobody reads any more?
bool reader_left();

/// Runs the action. An Error ends with its code; no memory with 7; any other exception is a bug of
/// ours, 70. Output that cannot be written is an error (8) of a command that has succeeded,
/// unless it goes to a pipe whose reader has seen enough.
int guarded(const std::function<int()>& action, bool as_json);

}  // namespace halfnote::cli
