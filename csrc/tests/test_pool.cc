#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/parallel.h"
#include "tests/check.h"

namespace headrace::tests {
namespace {

void check_each_item_once(ThreadPool& pool, int64_t num_items) {
  std::vector<int> counts(static_cast<size_t>(num_items), 0);  // not atomic: an item has one owner
  std::atomic<int> bad_threads{0};
  pool.parallel_for(num_items, [&](int64_t item, int thread) {
    ++counts[static_cast<size_t>(item)];
    if (thread < 0 || thread >= pool.num_threads()) ++bad_threads;
  });
  for (const int count : counts) CHECK(count == 1, "an item ran %d times", count);
  CHECK(bad_threads == 0, "thread numbers out of range");
}

// Results of one job are inputs of the next, unsynchronised but for the pool: what TSan is for.
void check_jobs_are_ordered(ThreadPool& pool) {
  std::vector<int64_t> values(64, 0);
  for (int64_t round = 0; round < 2000; ++round) {
    pool.parallel_for(64, [&](int64_t item, int) {
      const auto other = static_cast<size_t>(63 - item);
      if (item < 32) values[static_cast<size_t>(item)] = values[other] + 1;
    });
    pool.parallel_for(32, [&](int64_t item, int) {
      values[static_cast<size_t>(63 - item)] = values[static_cast<size_t>(item)];
    });
  }
  for (const int64_t value : values)
    CHECK(value == 2000, "found %lld", static_cast<long long>(value));
}

void check_callers_take_turns() {
  ThreadPool pool(3);
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        pool.parallel_for(17, [&](int64_t item, int) { total += item; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(total == int64_t{3} * 300 * 136, "found %lld", static_cast<long long>(total.load()));
}

bool refuses(int num_threads) {
  try {
    const ThreadPool pool(num_threads);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

void test_pool() {
  for (const int threads : {1, 2, 4, 7}) {
    ThreadPool pool(threads);
    for (const int64_t items : {0, 1, 2, 3, 100, 10000}) check_each_item_once(pool, items);
    check_jobs_are_ordered(pool);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers sleep, then wake
    check_each_item_once(pool, 50);
  }
  for (int i = 0; i < 50; ++i) {
    ThreadPool first(3), second(2);  // start, work and stop at once
    check_each_item_once(first, i);
    check_each_item_once(second, 5);
  }
  check_callers_take_turns();
  CHECK(refuses(0) && refuses(5000), "an impossible pool was made");
}

}  // namespace headrace::tests
