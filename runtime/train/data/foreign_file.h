// Files of other frameworks that halfnote never opens: unpickling runs code, the rest need their
// own libraries.
#pragma once

#include <string_view>

namespace halfnote {

/// What the user wanted of the file; decides which conversion the hint shows.
enum class FileUse { kData, kWeights };

/// Throws Error(kUnsupported) with a one-line conversion hint if the name ends like a PyTorch,
/// Keras, pickle or Parquet file
/// (.pt, .pth, .h5, .keras, …); does nothing for other names.
void refuse_foreign_file(std::string_view path, FileUse use);

}  // namespace halfnote
