// Generated kernels on a GPU: compiled for the one at hand by NVRTC, loaded as libraries of the
// runtime.
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/libraries/chains.h"
#include "kernels/cuda/libraries/nvrtc.h"

namespace halfnote::cuda {

namespace {

using chain::Arguments;
using chain::Source;
using libraries::ChainKernel;

int architecture_of_this_gpu() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  return major * 10 + minor;
}

class LoadedChain final : public ChainKernel {
 public:
  explicit LoadedChain(Source source) : source_(std::move(source)) {}
  ~LoadedChain() override {
    if (library_ != nullptr) cudaLibraryUnload(library_);
  }
  void make_ready() override;
  void launch(Stream& stream, unsigned blocks, const Arguments& arguments) override {
    make_ready();
    Arguments copy = arguments;
    void* pointers[] = {&copy, nullptr};
    // The runtime takes such a handle where it takes the address of a kernel.
    launch_kernel(stream, reinterpret_cast<const void*>(kernel_), dim3(blocks),
                  dim3(chain::kThreads), 0, pointers);
  }

  bool ready() const { return kernel_ != nullptr; }
  const Source& source() const { return source_; }
  void load(const std::string& image) {
    check(cudaLibraryLoadData(&library_, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
          "cudaLibraryLoadData");
    check(cudaLibraryGetKernel(&kernel_, library_, source_.name.c_str()), "cudaLibraryGetKernel");
  }

 private:
  Source source_;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

/// Those that some plan holds, by their names.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<LoadedChain>> chains;
};

Registry& registry() {
  static Registry all;
  return all;
}

void LoadedChain::make_ready() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (ready()) return;
  std::vector<std::shared_ptr<LoadedChain>> waiting;
  std::vector<Source> sources;
  for (const auto& [name, held] : all.chains) {
    const std::shared_ptr<LoadedChain> chain = held.lock();
    if (chain == nullptr || chain->ready()) continue;
    waiting.push_back(chain);
    sources.push_back(chain->source());
  }
  static const libraries::Nvrtc nvrtc;
  const libraries::CompiledKernels kernels = libraries::compile_kernels(
      nvrtc, sources, architecture_of_this_gpu(), libraries::kernel_folder());
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i]->load(kernels.images[i]);
}

}  // namespace

std::shared_ptr<ChainKernel> chain_kernel(const chain::Chain& chain) {
  Source source = chain::source_of(chain);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<LoadedChain>& place = all.chains[source.name];
  std::shared_ptr<LoadedChain> held = place.lock();
  if (held == nullptr) place = held = std::make_shared<LoadedChain>(std::move(source));
  return held;
}

}  // namespace halfnote::cuda
