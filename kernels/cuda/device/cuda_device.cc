// A GPU through the CUDA runtime. The runtime is linked statically and opens the driver when it is
// first called, so a program with this in it starts anywhere.
#include "kernels/cuda/device/cuda_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/bodies.h"
#include "kernels/cuda/device/memory_error.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/publish.h"
#include "kernels/cuda/table.h"

namespace halfnote::cuda {

namespace {

constexpr libraries::LibraryName kDriver = {
    "NVIDIA driver", "libcuda.so.1",
    "install a driver for CUDA 13 (580 or newer), or run on --device cpu",
    libraries::Search::kLoader};

/// What a user can do about an error of the runtime.
struct Advice {
  cudaError_t error;
  ErrorCode code;
  const char* what;
  const char* hint;
};

constexpr Advice kAdvice[] = {
    {cudaErrorMemoryAllocation, ErrorCode::kMemory, "out of memory on the GPU",
     "use a smaller batch, or a GPU with more memory"},
    {cudaErrorInsufficientDriver, ErrorCode::kDevice, "the NVIDIA driver is too old",
     kDriver.hint.data()},
    {cudaErrorNoDevice, ErrorCode::kDevice, "no NVIDIA GPU in this machine",
     "run on --device cpu; if there is one, look at nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {cudaErrorInvalidDevice, ErrorCode::kDevice, "no GPU of this number",
     "nvidia-smi lists them; the first one is cuda:0"},
    {cudaErrorNoKernelImageForDevice, ErrorCode::kDevice, "this build has no code for the GPU",
     "sm_80 (A100) and newer are supported"},
    {cudaErrorDevicesUnavailable, ErrorCode::kDevice, "the GPU is in use by another process",
     "wait, or take another one: --device cuda:N"},
    {cudaErrorSystemDriverMismatch, ErrorCode::kDevice, "driver and kernel module do not match",
     "restart the machine after a driver update"},
    {cudaErrorCallRequiresNewerDriver, ErrorCode::kDevice, "the NVIDIA driver is too old",
     kDriver.hint.data()},
    {cudaErrorCompatNotSupportedOnDevice, ErrorCode::kDevice,
     "the driver's compatibility package does not support the GPU", kDriver.hint.data()},
    {cudaErrorStubLibrary, ErrorCode::kDevice, "libcuda.so.1 is the toolkit's stub, no driver",
     "take the toolkit's stubs out of LD_LIBRARY_PATH"},
    {cudaErrorSystemNotReady, ErrorCode::kDevice, "the GPU is not ready",
     "start nvidia-fabricmanager, which GPUs behind an NVSwitch need"},
    {cudaErrorInitializationError, ErrorCode::kDevice, "the driver could not be initialised",
     "look at nvidia-smi and the kernel's log"},
    {cudaErrorUnknown, ErrorCode::kDevice, "the driver failed without a reason",
     "look at nvidia-smi and the kernel's log"},
    {cudaErrorECCUncorrectable, ErrorCode::kDevice, "the GPU's memory has failed",
     "resume from the last checkpoint on another GPU"},
};

}  // namespace

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // or it would be reported again
  const std::string name = std::string(call) + ": " + cudaGetErrorName(result);
  for (const Advice& advice : kAdvice) {
    if (advice.error != result) continue;
    throw Error(advice.code, std::string(advice.what) + " (" + name + ")").hint(advice.hint);
  }
  throw Error(ErrorCode::kInternal,
              "CUDA: " + std::string(cudaGetErrorString(result)) + " (" + name + ")");
}

namespace {

/// The same for calls that take pinned memory.
void check_pinned(cudaError_t result, size_t bytes, const char* call) {
  if (result != cudaErrorMemoryAllocation) return check(result, call);
  cudaGetLastError();  // or it would be reported again
  throw out_of_pinned_memory(bytes);
}

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(EventKind kind) {
    const unsigned flags =
        kind == EventKind::kTimed ? cudaEventDefault : unsigned{cudaEventDisableTiming};
    check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
  }
  ~CudaEvent() override { cudaEventDestroy(event); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  double seconds_since(const DeviceEvent& earlier) const override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event, event),
          "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }
  cudaEvent_t event = nullptr;
};

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraph_t graph) {
    const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    check(result, "cudaGraphInstantiate");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t executable = nullptr;
};

