// bench_controller: `auspex bench --controller`: the drafting policy's score against hindsight.
#pragma once
#include "examples/cli/common.h"

namespace cli {

/// On the virtual clock: workloads W1 .. W8, four cost curves, the controller and its rivals, over
/// `n_run` recorded streams. Prints a table, or one JSON object. errors: bad_argument.
Status bench_controller_virtual(int64_t n_run, bool json);

}  // namespace cli
