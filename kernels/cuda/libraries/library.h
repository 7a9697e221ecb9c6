// Shared libraries of CUDA, opened when they are first needed: a program with CUDA in it starts on
// any machine, and what is missing is told in one message.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halfnote::libraries {

/// Where a library may lie: the driver's is the system's, the toolkit's may be anywhere.
enum class Search { kLoader, kToolkit };

/// A library as users know it and as the loader does.
struct LibraryName {
  std::string_view what;  // cuBLAS
  std::string_view file;  // libcublasLt.so.13
  std::string_view hint;  // what to do where it is missing
  Search search = Search::kToolkit;
};

/// Folders of CUDA's libraries, colons between them; looked at before any other place.
inline constexpr const char* kLibraryFolders = "HALFNOTE_CUDA_LIBRARIES";

/// What is tried, in this order: the folders that HALFNOTE_CUDA_LIBRARIES names, the loader's own
/// search (LD_LIBRARY_PATH, the system's), the folder where CUDA's toolkit installs itself; of the
/// driver only the second.
std::vector<std::string> library_candidates(const LibraryName& name);

/// The handle of dlopen. Throws Error(kDevice) if no place has a usable one: what was sought, where
/// it was sought, and what came of each.
void* open_library(const LibraryName& name);

/// A function of an open library. Throws Error(kDevice) if it is too old to have it.
void* find_function(void* library, const LibraryName& name, const char* function);

}  // namespace halfnote::libraries
