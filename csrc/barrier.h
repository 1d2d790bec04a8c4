// The barrier between kernels.  A step crosses some hundreds, each after tens of microseconds of work, so it spins at first; but only
// for about as long as a kernel lasts, then it gives its core away at each look: on a busy machine the thread that is waited
// for may need that very core.  (An OpenMP runtime's own barrier spins for milliseconds.)
#pragma once
#include <sched.h>

#include <atomic>

namespace octavo {

class Barrier {
 public:
  // Returns when `size` threads have called it; then it is ready for the next time.
  void wait(int size) {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int look = 0; phase_.load(std::memory_order_acquire) == phase; look++) {
      if (look < kSpins)
        pause();
      else
        sched_yield();
    }
  }

 private:
  static constexpr int kSpins = 2000;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace octavo
