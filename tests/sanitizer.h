// Whether the libraries under test are compiled with the address sanitizer.
#pragma once

extern "C" void __asan_init() __attribute__((weak));

namespace halfnote {

/// True in build/asan, whose tests are compiled as everywhere: the preprocessor does not know.
inline bool under_address_sanitizer() { return __asan_init != nullptr; }

}  // namespace halfnote
