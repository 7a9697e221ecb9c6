// The folder of compiled kernels, and the compilation of many at once.
//
// A file is a line and the code behind it. The line says whose the code is (a hash of everything
// that made it: texts, headers, options, target, version of the compiler) and what it is (a hash of
// its bytes), so that a file of anything else is never loaded.
#include <atomic>
#include <cstdlib>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/system/hash.h"
#include "kernels/cuda/libraries/nvrtc.h"

namespace halfnote::libraries {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFile = size_t{64} << 20;

std::string key_of(const Nvrtc& nvrtc, const chain::Source& source, const std::string& target) {
  std::string all = nvrtc.version() + "\n" + target + "\n";
  for (const char* option : kNvrtcOptions) all += std::string(option) + "\n";
  all += source.text;
  for (int i = 0; i < chain::kHeaderCount; ++i) all += chain::kHeaders[i].text;
  return content_hash(all);
}

std::string first_line(const std::string& key, const std::string& image) {
  return "halfnote kernel 1 " + key + " " + content_hash(image) + "\n";
}

std::optional<std::string> find_image(const fs::path& folder, const std::string& key) {
  if (folder.empty()) return std::nullopt;
  try {
    const std::string file = read_text(folder / key, kMaxFile);
    const size_t end = file.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string image = file.substr(end + 1);
    if (file.compare(0, end + 1, first_line(key, image)) != 0) return std::nullopt;
    return image;
  } catch (const Error&) {
    return std::nullopt;  // there is none, or none that can be read
  }
}

void keep_image(const fs::path& folder, const std::string& key, const std::string& image) {
  if (folder.empty()) return;
  std::error_code failed;
  fs::create_directories(folder, failed);
  try {
    write_file_atomic(folder / key, first_line(key, image) + image);
  } catch (const Error&) {  // a full or read-only disk: this run has its kernel all the same
  }
}

fs::path absolute_in(const char* variable) {
  const char* value = std::getenv(variable);
  const fs::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : fs::path();
}

/// Calls work(0) to work(count - 1), on as many threads as there are cores; then throws what the
/// first of them threw.
template <class Work>
void on_all_cores(size_t count, const Work& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> errors(count);
  const auto take_turns = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t cores = std::max(1u, std::thread::hardware_concurrency());
    for (size_t i = 1; i < std::min(count, cores); ++i) threads.emplace_back(take_turns);
    take_turns();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

fs::path kernel_folder() {
  fs::path base = absolute_in("XDG_CACHE_HOME");
  if (base.empty()) {
    base = absolute_in("HOME");
    if (base.empty()) return {};
    base /= ".cache";
  }
  return base / "halfnote" / "kernels";
}

CompiledKernels compile_kernels(const Nvrtc& nvrtc, std::span<const chain::Source> sources,
                                int architecture, const fs::path& folder) {
  const std::string target = nvrtc.target_for(architecture);
  CompiledKernels result;
  result.images.resize(sources.size());
  std::atomic<size_t> compiled = 0;
  on_all_cores(sources.size(), [&](size_t i) {
    const std::string key = key_of(nvrtc, sources[i], target);
    if (std::optional<std::string> found = find_image(folder, key)) {
      result.images[i] = std::move(*found);
      return;
    }
    result.images[i] = nvrtc.compile(sources[i], target);
    keep_image(folder, key, result.images[i]);
    ++compiled;
  });
  result.compiled = compiled;
  return result;
}

}  // namespace halfnote::libraries
