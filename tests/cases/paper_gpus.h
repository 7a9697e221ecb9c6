// GPUs that are not there, as cuDNN is told of them, and the driver that stands in for theirs.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halfnote::test {

struct PaperGpu {
  const char* name;
  std::string json;  // as cuDNN writes the properties of a device
};

inline std::string properties(const char* name, int version, int processors, int64_t shared,
                              int64_t l2, int64_t memory) {
  const auto field = [](const char* key, int64_t value) {
    return ",\"" + std::string(key) + "\":" + std::to_string(value);
  };
  return "{\"deviceName\":\"" + std::string(name) + "\"" + field("deviceVer", version) +
         field("multiProcessorCount", processors) + field("maxSharedMemoryPerBlockOptin", shared) +
         field("l2CacheSize", l2) + field("totalGlobalMem", memory) +
         ",\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64]" +
         field("cudaDeviceId", 0) + field("driverVer", 13000) + field("regsPerBlock", 65536) +
         field("smClockRateKHz", 1980000) + field("memClockRateKHz", 2619000) +
         field("warpSize", 32) + field("maxSharedMemoryPerBlock", 49152) +
         field("reservedSharedMemoryPerBlock", 1024) + field("maxRegistersPerSM", 65536) +
         field("pciDeviceId", 0) + field("maxCtasPerSM", 32) + field("maxThreadsPerBlock", 1024) +
         field("maxThreadsPerSM", 2048) + field("isTccDriver", 0) + field("supportCoopLaunch", 1) +
         "}";
}

inline std::vector<PaperGpu> gpus() {
  return {{"H200", properties("NVIDIA H200", 900, 132, 232448, 62914560, 150754820096)},
          {"A100", properties("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 84987740160)}};
}

class Paper : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Whoever asks for libcuda.so.1 from now on gets this one.
    ASSERT_NE(dlopen(HALFNOTE_PAPER_DRIVER, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
};

}  // namespace halfnote::test