class CudaStream final : public Stream {
 public:
  CudaStream(DeviceCounters& counters, int64_t shared_bytes)
      : counters_(counters), shared_bytes_(shared_bytes) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    void* fault = nullptr;
    check_pinned(cudaHostAlloc(&fault, sizeof(DeviceFault), cudaHostAllocMapped),
                 sizeof(DeviceFault), "cudaHostAlloc");
    fault_ = new (fault) DeviceFault;
  }
  ~CudaStream() override {
    cudaFreeHost(fault_);
    cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void copy(void* to, const void* from, size_t bytes) override {
    ++counters_.copies;
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  void fill(void* to, uint8_t value, size_t bytes) override {
    if (bytes > 0) check(cudaMemsetAsync(to, value, bytes, stream_), "cudaMemsetAsync");
  }
  void copy_blocks(const BlockCopy& copy) override { cuda::copy_blocks(*this, copy); }
  void copy_if(const DeviceCondition& condition, void* to, const void* from,
               size_t bytes) override {
    cuda::copy_if(*this, condition, to, from, bytes);
  }
  void note_fault_if(const DeviceCondition& condition, const DeviceFault* noted) override {
    cuda::note_fault_if(*this, condition, noted);
  }
  void record(DeviceEvent& event) override {
    check(cudaEventRecord(static_cast<CudaEvent&>(event).event, stream_), "cudaEventRecord");
  }
  void wait(const DeviceEvent& event) override {
    check(cudaStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).event, 0),
          "cudaStreamWaitEvent");
  }
  void publish(std::span<const SmallValue> values, uint64_t* mailbox) override {
    cuda::publish(*this, values, mailbox);
  }
  void poll() override {
    const cudaError_t result = cudaStreamQuery(stream_);
    if (result != cudaErrorNotReady) return check(result, "cudaStreamQuery");
    cudaGetLastError();  // or it would be reported again
  }
  void synchronise() override {
    ++counters_.synchronisations;
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    throw_fault(*fault_);
  }
  /// Relaxed: a step is captured before it has ever run, so the first calls of cuBLASLt and cuDNN
  /// fall into the capture, and what they set up then (memory, modules that are loaded lazily)
  /// would end it in the other modes.
  void begin_capture() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  std::unique_ptr<DeviceGraph> end_capture() override {
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    return std::make_unique<CudaGraph>(graph);
  }
  void launch(const DeviceGraph& graph) override {
    ++counters_.graph_launches;
    check(cudaGraphLaunch(static_cast<const CudaGraph&>(graph).executable, stream_),
          "cudaGraphLaunch");
  }
  cudaStream_t native() const { return stream_; }
  void count_launch() { ++counters_.launches; }
  int64_t shared_bytes() const { return shared_bytes_; }

 protected:
  /// The host's address is the device's as well.
  DeviceFault* own_fault() override { return fault_; }

 private:
  DeviceCounters& counters_;
  int64_t shared_bytes_;
  cudaStream_t stream_ = nullptr;
  DeviceFault* fault_ = nullptr;
};

