// Storage is one aligned block behind a shared_ptr. Conversions go through double, which holds
// every element type but the 64-bit integers exactly; those take their own way, so that every
// conversion rounds once.
#include "base/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr size_t kAlignment = 64;

Error no_memory(size_t bytes) {
  return Error(ErrorCode::kMemory, "no memory for a tensor")
      .expected(std::to_string(bytes) + " bytes", "an allocation failure");
}

std::shared_ptr<std::byte> allocate(size_t bytes) {
  void* memory =
      ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) throw no_memory(bytes);
  return {static_cast<std::byte*>(memory),
          [](std::byte* p) { ::operator delete (p, std::align_val_t{kAlignment}); }};
}

/// A large block of zeros from the system, and whether anybody asked to write it: one that nobody
/// did is known to be zero without a look at it, which for the moments of a large model is a matter
/// of many seconds.
struct ZeroBlock {
  size_t bytes = 0;
  bool written = false;
  void operator()(std::byte* block) const { ::munmap(block, bytes); }
};

/// Zeros. Large blocks come from the system as pages that take no room until they are written; an
/// allocator might write them.
std::shared_ptr<std::byte> allocate_zeros(size_t bytes) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (bytes < kLarge) {
    auto memory = allocate(bytes);
    std::memset(memory.get(), 0, bytes);
    return memory;
  }
  void* block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw no_memory(bytes);
  return {static_cast<std::byte*>(block), ZeroBlock{bytes}};
}

/// One element. A bool is read as its byte, because the bytes of a file may be other than 0 and 1.
template <class T>
T load(const std::byte* bytes, size_t index) {
  if constexpr (std::is_same_v<T, bool>) {
    return bytes[index] != std::byte{0};
  } else {
    return reinterpret_cast<const T*>(bytes)[index];
  }
}

/// Calls `body(T{})` with the element type; refuses types without arithmetic.
template <class Body>
decltype(auto) visit_number(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF64:
      return body(double{});
    case DType::kF16:
      return body(Half{});
    case DType::kBF16:
      return body(BFloat16{});
    case DType::kI8:
      return body(int8_t{});
    case DType::kU8:
      return body(uint8_t{});
    case DType::kI16:
      return body(int16_t{});
    case DType::kU16:
      return body(uint16_t{});
    case DType::kI32:
      return body(int32_t{});
    case DType::kU32:
      return body(uint32_t{});
    case DType::kI64:
      return body(int64_t{});
    case DType::kU64:
      return body(uint64_t{});
    case DType::kBool:
      return body(bool{});
    default:
      break;
  }
  throw Error(ErrorCode::kUnsupported, "no arithmetic on this element type")
      .expected("f64, f32, f16, bf16, an integer type or bool", std::string(short_name(dtype)));
}

double as_double(Half value) { return to_f32(value); }
double as_double(BFloat16 value) { return to_f32(value); }
template <class T>
double as_double(T value) {
  return static_cast<double>(value);
}

/// Float to integer truncates; what does not fit becomes the nearest end, NaN becomes 0.
template <class T>
T from_double(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return to_f16(value);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != 0;
  } else if constexpr (std::is_integral_v<T>) {
    if (std::isnan(value)) return 0;
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (value <= low) return std::numeric_limits<T>::min();
    if (value >= high) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

/// An integer rounded once: what a double cannot hold is kept as a last odd bit, far below bf16's
/// eight. (f16 needs no such care: all it can hold is exact in a double.)
template <class T>
BFloat16 bf16_from_integer(T value) {
  if constexpr (sizeof(T) == 8) {
    constexpr T kLost = 0x7ff;  // the 11 bits of 64 that do not fit into 53
    if (std::abs(static_cast<double>(value)) >= 0x1p53 && (value & kLost) != 0) {
      value = static_cast<T>((value & ~kLost) | (kLost + 1));
    }
  }
  return to_bf16(static_cast<double>(value));
}

template <class From, class To>
To convert_one(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return as_double(value) != 0;
  } else if constexpr (std::is_integral_v<From> && !std::is_same_v<To, Half> &&
                       !std::is_same_v<To, BFloat16>) {
    return static_cast<To>(value);  // integers wrap, and f32 and f64 are rounded once
  } else if constexpr (std::is_integral_v<From> && std::is_same_v<To, BFloat16>) {
    return bf16_from_integer(value);
  } else {
    return from_double<To>(as_double(value));
  }
}

/// Whether float16.h has a (vectorised) conversion of whole arrays for this pair.
template <class From, class To>
constexpr bool has_array_conversion() {
  const bool from_16bit = std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>;
  const bool to_16bit = std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>;
  return (std::is_same_v<From, float> && to_16bit) || (from_16bit && std::is_same_v<To, float>);
}

}  // namespace

const Tensor::Content Tensor::kUndefined;

Tensor::Tensor(DType dtype, Shape shape) {
  Content content;
  content.dtype = dtype;
  content.shape = std::move(shape);
  content.size = element_count(content.shape);
  content.byte_size =
      static_cast<size_t>(checked_mul(content.size, static_cast<int64_t>(size_of(dtype))));
  content.bytes = allocate_zeros(content.byte_size);
  if (dtype == DType::kString) {
    content.strings = std::make_shared<std::vector<std::string>>(static_cast<size_t>(content.size));
  }
  *this = Tensor(std::move(content));
}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<const std::byte> bytes, size_t byte_size) {
  const int64_t size = element_count(shape);
  const int64_t want = checked_mul(size, static_cast<int64_t>(size_of(dtype)));
  if (static_cast<size_t>(want) != byte_size) {
    throw Error(ErrorCode::kModel, "tensor data has the wrong size")
        .expected(std::to_string(want) + " bytes for " + std::string(short_name(dtype)) +
                      halfnote::to_string(std::span<const int64_t>(shape)),
                  std::to_string(byte_size) + " bytes");
  }
  *this = Tensor(Content{dtype, std::move(shape), size, byte_size, std::move(bytes), nullptr});
}

