#include "base/parallel.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace headrace {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int64_t kBatch = int64_t{1} << 31;  // items of one ticket

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spins until `ready()` or the bound; says whether it became ready. The clock is read every 32
// turns.
template <typename Ready>
bool spin_until(Ready ready) {
  std::chrono::steady_clock::time_point end{};
  while (true) {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      relax();
    }
    const auto now = std::chrono::steady_clock::now();
    if (end == std::chrono::steady_clock::time_point{}) {
      end = now + kSpin;
    } else if (now >= end) {
      return ready();
    }
  }
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads < 1 || num_threads > 1024) {
    throw std::invalid_argument("a thread pool has 1 to 1024 threads");
  }
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    is_stopping_.store(true);
    signal_.fetch_add(1);
    signal_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  is_stopping_.store(true);
  signal_.fetch_add(1);
  signal_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_items, void* context, Function function) {
  const std::lock_guard<std::mutex> lock(turn_);
  function_ = function;
  context_ = context;
  for (int64_t first = 0; first < num_items; first += kBatch) {
    run_batch(static_cast<uint32_t>(std::min(kBatch, num_items - first)), first);
  }
}

void ThreadPool::run_batch(uint32_t num_items, int64_t first_item) {
  first_item_ = first_item;
  num_items_ = num_items;
  unfinished_.store(num_items, std::memory_order_relaxed);
  const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(job << 32 | num_items, std::memory_order_release);
  signal_.fetch_add(1);
  signal_.notify_all();
  claim_all(0);
  if (spin_until([&] { return unfinished_.load(std::memory_order_acquire) == 0; })) return;
  for (uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) {
    unfinished_.wait(left, std::memory_order_acquire);
  }
}

// Takes items of the current job until none is left. A thread that comes late finds zero left, or
// items of the next job; both are right, because the job's number and its count change in one
// store.
void ThreadPool::claim_all(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket & 0xffffffffu) != 0) {
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    const uint32_t index = num_items_ - static_cast<uint32_t>(ticket & 0xffffffffu);
    function_(context_, first_item_ + index, thread);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    spin_until([&] { return signal_.load(std::memory_order_acquire) != seen; });
    signal_.wait(seen, std::memory_order_acquire);
    // The signal first: a stop that comes after the look at the flag changes it once more.
    seen = signal_.load(std::memory_order_acquire);
    if (is_stopping_.load()) return;
    claim_all(thread);
  }
}

}  // namespace headrace
