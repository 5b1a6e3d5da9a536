// A pool of threads that share out the items of one job at a time.
//
// Items are claimed through one atomic word, so a thread that the system has put aside holds up
// nothing but the item it has. Waiting threads spin for at most 50 microseconds and then sleep; an
// idle pool uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

class ThreadPool {
 public:
  // `num_threads` counts the caller: a pool of 1 starts none. Throws std::system_error when the
  // system refuses a thread, std::invalid_argument outside 1..1024.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(item, thread) once for each item in [0, num_items), items started in ascending order;
  // thread is in [0, num_threads). Returns when all are done. fn must not throw nor call
  // parallel_for of the same pool. Callers from several threads take turns.
  template <typename Fn>
  void parallel_for(int64_t num_items, Fn&& fn) {
    using Callable = std::remove_reference_t<Fn>;
    if (num_items <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < num_items; ++i) fn(i, 0);
      return;
    }
    run(num_items, const_cast<std::remove_const_t<Callable>*>(&fn),
        [](void* context, int64_t item, int thread) {
          (*static_cast<Callable*>(context))(item, thread);
        });
  }

 private:
  using Function = void (*)(void* context, int64_t item, int thread);

  void run(int64_t num_items, void* context, Function function);
  void run_batch(uint32_t num_items, int64_t first_item);
  void work(int thread);
  void claim_all(int thread);

  // All that a waiting thread looks at when a job comes, on one line of memory: what other cores
  // wrote is fetched once.
  // High half: number of the job; low half: items not yet claimed.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  // Changes with every job and at the end; what sleeping workers wait for.
  std::atomic<uint32_t> signal_{0};
  // The job. Written between jobs only; read by threads that hold an unfinished item of it.
  uint32_t num_items_ = 0;
  int64_t first_item_ = 0;
  Function function_ = nullptr;
  void* context_ = nullptr;

  alignas(64) std::atomic<uint32_t> unfinished_{0};
  alignas(64) std::mutex turn_;  // held by whoever runs a job
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace headrace
