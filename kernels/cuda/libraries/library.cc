// One search for all of CUDA's libraries. What the loader says about a file is kept: a damaged or
// incomplete library is another problem than a missing one.
#include "kernels/cuda/libraries/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/error.h"

namespace halfnote::libraries {

namespace {

constexpr std::string_view kToolkitFolder = "/usr/local/cuda/lib64/";

/// The loader's words without the name that we say ourselves.
std::string reason(const std::string& candidate) {
  const char* text = dlerror();
  std::string why = text != nullptr ? text : "unknown error";
  if (why.starts_with(candidate + ": ")) why.erase(0, candidate.size() + 2);
  return candidate + ": " + why;
}

}  // namespace

std::vector<std::string> library_candidates(const LibraryName& name) {
  const std::string file(name.file);
  if (name.search == Search::kLoader) return {file};
  std::vector<std::string> candidates;
  const char* named = std::getenv(kLibraryFolders);
  std::string_view rest = named != nullptr ? named : "";
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string_view folder = rest.substr(0, colon);
    if (!folder.empty()) candidates.push_back(std::string(folder) + "/" + file);
    rest = colon == std::string_view::npos ? std::string_view() : rest.substr(colon + 1);
  }
  candidates.push_back(file);
  candidates.push_back(std::string(kToolkitFolder) + file);
  return candidates;
}

void* open_library(const LibraryName& name) {
  std::string tried;
  for (const std::string& candidate : library_candidates(name)) {
    void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    tried += (tried.empty() ? "" : "; ") + reason(candidate);
  }
  throw Error(ErrorCode::kDevice, "no " + std::string(name.what))
      .expected(std::string(name.file), tried)
      .hint(std::string(name.hint));
}

void* find_function(void* library, const LibraryName& name, const char* function) {
  void* found = dlsym(library, function);
  if (found != nullptr) return found;
  throw Error(ErrorCode::kDevice, std::string(name.what) + " is too old")
      .expected(function, std::string(name.file) + " without it")
      .hint(std::string(name.hint));
}

}  // namespace halfnote::libraries