Tensor Tensor::strings(Shape shape, std::vector<std::string> elements) {
  Content content;
  content.dtype = DType::kString;
  content.shape = std::move(shape);
  content.size = element_count(content.shape);
  if (static_cast<size_t>(content.size) != elements.size()) {
    throw Error(ErrorCode::kModel, "string tensor has the wrong number of elements")
        .expected(std::to_string(content.size), std::to_string(elements.size()));
  }
  content.strings = std::make_shared<const std::vector<std::string>>(std::move(elements));
  return Tensor(std::move(content));
}

Tensor Tensor::scalar_of(DType dtype, double value) { return full(dtype, {}, value); }

Tensor Tensor::full(DType dtype, Shape shape, double value) {
  Tensor tensor(dtype, std::move(shape));
  visit_number(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (value == 0 && !std::signbit(value)) return;  // as it is
    for (T& element : tensor.mutable_data<T>()) element = from_double<T>(value);
  });
  return tensor;
}

const std::vector<std::string>& Tensor::string_data() const {
  if (content().strings == nullptr) std::abort();  // a bug of the caller: dtype() is not kString
  return *content().strings;
}

void Tensor::check_access(DType dtype) const {
  if (dtype != this->dtype()) std::abort();  // a bug of the caller: dtype() says what is inside
}

std::byte* Tensor::mutable_bytes() {
  if (!is_sole()) std::abort();  // a bug of the caller: shared bytes are read only
  if (auto* zeros = std::get_deleter<ZeroBlock>(storage())) zeros->written = true;
  return const_cast<std::byte*>(bytes());
}

namespace {

/// Constants of a file may hold no element where a reader takes the first one.
void check_index(int64_t index, int64_t size) {
  if (index >= 0 && index < size) return;
  throw Error(ErrorCode::kModel, "a tensor has no element " + std::to_string(index))
      .expected("more than " + std::to_string(index) + " elements", std::to_string(size));
}

}  // namespace

double read_as_double(DType dtype, const std::byte* bytes) {
  return visit_number(dtype, [&](auto zero) { return as_double(load<decltype(zero)>(bytes, 0)); });
}

double Tensor::at_as_double(int64_t index) const {
  check_index(index, size());
  return read_as_double(dtype(), bytes() + static_cast<size_t>(index) * size_of(dtype()));
}

int64_t Tensor::at_as_int(int64_t index) const {
  check_index(index, size());
  return visit_number(dtype(), [&](auto zero) {
    using T = decltype(zero);
    return convert_one<T, int64_t>(load<T>(bytes(), static_cast<size_t>(index)));
  });
}

std::vector<int64_t> Tensor::to_ints() const {
  std::vector<int64_t> numbers(static_cast<size_t>(size()));
  for (int64_t i = 0; i < size(); ++i) numbers[static_cast<size_t>(i)] = at_as_int(i);
  return numbers;
}

Tensor Tensor::reshaped(Shape shape) const {
  if (element_count(shape) != size()) {
    throw Error(ErrorCode::kModel, "a reshape changes the number of elements")
        .expected(std::to_string(size()) + " elements",
                  halfnote::to_string(std::span<const int64_t>(shape)));
  }
  Content changed = content();
  changed.shape = std::move(shape);
  return Tensor(std::move(changed));
}

Tensor Tensor::cast_to(DType to_type) const {
  if (to_type == dtype()) return *this;
  Tensor result(to_type, shape());
  visit_number(dtype(), [&](auto from_zero) {
    visit_number(to_type, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      const auto to = result.mutable_data<To>();
      if constexpr (has_array_conversion<From, To>()) {
        convert(data<From>(), to);
      } else {
        for (size_t i = 0; i < to.size(); ++i)
          to[i] = convert_one<From, To>(load<From>(bytes(), i));
      }
    });
  });
  return result;
}

Tensor Tensor::deep_copy() const {
  if (dtype() == DType::kString || !defined()) return *this;
  Tensor copy(dtype(), shape());
  if (byte_size() > 0) std::memcpy(copy.mutable_bytes(), bytes(), byte_size());
  return copy;
}

bool all_zero(const Tensor& tensor) {
  if (tensor.dtype() == DType::kString || !tensor.defined()) return false;
  const size_t size = tensor.byte_size();
  if (size == 0) return true;
  const auto* zeros = std::get_deleter<ZeroBlock>(tensor.storage());
  if (zeros != nullptr && !zeros->written) return true;
  // Each byte equals the one before it.
  return tensor.bytes()[0] == std::byte{0} &&
         std::memcmp(tensor.bytes(), tensor.bytes() + 1, size - 1) == 0;
}

bool identical(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape() || a.byte_size() != b.byte_size())
    return false;
  if (a.dtype() == DType::kString) return a.string_data() == b.string_data();
  if (a.bytes() == b.bytes() || a.byte_size() == 0) return true;
  return std::memcmp(a.bytes(), b.bytes(), a.byte_size()) == 0;
}

}  // namespace halfnote
