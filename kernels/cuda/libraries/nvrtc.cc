// NVRTC through the functions of its C interface, which are declared here as nvrtc.h has them: a
// build without CUDA's headers compiles kernels as well, in tests.
#include "kernels/cuda/libraries/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/libraries/library.h"

namespace halfnote::libraries {

namespace {

constexpr LibraryName kNvrtc = {
    "NVRTC", "libnvrtc.so.13",
    "install CUDA 13's libraries (a toolkit, or the Python package nvidia-cuda-nvrtc), and name "
    "their folder in HALFNOTE_CUDA_LIBRARIES"};

using Handle = void*;  // nvrtcProgram
using Status = int;    // nvrtcResult; 0 is success

/// Destroys a program.
class Program {
 public:
  explicit Program(Status (*destroy)(Handle*)) : destroy_(destroy) {}
  ~Program() {
    if (handle != nullptr) destroy_(&handle);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Handle handle = nullptr;

 private:
  Status (*destroy_)(Handle*);
};

/// NVRTC opens a second library by its name alone, which the loader finds in its own folders only:
/// one that lies beside NVRTC is opened before. If there is none, NVRTC says so when it compiles.
void open_builtins(const void* function_of_nvrtc, const std::string& version) {
  Dl_info place{};
  if (dladdr(function_of_nvrtc, &place) == 0 || place.dli_fname == nullptr) return;
  const std::string path = place.dli_fname;
  const size_t folder = path.rfind('/');
  if (folder == std::string::npos) return;
  dlopen((path.substr(0, folder) + "/libnvrtc-builtins.so." + version).c_str(),
         RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

struct Nvrtc::Functions {
  Status (*nvrtcVersion)(int*, int*);
  Status (*nvrtcGetNumSupportedArchs)(int*);
  Status (*nvrtcGetSupportedArchs)(int*);
  const char* (*nvrtcGetErrorString)(Status);
  Status (*nvrtcCreateProgram)(Handle*, const char* text, const char* name, int headers,
                               const char* const* texts, const char* const* names);
  Status (*nvrtcDestroyProgram)(Handle*);
  Status (*nvrtcCompileProgram)(Handle, int count, const char* const* options);
  Status (*nvrtcGetProgramLogSize)(Handle, size_t*);
  Status (*nvrtcGetProgramLog)(Handle, char*);
  Status (*nvrtcGetCUBINSize)(Handle, size_t*);
  Status (*nvrtcGetCUBIN)(Handle, char*);
  Status (*nvrtcGetPTXSize)(Handle, size_t*);
  Status (*nvrtcGetPTX)(Handle, char*);

  static const Functions& loaded() {
    static const Functions functions = load();
    return functions;
  }
  void check(Status status, const char* call) const {
    if (status == 0) return;
    throw Error(ErrorCode::kInternal,
                std::string(call) + " failed: " + nvrtcGetErrorString(status));
  }
  /// One of the library's texts or codes of a program.
  std::string fetch(Handle program, Status (*size_of_it)(Handle, size_t*),
                    Status (*get)(Handle, char*), const char* call) const {
    size_t size = 0;
    check(size_of_it(program, &size), call);
    std::string bytes(size, '\0');
    if (size > 0) check(get(program, bytes.data()), call);
    return bytes;
  }

 private:
  static Functions load() {
    void* library = open_library(kNvrtc);
    Functions f{};
#define HN_LOAD_FUNCTION(name) \
  f.name = reinterpret_cast<decltype(f.name)>(find_function(library, kNvrtc, #name))
    HN_LOAD_FUNCTION(nvrtcVersion);
    HN_LOAD_FUNCTION(nvrtcGetNumSupportedArchs);
    HN_LOAD_FUNCTION(nvrtcGetSupportedArchs);
    HN_LOAD_FUNCTION(nvrtcGetErrorString);
    HN_LOAD_FUNCTION(nvrtcCreateProgram);
    HN_LOAD_FUNCTION(nvrtcDestroyProgram);
    HN_LOAD_FUNCTION(nvrtcCompileProgram);
    HN_LOAD_FUNCTION(nvrtcGetProgramLogSize);
    HN_LOAD_FUNCTION(nvrtcGetProgramLog);
    HN_LOAD_FUNCTION(nvrtcGetCUBINSize);
    HN_LOAD_FUNCTION(nvrtcGetCUBIN);
    HN_LOAD_FUNCTION(nvrtcGetPTXSize);
    HN_LOAD_FUNCTION(nvrtcGetPTX);
#undef HN_LOAD_FUNCTION
    return f;
  }
};

Nvrtc::Nvrtc() : functions_(Functions::loaded()) {
  int major = 0, minor = 0;
  functions_.check(functions_.nvrtcVersion(&major, &minor), "nvrtcVersion");
  version_ = std::to_string(major) + "." + std::to_string(minor);
  open_builtins(reinterpret_cast<const void*>(functions_.nvrtcVersion), version_);
}

std::string Nvrtc::target_for(int architecture) const {
  int count = 0;
  functions_.check(functions_.nvrtcGetNumSupportedArchs(&count), "nvrtcGetNumSupportedArchs");
  std::vector<int> known(static_cast<size_t>(count));
  functions_.check(functions_.nvrtcGetSupportedArchs(known.data()), "nvrtcGetSupportedArchs");
  if (std::ranges::find(known, architecture) != known.end())
    return "sm_" + std::to_string(architecture);
  int newest = 0;
  for (const int other : known) {
    if (other < architecture) newest = std::max(newest, other);
  }
  if (newest > 0) return "compute_" + std::to_string(newest);
  throw Error(ErrorCode::kDevice, "NVRTC compiles nothing for this GPU")
      .expected("one of the GPUs that NVRTC " + version_ + " knows",
                "sm_" + std::to_string(architecture));
}

std::string Nvrtc::compile(const chain::Source& source, const std::string& target) const {
  const Functions& f = functions_;
  std::vector<const char*> texts, names;
  for (int i = 0; i < chain::kHeaderCount; ++i) {
    texts.push_back(chain::kHeaders[i].text);
    names.push_back(chain::kHeaders[i].name);
  }
  Program program(f.nvrtcDestroyProgram);
  f.check(f.nvrtcCreateProgram(&program.handle, source.text.c_str(), source.name.c_str(),
                               chain::kHeaderCount, texts.data(), names.data()),
          "nvrtcCreateProgram");
  const std::string architecture = "--gpu-architecture=" + target;
  std::vector<const char*> options = {architecture.c_str()};
  options.insert(options.end(), std::begin(kNvrtcOptions), std::end(kNvrtcOptions));
  if (f.nvrtcCompileProgram(program.handle, static_cast<int>(options.size()), options.data()) !=
      0) {
    const std::string log = f.fetch(program.handle, f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog,
                                    "nvrtcGetProgramLog");
    throw Error(ErrorCode::kInternal, "NVRTC refuses " + source.name + ": " + log.substr(0, 2000));
  }
  return target.starts_with("sm_")
             ? f.fetch(program.handle, f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN, "nvrtcGetCUBIN")
             : f.fetch(program.handle, f.nvrtcGetPTXSize, f.nvrtcGetPTX, "nvrtcGetPTX");
}

}  // namespace halfnote::libraries
