// A driver without a GPU, as far as cuDNN asks one while it plans: it takes whatever code cuDNN has
// compiled, and runs nothing. paper_test.cc puts it before the real one.
namespace {

enum Result : int { kSuccess = 0, kStubLibrary = 34 };
int anything = 0;  // what handles point to

}  // namespace

extern "C" {

Result cuInit(unsigned) { return kStubLibrary; }
Result cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "there is no GPU";
  return kSuccess;
}
Result cuLibraryLoadData(void** library, ...) {
  *library = &anything;
  return kSuccess;
}
Result cuLibraryGetKernel(void** kernel, ...) {
  *kernel = &anything;
  return kSuccess;
}
Result cuLibraryUnload(void*) { return kSuccess; }

// Looked up and not called.
#define HN_NOT_CALLED(name) \
  Result name() { return kStubLibrary; }
HN_NOT_CALLED(cuCtxGetCurrent)
HN_NOT_CALLED(cuCtxGetLimit)
HN_NOT_CALLED(cuCtxPopCurrent)
HN_NOT_CALLED(cuCtxPushCurrent)
HN_NOT_CALLED(cuDeviceGet)
HN_NOT_CALLED(cuDriverGetVersion)
HN_NOT_CALLED(cuGetErrorName)
HN_NOT_CALLED(cuKernelGetAttribute)
HN_NOT_CALLED(cuKernelSetAttribute)
HN_NOT_CALLED(cuLaunchCooperativeKernel)
HN_NOT_CALLED(cuLaunchKernel)
HN_NOT_CALLED(cuLaunchKernelEx)
HN_NOT_CALLED(cuLibraryLoadFromFile)
HN_NOT_CALLED(cuLinkAddData)
HN_NOT_CALLED(cuLinkComplete)
HN_NOT_CALLED(cuLinkCreate)
HN_NOT_CALLED(cuLinkDestroy)
HN_NOT_CALLED(cuOccupancyMaxPotentialClusterSize)
HN_NOT_CALLED(cuStreamGetCtx)

}  // extern "C"
