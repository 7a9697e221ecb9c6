// A driver for CUDA 12.4, as far as the version: tests/cli/device_test.cc puts it before the real
// one.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12040;
  return 0;
}
