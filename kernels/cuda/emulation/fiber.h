// Fibers: stacks that take turns on one thread of the host. The emulated threads of a block that
// wait for each other each stand on one.
#pragma once

#include <cstddef>
#include <memory>

namespace halfnote::emulation {

/// A stack, and where its code stopped. The context of the host's own stack is a Fiber without a
/// stack.
class Fiber {
 public:
  /// The context that runs already.
  Fiber();
  /// A new stack; the first switch to it calls `entry(argument)`, which must never return.
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves `from`, which is running, and goes on with `to`; returns when something switches back.
  static void switch_over(Fiber& from, Fiber& to);

 private:
  struct Context;
  struct Stack {
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  /// The address sanitizer wants to know that a switch is done.
  static void arrived();

  std::unique_ptr<Context> context_;
  Stack stack_;   // owned
  Stack bounds_;  // of whatever stack this is, as the address sanitizer knows it
  void* stack_pointer_ = nullptr;
  void* fake_stack_ = nullptr;  // the address sanitizer's
};

}  // namespace halfnote::emulation
