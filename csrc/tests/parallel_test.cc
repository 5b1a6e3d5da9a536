// The thread pool: every item once, whoever calls; and an end that no worker sleeps through.
#include "base/parallel.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

void require(bool condition, const char* sentence) {
  if (condition) return;
  std::fprintf(stderr, "parallel_test: %s\n", sentence);
  std::exit(1);
}

void run_items(headrace::ThreadPool& pool, int64_t num_items) {
  std::vector<std::atomic<int>> counts(static_cast<size_t>(num_items));
  pool.parallel_for(num_items, [&](int64_t item, int thread) {
    require(thread >= 0 && thread < pool.num_threads(), "a thread number is out of range");
    counts[static_cast<size_t>(item)].fetch_add(1, std::memory_order_relaxed);
  });
  for (const auto& count : counts) require(count.load() == 1, "an item did not run once");
}

void every_item_runs_once() {
  headrace::ThreadPool pool(4);
  for (int64_t num_items = 0; num_items < 500; ++num_items) run_items(pool, num_items);
}

void callers_take_turns() {
  headrace::ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 300; ++i) run_items(pool, 17);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

// A worker that is between two looks when the end comes must see it: else this never returns.
void a_pool_ends_right_after_a_job() {
  for (int i = 0; i < 2000; ++i) {
    headrace::ThreadPool pool(4);
    pool.parallel_for(4, [](int64_t, int) {});
  }
}

}  // namespace

int main() {
  every_item_runs_once();
  callers_take_turns();
  a_pool_ends_right_after_a_job();
  std::puts("parallel_test: ok");
  return 0;
}
