// bench_masks: what masks of JSON schemas cost, and whether they are right, on instances token by token.
//
// Thread  one.
// Tests   tests/test_cli_masks.py.
#pragma once
#include "bench.h"

namespace cli {

Status bench_masks(const BenchOptions& o);  ///< --masks

}  // namespace cli
