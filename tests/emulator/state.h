// The threads of the block that runs, and the clock by which accesses are ordered.
#pragma once

#include <deque>
#include <vector>

#include "runtime.h"

namespace emu {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kMaxThreads = 1024;

constexpr int kMaxWarps = kMaxThreads / 32;

// The clock ticks at every barrier. Two accesses by different threads are in order only if a chain
// of barriers leads from the first thread after its access to the second one before its own.
uint64_t now = 0;

struct Copy {
    char* shared;
    const char* global;
    int num_bytes, num_valid;
};

enum class State { kReady, kWarp, kBlock, kDone };

struct Thread {
    char* stack;
    void* stack_pointer;  // while another one runs
    int id;
    Index index;
    State state;
    const char* wait_name;
    int line;
    uint32_t barrier;  // which one it waits at
    int predicate;     // of the barrier; after it, how many held
    uint32_t mask;
    void* payload;
    WarpFunction function;
    std::vector<Copy> open_group;
    std::deque<std::vector<Copy>> groups;

    int warp() const { return id / 32; }
};

struct Block {
    Index index;
    uint64_t start;  // time of its first moment
    // What warp w did before seen[v][w] is over for the threads of warp v; seen[w][w] is the time
    // of the warp's last barrier.
    uint64_t seen[kMaxWarps][kMaxWarps];
};

const Kernel* kernel = kernels;
Index grid, block_dim;
Block block;
std::vector<Thread> threads;
std::vector<uint64_t> values;
Thread* current = nullptr;
bool checking = false;
void* scheduler_stack_pointer;

}  // namespace
}  // namespace emu
