// Why a node stays f32 for the values that it computes on, as `inspect` tells.
#pragma once

namespace halfnote {

inline constexpr const char* kPositions = "computes on positions, which rounding would merge";
inline constexpr const char* kMasks = "a mask that is an input, added on the way into a softmax";
inline constexpr const char* kSums = "adds data as they are fed, read in f32";
inline constexpr const char* kReadsSums = "reads a sum of data as they are fed";
inline constexpr const char* kMoves = "moves data as they are fed to an f32 node";
inline constexpr const char* kDistances =
    "computes of coordinates alone, which rounding would move";
inline constexpr const char* kPlaces = "leads to coordinates, which rounding would move";

}  // namespace halfnote
