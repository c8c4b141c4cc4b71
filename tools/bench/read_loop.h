// bench/read_loop: a plain read loop over memory of the kind that weights get, the ceiling for decoding on a CPU.
//
// Thread  one at a time; a run starts and joins threads of its own.
// Tests   tests/test_cli_bench.py.
#pragma once
#include "machine/huge_pages.h"

namespace cli {

class ReadLoop {
  public:
    /// Takes `bytes` of memory, 16 MiB to 1 GiB of it. errors: out_of_memory.
    auspex::Status open(uint64_t bytes, uint32_t n_thread);
    bool is_open() const { return n_thread_ != 0; }
    /// Reads all of it once; returns GB/s. errors: cancelled, after Ctrl-C; io_error: other bytes came back.
    auspex::Result<double> run() const;

  private:
    auspex::detail::HugePages pages_;
    auspex::detail::Block block_;
    uint32_t n_thread_ = 0;
};

}  // namespace cli
