// Adding context to an error on its way up.
#pragma once

#include <string>

#include "base/error.h"

namespace halfnote::proto {

/// The same error with `context` in front of what it says: `initializer "W": raw_data has the wrong
/// size: …`.
inline Error in_context(const Error& error, const std::string& context) {
  return Error(error.code(), context + ": " + error.problem())
      .at(error.place())
      .expected(error.expectation(), error.value())
      .hint(error.hint_text());
}

}  // namespace halfnote::proto
