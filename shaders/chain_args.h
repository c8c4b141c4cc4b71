// chain_args.h: arguments of kernels that may be chained (chain.glsl), for C++ and GLSL.
#ifndef AUSPEX_SHADERS_CHAIN_ARGS_H
#define AUSPEX_SHADERS_CHAIN_ARGS_H
#include "shared.h"

AUSPEX_SHARED_BEGIN

// Counters are words of the step buffer (args.h); a list of dispatches zeroes them when it begins.
AUSPEX_CONST uint kChainWord = 128;   // where they begin
AUSPEX_CONST uint kChainCount = 896;  // how many there are

struct ChainArgs {
    uint await_word;  // the counter of the stage before
    uint n_await;     // its workgroups: wait until so many have finished; 0: do not wait
    uint done_word;   // the counter of this stage; 0: nobody waits for it
};

AUSPEX_SHARED_END

#endif
