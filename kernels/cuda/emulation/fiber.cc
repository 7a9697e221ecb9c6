// The switch itself: on x86-64 a dozen instructions, elsewhere ucontext (which asks the kernel for
// the signal mask at every switch and is thirty times slower).
#include "kernels/cuda/emulation/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves what a call must preserve on the stack it leaves, and takes it from the one it enters.
extern "C" void halfnote_switch_stack(void** from, void* to);
asm(R"(
.text
.globl halfnote_switch_stack
.hidden halfnote_switch_stack
.type halfnote_switch_stack,@function
halfnote_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size halfnote_switch_stack,.-halfnote_switch_stack
)");
#endif

namespace halfnote::emulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = size_t{256} << 10;  // instrumented frames are larger
#else
constexpr size_t kStackBytes = size_t{64} << 10;
#endif

// Of the last switch.
thread_local Fiber* entered = nullptr;
#if defined(__SANITIZE_ADDRESS__)
thread_local Fiber* left = nullptr;
#endif

}  // namespace

struct Fiber::Context {
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;
#if !defined(__x86_64__)
  ucontext_t registers;
#endif
  static void start();
};

void Fiber::Context::start() {
  const Context& own = *entered->context_;
  arrived();
  own.entry(own.argument);
  __builtin_trap();  // an entry never returns
}

Fiber::Fiber() = default;

Fiber::Fiber(void (*entry)(void*), void* argument) : context_(std::make_unique<Context>()) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  stack_.bytes = kStackBytes + page;
  void* memory = mmap(nullptr, stack_.bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stack_.memory = static_cast<std::byte*>(memory);
  bounds_ = stack_;
  mprotect(memory, page, PROT_NONE);  // a stack that is too small ends in a fault
  context_->entry = entry;
  context_->argument = argument;
#if defined(__x86_64__)
  auto* top = reinterpret_cast<void**>(stack_.memory + stack_.bytes);
  *--top = nullptr;  // a return address for start(), which then has the alignment of a call
  *--top = reinterpret_cast<void*>(&Context::start);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_->registers);
  context_->registers.uc_stack.ss_sp = stack_.memory + page;
  context_->registers.uc_stack.ss_size = kStackBytes;
  context_->registers.uc_link = nullptr;
  makecontext(&context_->registers, &Context::start, 0);
#endif
}

Fiber::~Fiber() {
  if (stack_.memory == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_.memory, stack_.bytes);
#endif
  munmap(stack_.memory, stack_.bytes);
}

void Fiber::arrived() {
#if defined(__SANITIZE_ADDRESS__)
  // Tells where the stack lies that was left: the host's own is not known before.
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(entered->fake_stack_, &bottom, &bytes);
  left->bounds_ = {const_cast<std::byte*>(static_cast<const std::byte*>(bottom)), bytes};
#endif
}

void Fiber::switch_over(Fiber& from, Fiber& to) {
  entered = &to;
#if defined(__SANITIZE_ADDRESS__)
  left = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack_, to.bounds_.memory, to.bounds_.bytes);
#endif
#if defined(__x86_64__)
  halfnote_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#else
  if (from.context_ == nullptr) from.context_ = std::make_unique<Context>();
  swapcontext(&from.context_->registers, &to.context_->registers);
#endif
  arrived();
}

}  // namespace halfnote::emulation