/// The runtime says of a missing, a damaged and an old driver that it is insufficient: here each
/// has its own message.
void check_driver() {
  constexpr int kNeeded = 13000;
  void* driver = libraries::open_library(kDriver);
  using Version = int (*)(int*);
  int version = 0;
  const auto get =
      reinterpret_cast<Version>(libraries::find_function(driver, kDriver, "cuDriverGetVersion"));
  if (get(&version) != 0 || version >= kNeeded) return;  // the runtime's own words for the first
  throw Error(ErrorCode::kDevice, "the NVIDIA driver is too old")
      .expected("one for CUDA 13", "one for CUDA " + std::to_string(version / 1000) + "." +
                                       std::to_string(version % 1000 / 10))
      .hint(std::string(kDriver.hint));
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : name_("cuda:" + std::to_string(ordinal)) {
    check_driver();
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    check(ordinal < count ? cudaSuccess : cudaErrorInvalidDevice, name_.c_str());
    check(cudaSetDevice(ordinal), "cudaSetDevice");
    check(cudaGetDeviceProperties(&properties_, ordinal), "cudaGetDeviceProperties");
    if (properties_.major < 8) {
      check(cudaErrorNoKernelImageForDevice, properties_.name);
    }
  }

  std::string_view name() const override { return name_; }
  std::string description() const override {
    return name_ + ": " + properties_.name + ", sm_" + std::to_string(properties_.major) +
           std::to_string(properties_.minor) + ", " +
           std::to_string(properties_.totalGlobalMem >> 20) + " MiB";
  }
  std::string hardware() const override {
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    return std::string(properties_.name) + ", sm_" + std::to_string(properties_.major) +
           std::to_string(properties_.minor) + ", " +
           std::to_string(properties_.multiProcessorCount) + " processors, driver for CUDA " +
           std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10);
  }
  std::string libraries() const override { return blas_version() + ", " + dnn_version(); }
  const KernelTable& kernels() const override { return kernel_table(); }
  const RegionLayout& regions() const override { return channels_last_regions(); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CudaStream>(counters_,
                                        static_cast<int64_t>(properties_.sharedMemPerBlockOptin));
  }
  std::unique_ptr<DeviceEvent> make_event(EventKind kind) override {
    return std::make_unique<CudaEvent>(kind);
  }
  const DeviceCounters& counters() const override { return counters_; }

 protected:
  std::byte* acquire(size_t bytes, MemoryKind kind) override {
    ++counters_.allocations;
    void* memory = nullptr;
    const size_t wanted = std::max<size_t>(bytes, 1);
    if (kind == MemoryKind::kPinned) {
      check_pinned(cudaMallocHost(&memory, wanted), bytes, "cudaMallocHost");
      return static_cast<std::byte*>(memory);
    }
    const cudaError_t result = cudaMalloc(&memory, wanted);
    if (result == cudaErrorMemoryAllocation) throw_out_of_memory(bytes);
    check(result, "cudaMalloc");
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory, MemoryKind kind) override {
    if (kind == MemoryKind::kPinned) {
      cudaFreeHost(memory);
    } else {
      cudaFree(memory);
    }
  }

 private:
  [[noreturn]] void throw_out_of_memory(size_t bytes) const {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ErrorCode::kMemory, "out of memory on " + name_)
        .expected(std::to_string(bytes) + " bytes",
                  std::to_string(free) + " of " + std::to_string(total) + " bytes free")
        .hint("use a smaller batch, or a GPU with more memory");
  }

  std::string name_;
  cudaDeviceProp properties_{};
  DeviceCounters counters_;
};

/// More has to be asked for: of the 48 KB that every kernel gets, its own static memory is a part.
constexpr size_t kPlainShared = 32 * 1024;

/// Lets a kernel take so much dynamic shared memory. Only ever more: a captured launch keeps what
/// it was captured with.
void allow_shared(const void* kernel, size_t bytes) {
  static std::mutex mutex;
  static auto& allowed = *new std::map<std::pair<int, const void*>, size_t>;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  size_t& most = allowed[{device, kernel}];
  if (bytes <= most) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
  most = bytes;
}

}  // namespace

cudaStream_t native(Stream& stream) { return static_cast<CudaStream&>(stream).native(); }

void launch_kernel(Stream& stream, const void* kernel, dim3 grid, dim3 block, size_t shared,
                   void** arguments) {
  auto& own = static_cast<CudaStream&>(stream);
  own.count_launch();
  if (shared > kPlainShared) allow_shared(kernel, shared);
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = own.native();
  check(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

int64_t most_shared(Stream& stream) { return static_cast<CudaStream&>(stream).shared_bytes(); }

std::unique_ptr<Device> open_cuda_device(int ordinal) {
  // cuDNN's recurrent layers multiply by cuBLAS in several streams, which repeats its bits only
  // with a workspace for each; what the user set stays. Here, since other threads may read the
  // environment once the device is at work.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  return std::make_unique<CudaDevice>(ordinal);
}

}  // namespace halfnote::cuda
