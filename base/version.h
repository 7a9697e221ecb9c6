// The version of halfnote, as CMake's project() gives it.
#pragma once

namespace halfnote {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace halfnote
